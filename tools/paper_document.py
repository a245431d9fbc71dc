"""`docs/paper.md`: tables of the cells that `tools/reproduce_paper.py` has run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from tools.reproduce_paper import (
    ABLATED,
    BOX,
    DQN_BOX,
    FINE_TUNING,
    HELD_OUT,
    HELD_OUT_SEED,
    HOSTS,
    MODELS,
    ORACLE_BOX,
    ROOT,
    SEEDS,
    SWITCHES,
    Cell,
    at,
    cells_of,
)

DOCUMENT = ROOT / "docs" / "paper.md"
BASELINES = ("single", "data_parallel", "zero_data_parallel", "megatron", "pipeline")
# Rows with fewer plans say nothing about a search.
FEWEST_PLANS = 100
EVALUATIONS = 500
# By family: how its rows begin, and what the paper says of the agent without fine-tuning.
FAMILIES: dict[str, tuple[str | tuple[str, ...], str]] = {
    "BERT": ("bert", "optimal"),
    "T5": ("t5", "optimal but for T5-11B"),
    "GPT-2": ("gpt2", "no such model"),
    "CNNs": (("resnet", "vgg"), "not optimal"),
}
Cells = dict[str, Cell]
Rows = dict[str, Cells]

HEADER = f"""\
# The paper's experiments

Written by `tools/reproduce_paper.py` (`--held-out` for the synthetic rows; `--column` and `--only` run a part of it).
Models are the recipes of the same names, clusters are 1 to 8 hosts of eight V100 with NVLink and 25 GbE between hosts,
as in Auto-MAP (Wang et al., arXiv 2007.04069). Step times are **predicted** by our cost model
([estimates.md](estimates.md) holds it against XLA); what is measured here is the search. All searches of a row see the
same cost model and the same space: stages, cuts, micro-batches, schedule, mesh, storage, one choice a linkage group.

- Seconds are **CPU time of one process** (`time.process_time`), so that other work on the machine does not count. Every
  search begins with a cost model that has priced nothing. Capturing and analysing a step (0.1 to 5 s) is not included.
- *Optimum*: proven over the whole space, by the oracle within {ORACLE_BOX}; else the best plan known, with what is
  proven to be a lower bound. A gap is to the optimum, or to the best plan known where it is not proven.
- `search=dqn` is the agent with upper confidence bounds and hill-climbing, at most {DQN_BOX}, the median of the seeds
  that were run. The default search is `search=portfolio`, at most {ORACLE_BOX}.
