"""Writes `docs/adversarial.md`: small steps in which examples meet, or seem to, under plans of every kind.

    python tools/adversarial_table.py                # steps that have no result yet, then the table
    python tools/adversarial_table.py --fresh        # all anew
    python tools/adversarial_table.py --only roll    # steps whose name has this text, anew
    python tools/adversarial_table.py --seconds 200  # those that there is time for; the table once all are there

The steps are those of `tests/program/adversarial`, on eight virtual CPU devices. Results are kept in
`outputs/adversarial/results.json` as they come, so that a run that was broken off goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
if __name__ == "__main__":
    os.environ.update({"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"})

from tests.equality import F32_TOLERANCE  # noqa: E402
from tests.program.adversarial import CASES, Case  # noqa: E402
from tests.runtime.under_plans import PLANS, Outcome, half_lost, outcomes  # noqa: E402

DOCUMENT = ROOT / "docs" / "adversarial.md"
RESULTS = ROOT / "outputs" / "adversarial" / "results.json"

HEADER = """\
# Exact or refused

Small training steps in which the examples of a batch meet, or only seem to, under plans of every kind. Under each
plan a step must equal the plain step, or the plan must be refused, in the same words while planning and while
building, with the line of the user's code. Written by `python tools/adversarial_table.py`; the steps are in
[`tests/program/adversarial`](../tests/program/adversarial), a few of them run in every test
(`tests/runtime/test_adversarial.py`).

A figure is the largest L2 difference of any result (new parameters and other state, loss, metrics) from the plain
step's, as a share of that result's norm. Allowed is 1e-5, float32's tolerance ([contract.md](contract.md),
"Equality"). The last column is the same figure for the plain step itself when one half of its eight examples
is there twice and the other is not: a plan that loses examples would differ by about as much. *Batch not cut*: the
program leaves no dim of the batch to shard, so that the axis `data` has one device.

| plan | stages | data | model | micro-batches | schedule |
|---|---|---|---|---|---|
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TEXT", help="steps whose name has this text, anew")
    parser.add_argument("--fresh", action="store_true", help="forget all results first")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no step after this time")
    options = parser.parse_args()
    begun = time.monotonic()
    results: dict[str, Any] = {} if options.fresh or not RESULTS.exists() else json.loads(RESULTS.read_text())
    for case in CASES:
        wanted = options.only in case.name if options.only else case.name not in results
        if not wanted or time.monotonic() - begun > options.seconds:
            continue
        results[case.name] = run(case)
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1))
        print(f"{case.name}: {_brief(case, results[case.name])}", flush=True)
    left = [case.name for case in CASES if case.name not in results]
    if left:
        print(f"{len(left)} steps are left; call this again")
        return 1
    DOCUMENT.write_text(document(CASES, results))
    return int(any(not is_right(case, results[case.name]) for case in CASES))


def run(case: Case) -> dict[str, Any]:
    """A step's outcomes by plan, and what the comparison would show if half of the examples were lost."""
    return {
        "control": half_lost(case),
        "plans": {plan: asdict(outcome) for plan, outcome in outcomes(case).items()},
    }


def is_right(case: Case, result: Mapping[str, Any]) -> bool:
    """Whether every plan is exact or refused, and none refused without a need; and the comparison sees an error."""
    plans = _outcomes(result)
    split = [outcome for name, outcome in plans.items() if PLANS[name][-1].is_split]
    return (
        all(outcome.is_equal or outcome.refused for outcome in plans.values())
        and all(outcome.refused for outcome in split) == (case.refused is not None)
        and result["control"] > 100 * F32_TOLERANCE
    )


def document(cases: Sequence[Case], results: Mapping[str, Any]) -> str:
    """The table, from results by name."""
    wrong = [case.name for case in cases if not is_right(case, results[case.name])]
    lines = [HEADER.rstrip("\n")]
    for name, (data, model, how) in PLANS.items():
        lines.append(f"| {name} | {how.stages} | {data} | {model} | {how.micro_batches} | {how.schedule} |")
    lines += [
        f"\n{len(cases)} steps, {len(cases) * len(PLANS)} runs: {_counted(results)}."
        + (f" **Not as they must be: {', '.join(wrong)}.**" if wrong else ""),
    ]
    for topic in dict.fromkeys(case.topic for case in cases):
        of_topic = [case for case in cases if case.topic == topic]
        lines += [
            f"\n## {topic.splitlines()[0].rstrip('.')}\n",
            f"| step | what it is hard about | {' | '.join(PLANS)} | half of them lost |",
            f"|---|---|{'---|' * len(PLANS)}---|",
            *(_row(case, results[case.name]) for case in of_topic),
        ]
    return "\n".join(lines) + "\n"


def _counted(results: Mapping[str, Any]) -> str:
    counts = Counter(
        "refused" if outcome.refused else "equal" if outcome.is_equal else "DIFFERENT"
        for result in results.values()
        for outcome in _outcomes(result).values()
    )
    worst = max(o.difference for result in results.values() for o in _outcomes(result).values())
    said = ", ".join(f"{count} {what}" for what, count in counts.most_common())
    return f"{said}; the largest difference of all is {worst:.1e}"


def _row(case: Case, result: Mapping[str, Any]) -> str:
    cells = [case.name, case.about, *_cells(_outcomes(result)), f"{result['control']:.0e}"]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _cells(plans: Mapping[str, Outcome]) -> list[str]:
    """One a plan. A reason that was given before is not repeated."""
    said: list[str] = []
    for name, outcome in plans.items():
        _, model, how = PLANS[name]
        if outcome.refused:
            reason = outcome.refused.replace(f"{ROOT}{os.sep}", "")
            said.append("refused" if f"refused: {reason}" in said else f"refused: {reason}")
        else:
            alone = outcome.devices == model * how.stages and PLANS[name][0] > 1
            said.append(f"{outcome.difference:.0e}" + (" (batch not cut)" if alone else ""))
    return said


def _outcomes(result: Mapping[str, Any]) -> dict[str, Outcome]:
    return {plan: Outcome(**record) for plan, record in result["plans"].items()}


def _brief(case: Case, result: Mapping[str, Any]) -> str:
    return f"{'right' if is_right(case, result) else 'WRONG'}: {'; '.join(_cells(_outcomes(result)))}"


if __name__ == "__main__":
    sys.exit(main())
