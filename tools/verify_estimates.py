"""Writes `docs/estimates.md`: what the cost model says of plans, against what XLA makes of them.

    python tools/verify_estimates.py                  # every model, every plan
    python tools/verify_estimates.py --only t5_tiny   # one model; prints its table and writes nothing

Each recipe's script is captured as a launch does. Each plan is compiled for eight virtual CPU devices, and the bytes of
each kind of collective, the memory and the floating-point operations of the compiled module stand against the
estimate. What was compiled is kept in `outputs/estimates/` by the digest of what went into the compiler, so that a run
that was broken off goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
if __name__ == "__main__":
    os.environ.update(JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="8")

import yaml  # noqa: E402

from automap_launch.cluster.cluster import Cluster, Device, Link  # noqa: E402
from automap_launch.frontends.capture import capture  # noqa: E402
from automap_launch.frontends.config import FrontendConfig  # noqa: E402
from automap_launch.plan.baselines import inner_groups, stream_group  # noqa: E402
from automap_launch.plan.compiled import CompiledCollective, CompiledModule  # noqa: E402
from automap_launch.plan.cost import CostModel  # noqa: E402
from automap_launch.plan.decision import Decision, Storage  # noqa: E402
from automap_launch.plan.derive import derive_layout  # noqa: E402
from automap_launch.plan.execution import Execution  # noqa: E402
from automap_launch.plan.explain import describe_mesh  # noqa: E402
from automap_launch.plan.layout import Layout  # noqa: E402
from automap_launch.plan.sharding import mesh_of, why_invalid  # noqa: E402
from automap_launch.program.analyse import analyse  # noqa: E402
from automap_launch.program.program import Program  # noqa: E402
from automap_launch.runtime.build import build_executable  # noqa: E402
from automap_launch.runtime.executable import Executable  # noqa: E402
from automap_launch.train_step import Entry, TrainStep  # noqa: E402
from automap_launch.units import format_bytes  # noqa: E402

DOCUMENT = ROOT / "docs" / "estimates.md"
FOLDER = ROOT / "outputs" / "estimates"
RECIPES = ("quickstart", "t5_tiny", "bert_tiny", "gpt2_tiny", "resnet_tiny", "vgg_tiny")
DEVICES = 8
MICRO_BATCHES = 2  # of the plans that accumulate gradients
LIMITS = {"bytes": 0.15, "memory": 0.20, "flops": 0.05}
# Of the package, that between them make the module that is compiled.
ROOMS = ("program", "split", "runtime")
# Kinds of collectives that carry less than this share of a plan's bytes are named, and judged by no limit.
SMALL = 0.02

HEADER = """\
# Estimates against XLA

What `plan/cost.py` says of a plan, divided by what XLA's compiled module says: 1.00 is agreement. Written by
`python tools/verify_estimates.py`. Each model is a recipe at its small size, captured from its script; each plan is
compiled for eight virtual CPU devices, in float32, under the rules of the CPU backend (`plan/platforms.py`).

- **Bytes** of each kind of collective over each axis of the mesh: of the result of an all-reduce, of the gathered
  result of an all-gather, of what a device holds of the others; loops' rounds counted. Limit: 15 %. A kind with less
  than 2 % of the plan's bytes, by both counts, is left out of the table and held to no limit.
- **Memory** of a device: arguments, results and temporaries by XLA's memory analysis, less what is donated. Limit:
  20 %.
- **Flops** of a device: XLA's cost analysis, which counts a loop's body once, plus the body's operations for the other
  rounds. Limit: 5 %.

What is off by more than its limit is in bold. Collectives that the estimate did not foresee are named below each table.

Plans that accumulate run two micro-batches, where the batch can be cut that way.

What no rule covers, by what is known of the cause:

- Which cheap work XLA does anew in several fusions follows its rules (`plan/fusing.py`), but of the long polynomial of
  bert's activation it does less (flops, stream), and where accumulating writes out gpt2's loops over layers, more.
- An embedding's gradient that is stored sharded (ZeRO) is computed on devices in another order, and permuted.
- Where both feature dims of a convolution are sharded, XLA gathers most images for each use, and some once (resnet,
  every parameter).
- The gradient of a max-pooling is computed with the indices of its windows. XLA makes them in the forward part in some
  plans, so that they are there for all poolings at once, and in the backward part in others (memory of vgg).
