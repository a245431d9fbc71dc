"""Measures what capture, analysis and evaluation of large models cost.

    python tools/bench_evaluations.py                             # writes docs/scale.md
    python tools/bench_evaluations.py --recipe gpt2_xl --plans 20000   # one recipe; prints the figures

T5-11B is captured from its recipe's script as a launch does, and random plans of the search's own space for the 64 GPUs
of the recipe, each different, are evaluated: first one at a time on a new model (what the first plans of a search
cost), then in batches as a search does. Then BERT, as wide as BERT-large, with more and more layers, none of them in a
loop: seconds must grow in proportion to operations.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402

from automap_launch.cluster.file import load_cluster  # noqa: E402
from automap_launch.frontends.capture import capture  # noqa: E402
from automap_launch.frontends.config import FrontendConfig  # noqa: E402
from automap_launch.plan.cost import CostModel  # noqa: E402
from automap_launch.plan.decision import STORAGES, Decision  # noqa: E402
from automap_launch.plan.pins import Pins  # noqa: E402
from automap_launch.plan.sharding import shardable_groups, why_invalid  # noqa: E402
from automap_launch.program.analyse import analyse  # noqa: E402
from automap_launch.program.program import Program  # noqa: E402
from automap_launch.search.config import PinConfig  # noqa: E402
from automap_launch.search.space import PlanSpace  # noqa: E402
from automap_launch.train_step import Entry  # noqa: E402

DOCUMENT = ROOT / "docs" / "scale.md"
BATCH = 256  # plans that a search asks for at once
LAYERS = (6, 12, 24, 48)
# The recipe's script with another depth.
DEEP = """
import dataclasses, sys
sys.path.insert(0, {recipe!r})
import train
train.SIZES["deep"] = dataclasses.replace(train.SIZES["large"], layers={layers})
train.main()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", help="only this one, and write nothing")
    parser.add_argument("--plans", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    figures = measure_recipe(options.recipe or "t5_11b", options.plans, options.seed)
    print(json.dumps(figures, indent=1), flush=True)
    if options.recipe is None:
        DOCUMENT.write_text(document(figures, [measure_layers(layers) for layers in LAYERS]))
        print(DOCUMENT.read_text())
    return 0


def measure_recipe(name: str, plans: int, seed: int) -> dict[str, Any]:
    """Seconds, plans a second and memory of one recipe on its cluster."""
    recipe = yaml.safe_load((ROOT / "recipes" / f"{name}.yaml").read_text())
    entry = Entry(str(ROOT / "recipes" / recipe["entry"]["script"]), args=tuple(map(str, recipe["entry"]["args"])))
    preset = next(override["override /cluster"] for override in recipe["defaults"] if "override /cluster" in override)
    cluster = load_cluster(ROOT / "conf" / "cluster" / f"{preset}.yaml")
    program, figures = capture_and_analyse(entry, ["cpu", cluster.platform])
    figures = {"recipe": name, "cluster": cluster.describe(), **figures}
    started = time.perf_counter()
    model = CostModel(program, cluster)
    figures["model_seconds"] = round(time.perf_counter() - started, 2)
    space = PlanSpace(program, Pins.resolve(PinConfig(), program, cluster))
    figures["plans_of_the_space"] = space.size
    decisions = draw(space, min(plans, space.size // 2), random.Random(seed))

    first, rest = decisions[:BATCH], decisions[BATCH:]
    figures["first_plans_a_second"] = per_second(first, lambda: [model.estimate(decision) for decision in first])
    batches = [rest[start : start + BATCH] for start in range(0, len(rest), BATCH)]
    figures["plans_a_second"] = per_second(rest, lambda: [model.estimate_many(batch) for batch in batches])
    figures["one_at_a_time_a_second"] = per_second(first, lambda: [model.estimate(decision) for decision in first])
    pipelines = draw_pipelines(program, cluster.devices, plans, random.Random(seed))
    batches = [pipelines[start : start + BATCH] for start in range(0, len(pipelines), BATCH)]
    figures["pipelines_a_second"] = per_second(pipelines, lambda: [model.estimate_many(batch) for batch in batches])
    figures["peak_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return figures


def capture_and_analyse(entry: Entry, platforms: list[str]) -> tuple[Program, dict[str, Any]]:
    """The program of a script, and what it took. Capture runs in a child process, as in a launch; analysis on one core
    of this one, and its seconds are that core's."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        step = capture(entry, FrontendConfig(), platforms, Path(folder) / "step", Path(folder) / "log")
        capture_seconds = time.perf_counter() - started
    gc.collect()  # what is left of a larger model is not this one's
    started = time.process_time()
    program = analyse(step)
    return program, {
        "capture_seconds": round(capture_seconds, 2),
        "capture_peak_memory_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
        "analysis_seconds": round(time.process_time() - started, 2),
        "operations": len(program.ops),
        "groups": len(program.groups),
    }


def measure_layers(layers: int) -> dict[str, Any]:
    """Figures of a BERT as wide as BERT-large with so many layers."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "deep.py"
        script.write_text(DEEP.format(recipe=str(ROOT / "recipes" / "bert"), layers=layers))
        _, figures = capture_and_analyse(Entry(str(script), args=("--size", "deep", "--steps", "2")), ["cpu"])
    return {"layers": layers, **figures}


def per_second(decisions: list[Decision], evaluate: Callable[[], object]) -> int:
    started = time.perf_counter()
    evaluate()
    return round(len(decisions) / (time.perf_counter() - started))


def document(figures: dict[str, Any], depths: list[dict[str, Any]]) -> str:
    """The document: T5-11B against its limits, and BERT by depth."""
    rows = [
        ("capture, seconds", figures["capture_seconds"], "<= 20"),
        ("capture, peak memory in MiB", figures["capture_peak_memory_mib"], "<= 2,048"),
        ("analysis, seconds", figures["analysis_seconds"], "<= 15"),
        ("cost model made, seconds", figures["model_seconds"], ""),
        ("plans a second, a search's batches", figures["plans_a_second"], ">= 1,000"),
        ("pipelines a second, in batches", figures["pipelines_a_second"], ">= 1,000"),
        ("plans a second, one at a time", figures["one_at_a_time_a_second"], ""),
        (f"plans a second, the first {BATCH}", figures["first_plans_a_second"], ""),
    ]
    lines = [
        "# Large models\n",
        f"Written by `python tools/bench_evaluations.py`, {os.cpu_count()} cores.\n",
        f"T5-11B on {figures['cluster']}: {figures['operations']:,} operations, {figures['groups']} groups, "
        f"{figures['plans_of_the_space']:,} plans in the search's space.\n",
        "| what | measured | limit |",
        "|---|---|---|",
        *(f"| {what} | {value:,} | {limit} |" for what, value, limit in rows),
        "\nBERT, as wide as BERT-large, its layers unrolled:\n",
        "| layers | operations | capture, s | analysis, s | analysis, ms per 1,000 operations |",
        "|---|---|---|---|---|",
    ]
    for own in depths:
        each = own["analysis_seconds"] / own["operations"] * 1e6
        lines.append(
            f"| {own['layers']} | {own['operations']:,} | {own['capture_seconds']} | {own['analysis_seconds']} "
            f"| {each:.0f} |"
        )
    return "\n".join(lines) + "\n"


def draw(space: PlanSpace, count: int, rng: random.Random) -> list[Decision]:
    """`count` different plans of the space, each by random valid choices."""
    found: dict[Decision, None] = {}
    while len(found) < count:
        partial = space.start()
        while choices := [choice for choice in space.choices(partial) if choice.valid]:
            partial = rng.choice(choices).result
        found[space.complete(partial)] = None
    return list(found)


def draw_pipelines(program: Program, devices: int, count: int, rng: random.Random) -> list[Decision]:
    """`count` different pipelines of 2 to 8 stages, their cuts, meshes, micro-batches and groups at random."""
    groups = sorted(shardable_groups(program))
    found: dict[Decision, None] = {}
    while len(found) < count:
        stages, model = rng.choice((2, 4, 8)), rng.choice((1, 2, 4, 8))
        decision = Decision(
            devices // stages // model,
            model,
            frozenset(g for g in groups if model > 1 and not program.groups[g].divisor % model and rng.random() < 0.5),
            rng.choice(STORAGES),
            micro_batches=rng.choice((4, 8, 16)),
            cuts=tuple(sorted(rng.sample(range(1, len(program.blocks)), stages - 1))),
            schedule=rng.choice(("gpipe", "1f1b")),
        )
        if why_invalid(program, decision) is None:
            found[decision] = None
    return list(found)


if __name__ == "__main__":
    sys.exit(main())