- Cells of a row that were made with another version of the cost model than its newest one are left out.
- —: no plan that fits was found, or the baseline does not fit. A blank: the cell has not been run.
"""


def write() -> None:
    rows = {f"{model}/{n}": cells_of(f"{model}/{n}") for model in MODELS for n in HOSTS}
    synthetic = {f"synthetic/{k}": cells_of(f"synthetic/{k}") for k in range(HELD_OUT)}
    rows, synthetic = (_counted(found) for found in (rows, synthetic))
    parts = [HEADER, *_first_question(rows), *_second_question(rows), *_third_question(rows), *_fourth_question(rows)]
    parts += [*_fifth_question(rows), *_equal(rows), *_held_out(synthetic)]
    DOCUMENT.write_text("\n".join(parts))


def _counted(rows: Rows) -> Rows:
    return {n: c for n, c in rows.items() if c and c.get("size", {}).get("plans", math.inf) >= FEWEST_PLANS}


# The questions


def _first_question(rows: Rows) -> list[str]:
    names = ("single device", "pure DP", "ZeRO-DP", "Megatron TP x DP", "even pipeline")

    def cells(row: Cells) -> list[str]:
        known = next((c["baselines"] for c in row.values() if "baselines" in c), {})
        ways = [_seconds(known.get(name)) if known else "" for name in BASELINES]
        searched = [_step(row, "random"), _step(row, "anneal"), _step(row, "zero_shot"), _step(row, "fine_tuned")]
        return [*ways, *searched, _seconds_of(_dqn(row)), _step(row, "default"), _optimum(row)]

    columns = (*names, "random", "annealing", "zero-shot", "fine-tuned", "`dqn`", "default", "optimum")
    effort = ("plans", "`dqn` s", "evaluations", "episodes", "default s", "proof s", "optimal plan")
    return [
        "## RQ1: are good plans found with no hand design?\n",
        "The paper: yes, within two hours. Here: "
        f"{_verdict(rows)}\n\nPredicted seconds a step; random search and annealing after {BOX} of CPU time.\n",
        _table(rows, columns, cells),
        "How much work each took. *Proof s*: seconds of the oracle alone (`search=exact`).\n",
        _table(rows, effort, _effort),
        _misses(rows),
        "`python tools/reproduce_paper.py --column dqn-0 --column dqn-1 --column dqn-2 --column default "
        "--column oracle` (random, annealing: `--column random --column anneal`)\n",
    ]


def _effort(row: Cells) -> list[str]:
    dqn, default, oracle = _dqn(row) or {}, row.get("default", {}), row.get("oracle", {})
    plans = f"{float(row['size']['plans']):.1e}" if "size" in row else ""
    proof = "" if not oracle else f"{oracle['seconds']:.1f}" if oracle.get("proven") else f"> {ORACLE_BOX}"
    took = [_count(dqn.get(k)) for k in ("seconds", "evaluations", "episodes")]
    best = min((c for c in (default, oracle) if c.get("plan")), key=lambda c: c["step_seconds"], default={})
    return [plans, *took, _count(default.get("seconds")), proof, best.get("plan", "")]


def _second_question(rows: Rows) -> list[str]:
    kinds: dict[str, list[str]] = {}
    for name, row in rows.items():
        shape = row.get("default", {}).get("shape")
        if shape:
            ways = [way for way, size in zip(("pipeline", "data", "operator"), shape, strict=True) if size > 1]
            kinds.setdefault(" + ".join(ways) or "none", []).append(name)
    return [
        "## RQ2: are data, operator and pipeline parallelism searched in one space?\n",
        "The paper: yes. Here: every plan of the space is one of all three; which of them the returned plans use:\n",
        _lines(("parallelism", "rows", "which"), [[k, str(len(v)), ", ".join(v)] for k, v in sorted(kinds.items())]),
        "`python tools/reproduce_paper.py --column default`\n",
    ]


def _third_question(rows: Rows) -> list[str]:
    def cells(row: Cells) -> list[str]:
        size = row.get("size", {})
        counts = [_count(size.get(k)) for k in ("operations", "dims", "untied_groups", "groups", "blocks")]
        gap = _ratio(_at(row, "layers"), _best(row))
        return [*counts, _step(row, "layers"), _optimum(row), _percent(gap)]

    gaps = [_ratio(_at(row, "layers"), _best(row)) for row in rows.values() if "layers" in row]
    found = [g for g in gaps if g is not None]
    gained = f": it gains more than 1 % on {sum(g > 1.01 for g in found)} of {len(gaps)} rows" if found else ""
    return [
        "## RQ3: does HLO level beat layer or operator level?\n",
        "The paper: finer grain, and three front ends with one tool. Here: the best plan that decides whole layers "
        "(every layer sharded as by hand or not at all, stages cut evenly by work, each number of stages, "
        f"micro-batches, schedule, mesh and storage tried) against the optimum over groups and blocks{gained}.\n",
        _table(
            rows,
            ("operations", "dims", "groups", "tied", "blocks", "layer level", "optimum", "layer level above it"),
            cells,
        ),
        "These are predictions. What plans cost when they run is in [pipeline.md](pipeline.md) and "
        "[overhead.md](overhead.md); that predictions and measurements rank plans alike is not shown on V100 clusters, "
        "which we have none of. One tool for JAX, TensorFlow and Trax scripts: [styles.md](styles.md), "
        "[trax_tests.md](trax_tests.md), [matrix.md](matrix.md).\n\n"
        "`python tools/reproduce_paper.py --column size --column layers`\n",
    ]


def _fourth_question(rows: Rows) -> list[str]:
    shown = {name: rows[name] for name in ABLATED if name in rows}
    names = tuple(SWITCHES)

    def cells(row: Cells) -> list[str]:
        best, size = _best(row), row.get("size", {})
        full = _percent(_ratio(at(row["dqn-0"], seconds=_box()) if "dqn-0" in row else None, best))
        without = [
            _percent(_ratio(_at(row, f"without-{name}"), best)) if f"without-{name}" in row else "" for name in names
        ]
        episodes = [
            _count(row.get("dqn-0", {}).get("episodes")),
            _count(row.get("without-tied_layers", {}).get("episodes")),
        ]
        plans = [math.log10(size["plans"]) if size else None, row.get("without-tied_layers", {}).get("plans_log10")]
        plans += [size.get("log10_without_groups"), size.get("log10_without_forward_only")]
        return [*("" if p is None else f"10^{p:.0f}" for p in plans), full, *without, *episodes]

    columns = (
        *("plans", "untied layers", "no linkage groups", "cuts not forward-only"),
        *("all prunings", *(f"no {name.replace('_', ' ')}" for name in names), "episodes", "untied: episodes"),
    )
    return [
        "## RQ4: what does pruning bring?\n",
        "The paper: a smaller space and faster convergence. Here: the size of the space, and the gap of `search=dqn` "
        f"to the optimum after {BOX} of CPU time with one switch of `search.prune` off at a time.\n",
        _table(shown, columns, cells),
        "Two prunings cannot be switched off, so only what they spare is counted. *Linkage groups*: a plan that shards "
        "dims apart which propagation ties makes the compiler move data between operations in ways that no estimate "
        "here knows, so what it would cost is unknown. *Forward-only cuts*: a stage's backward part reads what its "
        "forward part holds, and its update the parameters that both use; a plan that cuts them elsewhere is none that "
        "the runtime splits a step into (counted: each of the three parts cut by itself). Without *divisibility* the "
        "agent is offered what does not divide as a dead end; without *memory bound* what cannot fit. The space of "
        "plans stays the same with these two and with the balance window: what grows is what the agent is offered.\n\n"
        "`python tools/reproduce_paper.py " + " ".join(f"--column without-{name}" for name in SWITCHES) + "`\n",
    ]


def _fifth_question(rows: Rows) -> list[str]:
    def cells(row: Cells) -> list[str]:
        best = _best(row)
        names = ("scrambled", "look_ahead", "zero_shot", "fine_tuned")
        gaps = [_percent(_ratio(_at(row, name), best)) if name in row else "" for name in names]
        gaps.append(_percent(_ratio((_dqn(row) or {}).get("step_seconds"), best)))
        zero, tuned = (_ratio(_at(row, name), best) for name in ("zero_shot", "fine_tuned"))
        need = "" if "zero_shot" not in row else "no" if zero is not None and zero <= 1.01 else "yes"
        enough = "" if "fine_tuned" not in row or need == "no" else "yes" if tuned and tuned <= 1.01 else "no"
        return [*gaps, need, enough, _count(row.get("fine_tuned", {}).get("episodes"))]

    columns = (
        *("random weights", "look-ahead alone", "zero-shot", "fine-tuned", "`dqn`"),
        *("needs fine-tuning", "and that is enough", "episodes"),
    )
    return [
        "## RQ5: does a pre-trained agent generalise?\n",
        "The paper: BERT and T5 need no fine-tuning, T5-11B is exact after 10,000 episodes of it, CNNs need it. Here, "
        "as gaps to the optimum; the agent decides all of a plan, not the pipeline split alone. *Random weights*, "
        "*look-ahead alone* (an untrained network acts as its first feature says) and *zero-shot* (the weights that "
        f"come with the package) are the plan of one greedy episode. *Fine-tuned*: {FINE_TUNING} episodes on copies "
        "of the model with perturbed blocks, then episodes on the model itself, without upper confidence bounds and "
        "hill-climbing. A row needs fine-tuning where zero-shot is more than 1 % above the optimum.\n",
        _table(rows, columns, cells),
        _by_family(rows),
        "`python tools/reproduce_paper.py --column scrambled --column look_ahead --column zero_shot "
        "--column fine_tuned`\n",
    ]


def _by_family(rows: Rows) -> str:
    told = []
    for family, (prefix, claim) in FAMILIES.items():
        own = [row for name, row in rows.items() if name.startswith(prefix) and "zero_shot" in row]
        ratios = [_ratio(_at(row, "zero_shot"), _best(row)) for row in own]
        exact = sum(r is not None and r <= 1.01 for r in ratios)
        if own:
            told.append(f"{family}: zero-shot within 1 % on {exact} of {len(own)} (the paper: {claim})")
    if not told:
        return ""
    return (
        "; ".join(told)
        + ". Where the two differ: the paper's agent names the split of a pipeline whose other decisions "
        "are given, ours takes every decision of a plan, and one wrong mesh costs more than a wrong cut.\n"
    )


def _equal(rows: Rows) -> list[str]:
    def cells(row: Cells) -> list[str]:
        best = _best(row)
        out = []
        for limit in ({"evaluations": EVALUATIONS}, {"seconds": _box()}):
            for method in ("random", "anneal", "dqn-0"):
                step = at(row[method], **limit) if method in row else None
                out.append(_percent(_ratio(step, best)) if method in row else "")
        return out

    names = ("random", "annealing", "`dqn`")
    columns = tuple(f"{n}, {what}" for what in (f"{EVALUATIONS} evaluations", f"{BOX}") for n in names)
    return [
        "## Equal evaluations, and equal seconds\n",
        f"Gaps to the optimum of the best plan after {EVALUATIONS} different plans evaluated, and after {BOX} of CPU "
        "time. All three have the baselines in the race; `dqn` (seed 0) also has its seeds and hill-climbing.\n",
        _table(rows, columns, cells),
        _means(rows, cells, columns),
        "`python tools/reproduce_paper.py --column random --column anneal --column dqn-0`\n",
    ]


def _means(rows: Rows, cells: Callable[[Cells], list[str]], columns: Sequence[str]) -> str:
    values = [
        [float(c.removesuffix(" %")) for c in column if c.endswith("%")]
        for column in zip(*map(cells, rows.values()), strict=True)
    ]
    means = [f"{name} {statistics.mean(own):.1f} %" for name, own in zip(columns, values, strict=True) if own]
    return f"Means: {'; '.join(means)}.\n" if means else ""


def _held_out(rows: Rows) -> list[str]:
    if not rows:
        return []

    def cells(row: Cells) -> list[str]:
        best = _best(row)
        names = ("random", "anneal", "scrambled", "look_ahead", "zero_shot", "fine_tuned")
        gaps = [_percent(_ratio(_at(row, name), best)) if name in row else "" for name in names]
        dqn = _percent(_ratio((_dqn(row) or {}).get("step_seconds"), best))
        default = _percent(_ratio(_at(row, "default"), best))
        plans = f"{float(row['size']['plans']):.1e}" if "size" in row else ""
        return [plans, *gaps, dqn, default, _count(row.get("default", {}).get("seconds")), _proven(row)]

    columns = (
        *("plans", "random", "annealing", "random weights", "look-ahead alone", "zero-shot", "fine-tuned", "`dqn`"),
        *("default", "default s", "optimum proven"),
    )
    return [
        "## Held-out synthetic models\n",
        f"Drawn with seeds {HELD_OUT_SEED} and up, which neither training nor tuning used; columns as above.\n",
        _table(rows, columns, cells),
        "`python tools/reproduce_paper.py --held-out`\n",
    ]


# Verdicts


def _verdict(rows: Rows) -> str:
    both = {name: row for name, row in rows.items() if "default" in row}
    if not both:
        return "not run."
    proven = {name: row for name, row in both.items() if _proven(row) == "yes"}
    ratios = [_ratio(_at(row, "default"), _best(row)) for row in proven.values()]
    good = sum(r is not None and r <= 1.001 for r in ratios)
    seconds = [row["default"]["seconds"] for row in both.values() if row["default"].get("seconds")]
    beaten = [name for name, row in both.items() if _loses(row)]
    text = (
        f"of {len(both)} rows the optimum is proven on {len(proven)}, and the default search returns it (at most 1.001 "
        f"x) on {good} of these, in {statistics.median(seconds):.0f} s (median) and {max(seconds):.0f} s (longest). "
    )
    for name, row in both.items():
        bound = row["default"].get("bound")
        if name not in proven and bound:
            text += f"On {name} it is at most {_percent(_ratio(_at(row, 'default'), bound))} above the optimum. "
    text += f"Rows on which a baseline is faster than the default search: {', '.join(beaten) or 'none'}."
    agent = {name: _ratio((_dqn(row) or {}).get("step_seconds"), _best(row)) for name, row in rows.items() if _dqn(row)}
    if agent:
        one, five = (sum(r is not None and r <= limit for r in agent.values()) for limit in (1.01, 1.05))
        longest = max(cell["seconds"] for row in rows.values() if (cell := _dqn(row)) and cell.get("seconds"))
        text += (
            f" `search=dqn`: at most 1.01 x the optimum on {one} and at most 1.05 x on {five} of {len(agent)} rows, in "
            f"at most {longest:.0f} s; the median of {_seeds(rows)}."
        )
    return text


def _misses(rows: Rows) -> str:
    """Where `search=dqn` is more than 1 % above the optimum, and how its plan differs."""
    lines = []
    for name, row in rows.items():
        dqn, best = _dqn(row), _best(row)
        ratio = _ratio((dqn or {}).get("step_seconds"), best)
        if dqn and (ratio is None or ratio > 1.01):
            optimal = next((row[m].get("plan") for m in ("oracle", "default") if _at(row, m) == best), None)
            lines.append(
                f"- {name}: {_percent(ratio)} above. The agent's plan: {dqn.get('plan')}; the optimal one: {optimal}. "
                + _why(dqn.get("plan"), optimal)
            )
    return ("Misses of `search=dqn` (more than 1 %):\n\n" + "\n".join(lines) + "\n") if lines else ""


def _why(own: str | None, optimal: str | None) -> str:
    if own is None or optimal is None:
        return ""
    if own == optimal:
        return "They differ in groups or cuts only: hill-climbing changes at most two groups, or one cut, at a time."
    return "They differ in mesh, stages or micro-batches: a local optimum that single changes do not leave."


def _loses(row: Cells) -> bool:
    own = _at(row, "default")
    known = [t for name, t in row["default"].get("baselines", {}).items() if t is not None and name != "single"]
    return bool(known) and (own is None or any(t < own * (1 - 1e-9) for t in known))


# Cells


def _dqn(row: Cells) -> Cell | None:
    """The run of median step time over the seeds that are done."""
    runs = [row[f"dqn-{seed}"] for seed in SEEDS if f"dqn-{seed}" in row]
    runs.sort(key=lambda cell: math.inf if cell["step_seconds"] is None else cell["step_seconds"])
    return runs[len(runs) // 2] if runs else None


def _seeds(rows: Rows) -> str:
    """How many seeds of `search=dqn` the rows have."""
    counts = {sum(f"dqn-{seed}" in row for seed in SEEDS) for row in rows.values()} - {0}
    told = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{max(counts)}"
    return f"{told} seed{'s' * (max(counts) > 1)} of {len(SEEDS)}"


def _at(row: Cells, column: str) -> float | None:
    return row.get(column, {}).get("step_seconds")


def _best(row: Cells) -> float | None:
    """The best plan that any search of the row found: the optimum where one of them proved it."""
    known = [_at(row, column) for column in ("oracle", "default", *(f"dqn-{seed}" for seed in SEEDS))]
    return min((t for t in known if t is not None), default=None)


def _proven(row: Cells) -> str:
    return "yes" if any(row.get(column, {}).get("proven") for column in ("oracle", "default")) else "no"


def _optimum(row: Cells) -> str:
    best = _best(row)
    if best is None or _proven(row) == "yes":
        return _seconds(best)
    bounds = [b for column in ("oracle", "default") if (b := row.get(column, {}).get("bound"))]
    return f"{_seconds(best)} (bound {_seconds(max(bounds))})" if bounds else f"{_seconds(best)} (not proven)"


def _box() -> float:
    return float(BOX.removesuffix("s"))


def _ratio(own: float | None, best: float | None) -> float | None:
    return None if own is None or best is None else own / best


def _step(row: Cells, column: str) -> str:
    return _seconds(_at(row, column)) if column in row else ""


def _seconds_of(cell: Cell | None) -> str:
    return "" if cell is None else _seconds(cell["step_seconds"])


def _seconds(value: float | None) -> str:
    return "—" if value is None else f"{value:.4g}"


def _percent(ratio: float | None) -> str:
    return "—" if ratio is None else f"{100 * (ratio - 1):.1f} %"


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if isinstance(value, float) else f"{value:,}"


def _table(rows: Rows, columns: Sequence[str], cells: Callable[[Cells], list[str]]) -> str:
    return _lines(("model / hosts", *columns), [[name, *cells(row)] for name, row in rows.items()])


def _lines(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    made = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    return "\n".join(made + [f"| {' | '.join(line)} |" for line in lines]) + "\n"