"""


@dataclass(frozen=True)
class Compiled:
    """What XLA made of a plan. `collectives`: (bytes, operations of the user that they come from, largest first)."""

    collectives: dict[tuple[str, str], tuple[int, tuple[str, ...]]]
    memory: int
    flops: float


@dataclass(frozen=True)
class Row:
    """One plan: predicted and compiled numbers. `collectives`: bytes by (kind, axis)."""

    name: str
    decision: Decision
    collectives: dict[tuple[str, str], tuple[float, float]]
    memory: tuple[float, float]
    flops: tuple[float, float]
    origins: dict[tuple[str, str], tuple[str, ...]]

    @property
    def counted(self) -> dict[tuple[str, str], tuple[float, float]]:
        """Collectives that are not too small to be judged."""
        floor = SMALL * max(sum(pair[side] for pair in self.collectives.values()) for side in (0, 1))
        return {key: pair for key, pair in self.collectives.items() if max(pair) > floor}

    @property
    def misses(self) -> int:
        pairs = [(pair, "bytes") for pair in self.counted.values()]
        pairs += [(self.memory, "memory"), (self.flops, "flops")]
        return sum(_misses(pair, limit) for pair, limit in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="RECIPE", action="append", choices=RECIPES)
    parser.add_argument("--plans", metavar="TEXT", help="only plans whose name has this text")
    options = parser.parse_args()
    parts = [HEADER]
    judged = missed = 0
    for recipe in options.only or RECIPES:
        program = analyse(capture_recipe(recipe))
        rows = []
        for name, decision in plans(program):
            if options.plans is None or options.plans in name:
                rows.append(compare(program, name, decision))
                print(_line(rows[-1]), flush=True)
        judged += sum(len(row.counted) + 2 for row in rows)
        missed += sum(row.misses for row in rows)
        parts.append(section(recipe, rows))
    parts.insert(1, f"\nOf {judged} numbers, {judged - missed} are within their limit and {missed} are not.\n")
    if options.only or options.plans:
        print("\n".join(parts[1:]))
    else:
        DOCUMENT.write_text("\n".join(parts))
    return 0


def capture_recipe(recipe: str) -> TrainStep:
    """The recipe's step, captured from its script."""
    entry = yaml.safe_load((ROOT / "recipes" / f"{recipe}.yaml").read_text())["entry"]
    script = ROOT / "recipes" / entry["script"]
    digest = hashlib.sha256(script.read_bytes() + json.dumps(entry).encode()).hexdigest()[:16]
    folder = FOLDER / "steps" / f"{recipe}-{digest}"
    if not folder.exists():
        arguments = tuple(map(str, entry["args"]))
        capture(Entry(str(script), args=arguments), FrontendConfig(), ["cpu"], folder, folder.with_suffix(".log"))
    return TrainStep.load(folder)


