"""Writes `docs/matrix.md`: models x optimizers x plans, each run against the plain step.

    python tools/verify_matrix.py                    # cells that have no result yet, then the table
    python tools/verify_matrix.py --fresh            # all cells anew
    python tools/verify_matrix.py --failed           # those that failed, and those that have no result
    python tools/verify_matrix.py --only PP8         # cells whose name has this text; writes no table
    python tools/verify_matrix.py --list             # names the cells
    python tools/verify_matrix.py --cell mlp/adam/DP8    # one cell in this process

Each cell runs in a process of its own on eight virtual CPU devices, three steps in float32 and three in float64.
Results are kept in `outputs/matrix/results.json` as they come, so that a run that was broken off goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "8",
    # Compiled quickly rather than well: three steps are run.
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
}
if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)

from tools.matrix_cells import PLANS, PRECISIONS, Cell, controls, from_name, judged  # noqa: E402
from tools.matrix_run import Outcome, devices_are_there, run_cell  # noqa: E402

DOCUMENT = ROOT / "docs" / "matrix.md"
RESULTS = ROOT / "outputs" / "matrix" / "results.json"
SECONDS = 400  # after which a cell has failed

HEADER = """\
# Every plan equals the plain step

Models x optimizers x plans, three steps each, in float32 and in float64. Written by `python tools/verify_matrix.py`.
The cells are a pairwise cover: every two of model, optimizer and plan meet. They are chosen by a fixed rule
(`tools/matrix_cells.py`) before anything runs.

Compared are the metrics of every step and all of the final state, tensor by tensor, in L2: a difference of at most
1e-5 (float32) or 1e-10 (float64) of the tensor's norm. A tensor whose gradient is rounding alone may differ by
three times what it differs by when the rows of the plain step's batches are permuted; such tensors are named below
the table. The models have none on purpose: how a gradient that is nothing but noise moves under tensor parallelism
says nothing, and no permutation of the batch bounds it. Dropout tells examples apart by their position, so that its
model has no such control at all.

| plan | stages | data | model | micro-batches | schedule |
|---|---|---|---|---|---|
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TEXT", help="cells whose name has this text")
    parser.add_argument("--fresh", action="store_true", help="forget all results first")
    parser.add_argument("--failed", action="store_true", help="run those that failed again")
    parser.add_argument("--list", action="store_true", help="name the cells")
    parser.add_argument("--cell", metavar="NAME", help="run one cell in this process and print its outcome as JSON")
    options = parser.parse_args()
    if options.cell:
        devices_are_there()
        cell = from_name(options.cell)
        print(json.dumps({precision: run_cell(cell, precision).record() for precision in PRECISIONS}))
        return 0
    cells = [cell for cell in (*judged(), *controls()) if not options.only or options.only in cell.name]
    if options.list:
        print("\n".join(cell.name for cell in cells))
        return 0
    results = {} if options.fresh or not RESULTS.exists() else json.loads(RESULTS.read_text())
    for number, cell in enumerate(cells, start=1):
        known = results.get(cell.name)
        if known is not None and not (options.failed and not _passed(known)):
            continue
        results[cell.name] = in_a_child(cell)
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1))
        print(f"[{number}/{len(cells)}] {cell.name}: {_brief(results[cell.name])}", flush=True)
    failed = [cell.name for cell in cells if not _passed(results[cell.name])]
    if not options.only:
        DOCUMENT.write_text(document(cells, results))
    print(f"{len(cells) - len(failed)} of {len(cells)} cells passed" + "".join(f"\nfailed: {name}" for name in failed))
    return int(bool(failed))


def in_a_child(cell: Cell) -> dict[str, Any]:
    """Outcomes of a cell by precision. A child that dies or takes too long has failed in both."""
    command = [sys.executable, str(Path(__file__).resolve()), "--cell", cell.name]
    try:
        done = subprocess.run(
            command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return dict.fromkeys(PRECISIONS, Outcome(False, f"did not end within {SECONDS} s").record())
    if done.returncode:
        return dict.fromkeys(PRECISIONS, Outcome(False, f"exit code {done.returncode}: {done.stderr[-2000:]}").record())
    outcomes: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return outcomes


def document(cells: Sequence[Cell], results: Mapping[str, Any]) -> str:
    """The table, from results by name."""
    lines = [HEADER.rstrip("\n")]
    for name, plan in PLANS.items():
        lines.append(
            f"| {name} | {plan.stages} | {plan.data} | {plan.model} | {plan.micro_batches} | {plan.schedule} |"
        )
    equal = [c for c in cells if not c.refused and c.sabotage == "none"]
    refused = [c for c in cells if c.refused]
    spoilt = [c for c in cells if c.sabotage != "none"]
    passed = Counter(_passed(results[c.name]) for c in cells)
    lines += [
        f"\n{passed[True]} of {len(cells)} cells did what they must: {len(equal)} equal, {len(refused)} refused, "
        f"{len(spoilt)} spoilt runs noticed." + (f" **{passed[False]} failed.**" if passed[False] else ""),
        "\n## Equal\n",
        "The largest difference of any tensor, as a share of its norm.\n",
        "| model | optimizer | plan | float32 | float64 |",
        "|---|---|---|---|---|",
        *(_row(c, results[c.name]) for c in equal),
    ]
    noise = [(c, p, results[c.name][p]["by_control"]) for c in equal for p in PRECISIONS]
    lines += [f"\n{c.name}, {p}, equal up to its own noise: {', '.join(paths)}" for c, p, paths in noise if paths]
    lines += [
        "\n## Refused\n",
        "Listed before the run: each example is normalised by statistics of the whole batch, so that no part of the",
        "batch can be computed alone (`search.allow_local_batch_stats=true` gives each micro-batch its own).\n",
        "| model | optimizer | plan | float32 | float64 |",
        "|---|---|---|---|---|",
        *(_row(c, results[c.name]) for c in refused),
        "\n## Spoilt on purpose\n",
        "`dropped`: the first micro-batch does not count. `scaled`: what micro-batches add up is off by a thousandth.",
        "The comparison must fail.\n",
        "| model | optimizer | plan | float32 | float64 |",
        "|---|---|---|---|---|",
        *(_row(c, results[c.name]) for c in spoilt),
    ]
    return "\n".join(lines) + "\n"


def _row(cell: Cell, outcomes: Mapping[str, Any]) -> str:
    plan = cell.plan if cell.sabotage == "none" else f"{cell.plan}, {cell.sabotage}"
    said = [_said(outcomes[precision]) for precision in PRECISIONS]
    return f"| {' | '.join([cell.model, cell.optimizer, plan, *said])} |"


def _said(outcome: Mapping[str, Any]) -> str:
    said: str = outcome["said"].splitlines()[0].replace("|", "\\|")
    if not outcome["passed"]:
        return f"**failed**: {said}"
    return said.removeprefix("worst ") if said.startswith("worst ") else said


def _passed(outcomes: Mapping[str, Any]) -> bool:
    return all(outcomes[precision]["passed"] for precision in PRECISIONS)


def _brief(outcomes: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{p} {'passed' if outcomes[p]['passed'] else 'FAILED'} in {outcomes[p]['seconds']:.0f} s: "
        + outcomes[p]["said"][: 200 if outcomes[p]["passed"] else 1500]
        for p in PRECISIONS
    )


if __name__ == "__main__":
    sys.exit(main())
