"""Measures how many plans a second the cost model evaluates, by default for T5-11B on the 64 GPUs of its recipe.

    python tools/bench_evaluations.py
    python tools/bench_evaluations.py --recipe gpt2_xl --plans 20000

Captures the recipe's script as a launch does, and evaluates random plans of the search's own space, each different:
first one at a time on a new model (what the first plans of a search cost), then in batches as a search does.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402

from automap_launch.cluster.file import load_cluster  # noqa: E402
from automap_launch.frontends.capture import capture  # noqa: E402
from automap_launch.frontends.config import FrontendConfig  # noqa: E402
from automap_launch.plan.cost import CostModel  # noqa: E402
from automap_launch.plan.decision import Decision  # noqa: E402
from automap_launch.plan.pins import Pins  # noqa: E402
from automap_launch.program.analyse import analyse  # noqa: E402
from automap_launch.search.space import PlanSpace  # noqa: E402
from automap_launch.train_step import Entry  # noqa: E402

BATCH = 256  # plans that a search asks for at once


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="t5_11b")
    parser.add_argument("--plans", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    recipe = yaml.safe_load((ROOT / "recipes" / f"{options.recipe}.yaml").read_text())
    entry = Entry(str(ROOT / "recipes" / recipe["entry"]["script"]), args=tuple(map(str, recipe["entry"]["args"])))
    preset = next(override["override /cluster"] for override in recipe["defaults"] if "override /cluster" in override)
    cluster = load_cluster(ROOT / "conf" / "cluster" / f"{preset}.yaml")
    report: dict[str, object] = {"recipe": options.recipe, "cluster": cluster.describe()}
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        step = capture(entry, FrontendConfig(), ["cpu", cluster.platform], Path(folder) / "step", Path(folder) / "log")
        report["capture_seconds"] = round(time.perf_counter() - started, 2)
    started = time.perf_counter()
    program = analyse(step)
    report["analysis_seconds"] = round(time.perf_counter() - started, 2)
    report["operations"], report["groups"] = len(program.ops), len(program.groups)
    started = time.perf_counter()
    model = CostModel(program, cluster)
    report["model_seconds"] = round(time.perf_counter() - started, 2)
    space = PlanSpace.pinned(program, Pins(cluster.devices))
    report["plans_of_the_space"] = space.size
    decisions = draw(space, min(options.plans, space.size // 2), random.Random(options.seed))

    first = decisions[:BATCH]
    started = time.perf_counter()
    for decision in first:
        model.estimate(decision)
    report["first_plans_a_second"] = round(len(first) / (time.perf_counter() - started))
    rest = decisions[BATCH:]
    started = time.perf_counter()
    for start in range(0, len(rest), BATCH):
        model.estimate_many(rest[start : start + BATCH])
    report["plans_a_second"] = round(len(rest) / (time.perf_counter() - started))
    started = time.perf_counter()
    for decision in first:
        model.estimate(decision)
    report["one_at_a_time_a_second"] = round(len(first) / (time.perf_counter() - started))
    report["peak_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    report["capture_peak_memory_mib"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    print(json.dumps(report, indent=1))
    return 0


def draw(space: PlanSpace, count: int, rng: random.Random) -> list[Decision]:
    """`count` different plans of the space, each by random valid choices."""
    found: dict[Decision, None] = {}
    while len(found) < count:
        partial = space.start()
        while choices := [choice for choice in space.choices(partial) if choice.valid]:
            partial = rng.choice(choices).result
        found[space.complete(partial, shard=False)] = None
    return list(found)


if __name__ == "__main__":
    sys.exit(main())