def plans(program: Program) -> Iterator[tuple[str, Decision]]:
    """Plans of every kind, chosen by rule: those that this program cannot have, and repetitions, are left out."""
    stream = stream_group(program)
    parameters = [g.id for g in program.groups if g.kind == "parameter"]
    wanted: list[tuple[str, int, frozenset[int], Storage]] = [
        ("data parallel", 1, frozenset(), "none"),
        ("ZeRO, optimizer", 1, frozenset(), "optimizer"),
        ("ZeRO, state", 1, frozenset(), "state"),
    ]
    wanted += [("inner dims", model, inner_groups(program, model), "none") for model in (8, 4, 2)]
    if stream is not None:
        wanted += [("stream", model, frozenset({stream}), "none") for model in (8, 2)]
    wanted += [
        ("inner dims, ZeRO optimizer", 2, inner_groups(program, 2), "optimizer"),
        ("inner dims, ZeRO optimizer", 4, inner_groups(program, 4), "optimizer"),
        ("inner dims, ZeRO state", 4, inner_groups(program, 4), "state"),
        ("every parameter", 2, frozenset(g for g in parameters if program.groups[g].divisor % 2 == 0), "none"),
    ]
    inner = [g for g in parameters if g != stream and program.groups[g].divisor % 8 == 0]
    wanted += [(f"group {g}", 8, frozenset({g}), "none") for g in dict.fromkeys([*inner[:1], *inner[-1:]])]
    whole = [(name, Decision(DEVICES // model, model, groups, storage)) for name, model, groups, storage in wanted]
    accumulated = [
        (f"{name}, accumulated", replace(decision, micro_batches=MICRO_BATCHES))
        for name, decision in whole
        if name in ("data parallel", "ZeRO, optimizer") or (name, decision.model) == ("inner dims", 4)
    ]
    seen = set()
    for name, decision in whole + accumulated:
        idle = decision.model > 1 and not decision.sharded
        if not idle and why_invalid(program, decision) is None and decision not in seen:
            seen.add(decision)
            yield name, decision


def compare(program: Program, name: str, decision: Decision) -> Row:
    """One plan's numbers from the cost model and from XLA."""
    model = CostModel(program, cluster())
    breakdown, memory = model.breakdown(decision), model.estimate(decision).memory.total
    real = compiled(program, decision)
    predicted = {(str(use.kind), use.axis): float(use.bytes) for use in breakdown.collectives}
    keys = sorted(predicted.keys() | real.collectives.keys())
    return Row(
        name,
        decision,
        {key: (predicted.get(key, 0.0), float(real.collectives.get(key, (0, ()))[0])) for key in keys},
        (float(memory), float(real.memory)),
        (breakdown.flops, real.flops),
        {key: origins for key, (_, origins) in real.collectives.items()},
    )


def compiled(program: Program, decision: Decision) -> Compiled:
    """The plan compiled by XLA for the virtual devices, or what is known of it from before."""
    modules = FOLDER / "modules"
    modules.mkdir(parents=True, exist_ok=True)
    layout, execution = derive_layout(program, decision), Execution(micro_batches=decision.micro_batches)
    inputs = f"{program.step.fingerprint} {layout} {execution} {_code()}"
    known = modules / f"{hashlib.sha256(inputs.encode()).hexdigest()[:24]}.lowered"
    if not known.exists():
        known.write_text(_compile(program.step, layout, execution, modules))
    digest = known.read_text()
    text, facts = modules / f"{digest}.hlo", modules / f"{digest}.json"
    record = json.loads(facts.read_text())
    module = CompiledModule(text.read_text())
    found: dict[tuple[str, str], list[CompiledCollective]] = defaultdict(list)
    for collective in sorted(module.collectives(mesh_of(decision)), key=lambda c: -c.size):
        found[collective.kind, collective.axis].append(collective)
    totals = {
        key: (sum(c.size for c in own), tuple(dict.fromkeys(c.origin for c in own))) for key, own in found.items()
    }
    return Compiled(totals, record["memory"], record["flops"] + module.repeated_flops)


def _compile(step: TrainStep, layout: Layout, execution: Execution, folder: Path) -> str:
    """Compiles a plan unless the same module was compiled before; the digest of the module, by which it is kept."""
    executable = build_executable(step, layout, execution)
    assert isinstance(executable, Executable), "a plan of one stage is one executable"
    lowered = executable.lower()
    digest = hashlib.sha256(lowered.as_text().encode()).hexdigest()[:24]
    facts = folder / f"{digest}.json"
    if not facts.exists():
        made = lowered.compile()
        memory, cost = made.memory_analysis(), made.cost_analysis()
        held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
        record: dict[str, Any] = {
            "memory": held + memory.temp_size_in_bytes,
            "flops": cost["flops"] + cost.get("transcendentals", 0.0),
        }
        (folder / f"{digest}.hlo").write_text(made.as_text())
        facts.write_text(json.dumps(record))
    return digest


@cache
def _code() -> str:
    """A digest of the code that makes modules of plans."""
    files = [path for room in ROOMS for path in sorted((ROOT / "automap_launch" / room).glob("**/*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def cluster() -> Cluster:
    """Eight devices of the CPU backend. Speeds do not matter here: no seconds are compared."""
    return Cluster(
        "eight", "cpu", 1, DEVICES, Device("cpu", {"float32": 1e11}, 2**34, 1e10), (Link("host", 1e-6, 1e-10),)
    )


def section(recipe: str, rows: Sequence[Row]) -> str:
    """A model's table and what was not foreseen."""
    lines = [f"\n## {recipe}\n", "| plan | mesh | bytes of collectives | memory | flops |", "|---|---|---|---|---|"]
    for row in rows:
        cells = [
            row.name,
            describe_mesh(row.decision),
            "<br>".join(f"{_what(key)}: {_ratio(pair, 'bytes')}" for key, pair in row.counted.items()) or "none",
            _ratio(row.memory, "memory"),
            _ratio(row.flops, "flops"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    unforeseen = [
        f"- {row.name}, {describe_mesh(row.decision)}: {_what(key)}, {format_bytes(pair[1])}, at "
        + ", ".join(f"`{name}`" for name in row.origins[key][:3])
        for row in rows
        for key, pair in row.collectives.items()
        if pair[0] == 0
    ]
    if unforeseen:
        lines += ["\nNot foreseen:\n", *unforeseen]
    return "\n".join(lines) + "\n"


def _what(key: tuple[str, str]) -> str:
    return f"{key[0].replace('_', '-')} over {key[1].replace('+', ' and ')}"


def _misses(pair: tuple[float, float], limit: str) -> bool:
    predicted, real = pair
    return abs(predicted - real) > LIMITS[limit] * real


def _ratio(pair: tuple[float, float], limit: str) -> str:
    predicted, real = pair
    if predicted == real:
        return "1.00"
    text = f"{predicted / real:.2f}" if real else f"{format_bytes(predicted)} that are not there"
    text = "not foreseen" if predicted == 0 else text
    return f"**{text}**" if _misses(pair, limit) else text


def _line(row: Row) -> str:
    parts = [f"{_what(key)}: {p:.0f}/{r:.0f} {_ratio((p, r), 'bytes')}" for key, (p, r) in row.collectives.items()]
    memory, flops = _ratio(row.memory, "memory"), _ratio(row.flops, "flops")
    return f"{row.name}, {describe_mesh(row.decision)}: memory {memory}, flops {flops}; " + "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
