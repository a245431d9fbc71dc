"""What the cells of a row say together, and how numbers are written in `docs/paper.md`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from tools.reproduce_paper import BOX, SEEDS, Cell

Cells = dict[str, Cell]
Rows = dict[str, Cells]
# Columns that can prove the optimum.
PROOFS = ("oracle", "default", "proof")


def dqn_of(row: Cells) -> Cell | None:
    """The run of median step time over the seeds that are done."""
    runs = [row[f"dqn-{seed}"] for seed in SEEDS if f"dqn-{seed}" in row]
    runs.sort(key=lambda cell: math.inf if cell["step_seconds"] is None else cell["step_seconds"])
    return runs[len(runs) // 2] if runs else None


def seeds_of(rows: Rows) -> str:
    """How many seeds of `search=dqn` the rows have."""
    counts = {sum(f"dqn-{seed}" in row for seed in SEEDS) for row in rows.values()} - {0}
    told = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{max(counts)}"
    return f"{told} seed{'s' * (max(counts) > 1)} of {len(SEEDS)}"


def step_of(row: Cells, column: str) -> float | None:
    return row.get(column, {}).get("step_seconds")


def best_of(row: Cells) -> float | None:
    """The best plan that any search of the row found: the optimum where one of them proved it."""
    known = [step_of(row, column) for column in (*PROOFS, *(f"dqn-{seed}" for seed in SEEDS))]
    return min((t for t in known if t is not None), default=None)


def best_plan_of(row: Cells) -> str | None:
    best = best_of(row)
    return next((row[c].get("plan") for c in PROOFS if c in row and step_of(row, c) == best), None)


def is_proven(row: Cells) -> bool:
    return any(row.get(column, {}).get("proven") for column in PROOFS)


def bound_of(row: Cells) -> float | None:
    """What is proven of all plans."""
    return max((b for column in PROOFS if (b := row.get(column, {}).get("bound"))), default=None)


def optimum(row: Cells) -> str:
    best, bound = best_of(row), bound_of(row)
    if best is None or is_proven(row):
        return seconds(best)
    return f"{seconds(best)} (bound {seconds(bound)})" if bound else f"{seconds(best)} (not proven)"


def gap(row: Cells, column: str) -> str:
    """Of a column's plan to the optimum; blank where the column has not been run."""
    return percent(ratio(step_of(row, column), best_of(row))) if column in row else ""


def dqn_gap(row: Cells) -> str:
    dqn = dqn_of(row)
    return "" if dqn is None else percent(ratio(dqn["step_seconds"], best_of(row)))


def ratio(own: float | None, best: float | None) -> float | None:
    return None if own is None or best is None else own / best


def between(rows: Iterable[Cells], column: str, other: str) -> tuple[float, int] | None:
    """The geometric mean of the ratios of two columns' step times, and over how many rows; None: over none."""
    both = [(step_of(row, column), step_of(row, other)) for row in rows]
    found = [math.log(own / theirs) for own, theirs in both if own is not None and theirs is not None]
    return (math.exp(statistics.mean(found)), len(found)) if found else None


def box() -> float:
    return float(BOX.removesuffix("s"))


# Numbers in words


def step(row: Cells, column: str) -> str:
    return seconds(step_of(row, column)) if column in row else ""


def effort(cell: Cell | None) -> str:
    """Seconds, evaluations and episodes; evaluations alone are of a proof, which has no episodes."""
    if not cell or "seconds" not in cell:
        return ""
    parts = (cell["seconds"], cell.get("evaluations"), cell.get("episodes"))
    return " / ".join(count(part) for part in parts if part is not None)


def seconds(value: float | None) -> str:
    return "—" if value is None else f"{value:.4g}"


def percent(value: float | None) -> str:
    return "—" if value is None else f"{100 * (value - 1):.1f} %".replace("-0.0", "0.0")


def count(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if isinstance(value, float) else f"{value:,}"


def table(rows: Rows, columns: Sequence[str], cells: Callable[[Cells], list[str]]) -> str:
    return lines(("model / hosts", *columns), [[name, *cells(row)] for name, row in rows.items()])


def lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    made = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    return "\n".join(made + [f"| {' | '.join(row)} |" for row in rows]) + "\n"
