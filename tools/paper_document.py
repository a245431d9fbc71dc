"""`docs/paper.md`: tables of the cells that `tools/reproduce_paper.py` has run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from tools.paper_cells import (
    Cells,
    Rows,
    best_of,
    best_plan_of,
    between,
    bound_of,
    box,
    count,
    dqn_gap,
    dqn_of,
    effort,
    gap,
    is_proven,
    lines,
    optimum,
    percent,
    ratio,
    seconds,
    seeds_of,
    step,
    step_of,
    table,
)
from tools.reproduce_paper import (
    ABLATED,
    ABLATION_BOX,
    BOX,
    DQN_BOX,
    FEWEST_PLANS,
    FINE_TUNING,
    HELD_OUT,
    HELD_OUT_SEED,
    HOSTS,
    MODELS,
    ORACLE_BOX,
    PROOF_BOX,
    ROOT,
    SWITCHES,
    at,
    cells_of,
)

DOCUMENT = ROOT / "docs" / "paper.md"
# Columns of the oracle alone, and those that end within its box.
ALONE, QUICK = ("oracle", "proof"), ("default", "oracle")
BASELINES = ("single", "data_parallel", "zero_data_parallel", "megatron", "pipeline")
EVALUATIONS = 500
# By family: how its rows begin, and what the paper says of the agent without fine-tuning.
FAMILIES: dict[str, tuple[str | tuple[str, ...], str]] = {
    "BERT": ("bert", "optimal"),
    "T5": ("t5", "optimal but for T5-11B"),
    "GPT-2": ("gpt2", "no such model"),
    "CNNs": (("resnet", "vgg"), "not optimal"),
}

HEADER = f"""\
# The paper's experiments

Written by `tools/reproduce_paper.py` (`--held-out` for the synthetic rows; `--column` and `--only` run a part of it).
Models are the recipes of the same names, clusters are 1 to 8 hosts of eight V100 with NVLink and 25 GbE between hosts,
as in Auto-MAP (Wang et al., arXiv 2007.04069). Step times are **predicted** by our cost model
([estimates.md](estimates.md) holds it against XLA); what is measured here is the search. All searches of a row see the
same cost model and the same space: stages, cuts, micro-batches, schedule, mesh, storage, one choice a linkage group.

- Seconds are **CPU time of one process** (`time.process_time`), so that other work on the machine does not count. Every
  search begins with a cost model that has priced nothing. Capturing and analysing a step is not included.
- *Optimum*: proven over the whole space, by the oracle within {ORACLE_BOX}, or within {PROOF_BOX} where the document
  says so; else the best plan known, with what is proven to be a lower bound. A gap is to the optimum, or to the best
  plan known where it is not proven. A plan is proven optimal when no other is faster by more than 0.01 %.
- `search=dqn` is the agent with upper confidence bounds and hill-climbing, at most {DQN_BOX}, the median of the seeds
  that were run. The default search is `search=portfolio`, at most {ORACLE_BOX}.
- Cells of a row that were made with another version of the cost model than its newest one are left out.
- —: no plan that fits was found, or the baseline does not fit. A blank: the cell has not been run.
"""


def write() -> None:
    rows = {f"{model}/{n}": cells_of(f"{model}/{n}") for model in MODELS for n in HOSTS}
    synthetic = {f"synthetic/{k}": cells_of(f"synthetic/{k}") for k in range(HELD_OUT)}
    few = [name for found in (rows, synthetic) for name, row in found.items() if not _counts(row)]
    left_out = f"Rows with fewer than {FEWEST_PLANS} plans that fit, which do not count: {', '.join(few) or 'none'}.\n"
    rows, synthetic = ({n: c for n, c in found.items() if c and _counts(c)} for found in (rows, synthetic))
    parts = [HEADER, left_out, *_first_question(rows), *_second_question(rows), *_third_question(rows)]
    parts += [*_fourth_question(rows), *_fifth_question(rows, synthetic), *_equal(rows), *_held_out(synthetic)]
    DOCUMENT.write_text("\n".join([*parts, *_verified(rows)]))


def _counts(row: Cells) -> bool:
    return bool(row.get("size", {}).get("feasible", math.inf) >= FEWEST_PLANS)


# The questions


def _first_question(rows: Rows) -> list[str]:
    names = ("single device", "pure DP", "ZeRO-DP", "Megatron TP x DP", "even pipeline")

    def cells(row: Cells) -> list[str]:
        known = next((c["baselines"] for c in row.values() if "baselines" in c), {})
        ways = [seconds(known.get(name)) if known else "" for name in BASELINES]
        dqn = dqn_of(row)
        agent = [step(row, "zero_shot"), step(row, "fine_tuned"), "" if dqn is None else seconds(dqn["step_seconds"])]
        return [*ways, step(row, "random"), step(row, "anneal"), *agent, step(row, "default"), optimum(row)]

    def efforts(row: Cells) -> list[str]:
        plans = f"{float(row['size']['plans']):.1e}" if "size" in row else ""
        alone = [effort(row.get(name)) for name in ("random", "anneal", "zero_shot", "fine_tuned")]
        proofs = [effort(row.get(name)) + ("" if row[name]["proven"] else ", open") for name in ALONE if name in row]
        return [
            plans,
            *alone,
            effort(dqn_of(row)),
            effort(row.get("default")),
            "; ".join(proofs),
            best_plan_of(row) or "",
        ]

    columns = (*names, "random", "annealing", "zero-shot", "fine-tuned", "`dqn`", "default", "optimum")
    searches = ("plans", "random", "annealing", "zero-shot", "fine-tuned", "`dqn`", "default", "oracle", "optimal plan")
    return [
        "## RQ1: are good plans found with no hand design?\n",
        "The paper: yes, within two hours. Here: "
        f"{_verdict(rows)}\n\nPredicted seconds a step; random search and annealing after {BOX} of CPU time.\n",
        table(rows, columns, cells),
        "How much work each took: CPU seconds / different plans evaluated / episodes. *Oracle*: alone "
        "(`search=exact`); it bounds most plans and evaluates few.\n",
        table(rows, searches, efforts),
        _misses(rows),
        "`python tools/reproduce_paper.py --column dqn-0 --column dqn-1 --column dqn-2 --column default "
        "--column oracle` (random, annealing: `--column random --column anneal`; zero-shot, fine-tuned: RQ5; "
        f"proofs that take longer than {ORACLE_BOX}: `--column proof`)\n",
    ]


def _second_question(rows: Rows) -> list[str]:
    kinds: dict[str, list[str]] = {}
    for name, row in rows.items():
        shape = row.get("default", {}).get("shape")
        if shape:
            ways = [way for way, size in zip(("pipeline", "data", "operator"), shape, strict=True) if size > 1]
            kinds.setdefault(" + ".join(ways) or "none", []).append(name)
    return [
        "## RQ2: are data, operator and pipeline parallelism searched in one space?\n",
        "The paper: yes. Here: stages, the data axis and the operator axis are decisions of one space, and the plans "
        "that the default search returns combine them as they are fastest:\n",
        lines(("parallelism", "rows", "which"), [[k, str(len(v)), ", ".join(v)] for k, v in sorted(kinds.items())]),
        "`python tools/reproduce_paper.py --column default`\n",
    ]


def _third_question(rows: Rows) -> list[str]:
    def cells(row: Cells) -> list[str]:
        size = row.get("size", {})
        counts = [count(size.get(k)) for k in ("operations", "dims", "untied_groups", "groups", "blocks")]
        return [*counts, step(row, "layers"), optimum(row), gap(row, "layers")]

    gaps = [ratio(step_of(row, "layers"), best_of(row)) for row in rows.values() if "layers" in row]
    found = [g for g in gaps if g is not None]
    gained = f": it gains more than 1 % on {sum(g > 1.01 for g in found)} of {len(gaps)} rows" if found else ""
    return [
        "## RQ3: does HLO level beat layer or operator level?\n",
        "The paper: finer grain, and three front ends with one tool. Here: the best plan that decides whole layers "
        "(every layer sharded as by hand, as far as it can be, or not at all, stages cut evenly by work, each number "
        "of stages, micro-batches, schedule, mesh and storage tried) against the optimum over groups and "
        f"blocks{gained}.\n",
        table(
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
    # Switches that make episodes longer.
    longer = ("nothing", "linkage_groups", "tied_layers", "forward_only_cuts")

    def after(row: Cells, name: str) -> str:
        cell = row.get(f"without-{name}")
        if cell is None:
            return ""
        gaps = (ratio(found, best_of(row)) for found in (at(cell, seconds=box()), cell["step_seconds"]))
        return " / ".join(map(percent, gaps))

    def cells(row: Cells) -> list[str]:
        size, untied = row.get("size", {}), row.get("without-tied_layers", {})
        plans = [math.log10(size["plans"]) if size else None, untied.get("plans_log10")]
        plans += [size.get("log10_without_groups"), size.get("log10_without_forward_only")]
        episodes = [count(row.get(f"without-{name}", {}).get("episodes")) for name in longer]
        return [*("" if p is None else f"10^{p:.0f}" for p in plans), *(after(row, n) for n in SWITCHES), *episodes]

    columns = (
        *("plans", "plans, untied", "ways, no linkage groups", "ways, cuts not forward-only", "all prunings"),
        *(f"no {name.replace('_', ' ')}" for name in SWITCHES if name != "nothing"),
        *("episodes", *(f"episodes, no {name.replace('_', ' ')}" for name in longer if name != "nothing")),
    )
    return [
        "## RQ4: what does pruning bring?\n",
        "The paper: a smaller space and faster convergence. Here: the size of the space; the gap of `search=dqn` to "
        f"the optimum after {BOX} and after {ABLATION_BOX} of CPU time (or when it ended before) with one switch of "
        "`search.prune` off at a time; and how many episodes it had by then.\n",
        table(shown, columns, cells),
        "Without *tied layers* the space of plans itself is larger. With any other switch off the plans stay the same: "
        "what grows is what the agent is offered, and the rest of `search=dqn` (baselines, hill-climbing) goes on as "
        "before. Without *divisibility* it is offered what does not divide, as a dead end; without *memory bound* what "
        "cannot fit; without *balance window* cuts anywhere. Without *linkage groups* it decides every dim of a "
        "parameter in a group by itself, without *forward-only cuts* it cuts the backward part and the update by "
        "themselves; what contradicts the first dim, or the forward part's cut, is a dead end, because propagation has "
        "fixed the dim, and because a stage's backward part reads what its forward part holds, as its update does the "
        "parameters. *Ways* count all combinations of these decisions, dead ends among them; of episodes, those that "
        "end in one are counted too.\n\n"
        "`python tools/reproduce_paper.py " + " ".join(f"--column without-{name}" for name in SWITCHES) + "`\n",
    ]


def _fifth_question(rows: Rows, synthetic: Rows) -> list[str]:
    def cells(row: Cells) -> list[str]:
        gaps = [gap(row, name) for name in ("scrambled", "look_ahead", "zero_shot", "fine_tuned")]
        zero, tuned = (ratio(step_of(row, name), best_of(row)) for name in ("zero_shot", "fine_tuned"))
        need = "" if "zero_shot" not in row else "no" if zero is not None and zero <= 1.01 else "yes"
        enough = "" if "fine_tuned" not in row or need == "no" else "yes" if tuned and tuned <= 1.01 else "no"
        return [*gaps, dqn_gap(row), need, enough, count(row.get("fine_tuned", {}).get("episodes"))]

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
        table(rows, columns, cells),
        _by_family(rows),
        _worth_of_weights(rows, synthetic),
        "`python tools/reproduce_paper.py --column scrambled --column look_ahead --column zero_shot "
        "--column fine_tuned`\n",
    ]


def _by_family(rows: Rows) -> str:
    told = []
    for family, (prefix, claim) in FAMILIES.items():
        own = [row for name, row in rows.items() if name.startswith(prefix) and "zero_shot" in row]
        if not own:
            continue
        zero, tuned = (_within_one_percent(own, column) for column in ("zero_shot", "fine_tuned"))
        told.append(f"{family}: zero-shot within 1 % on {zero} (the paper: {claim}), fine-tuned on {tuned}")
    if not told:
        return ""
    return (
        "; ".join(told)
        + ". Where the two differ: the paper's agent names the split of a pipeline whose other decisions "
        "are given, ours takes every decision of a plan, and one wrong mesh costs more than a wrong cut.\n"
    )


def _within_one_percent(rows: Iterable[Cells], column: str) -> str:
    ratios = [ratio(step_of(row, column), best_of(row)) for row in rows if column in row]
    return f"{sum(r is not None and r <= 1.01 for r in ratios)} of {len(ratios)}"


def _worth_of_weights(rows: Rows, synthetic: Rows) -> str:
    """What the shipped weights are worth against none, and against random ones."""
    told = []
    for where, found in (("the recipes", rows.values()), ("the held-out synthetic models", synthetic.values())):
        for other, name in (("look_ahead", "look-ahead alone"), ("scrambled", "random weights")):
            told += _against(found, other, f"{name} on {where}")
    if not told:
        return ""
    return (
        "One greedy episode with the shipped weights, in step time (geometric mean over the rows on which both end "
        f"with a plan that fits): {'; '.join(told)}.\n"
    )


def _against(rows: Iterable[Cells], other: str, name: str) -> list[str]:
    found = between(rows, "zero_shot", other)
    if found is None:
        return []
    mean, number = found
    return [f"{abs(100 * (mean - 1)):.1f} % {'above' if mean > 1 else 'below'} {name} ({number} rows)"]


def _equal(rows: Rows) -> list[str]:
    def gaps(**limit: float) -> Callable[[Cells], list[str]]:
        def cells(row: Cells) -> list[str]:
            found = [at(row[m], **limit) if m in row else None for m in methods]
            return [percent(ratio(f, best_of(row))) if m in row else "" for m, f in zip(methods, found, strict=True)]

        return cells

    methods, names = ("random", "anneal", "dqn-0"), ("random", "annealing", "`dqn`")
    by_evaluations, by_seconds = gaps(evaluations=EVALUATIONS), gaps(seconds=box())
    return [
        "## Equal evaluations, and equal seconds\n",
        f"Gaps to the optimum of the best plan after {EVALUATIONS} different plans evaluated. All three have the "
        "baselines in the race; `dqn` (seed 0) also has its seeds and hill-climbing.\n",
        table(rows, names, by_evaluations),
        _means(rows, by_evaluations, names),
        f"After {BOX} of CPU time:\n",
        table(rows, names, by_seconds),
        _means(rows, by_seconds, names),
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
        names = ("random", "anneal", "scrambled", "look_ahead", "zero_shot", "fine_tuned")
        plans = f"{float(row['size']['plans']):.1e}" if "size" in row else ""
        took = count(row.get("default", {}).get("seconds"))
        gaps = [*(gap(row, name) for name in names), dqn_gap(row), gap(row, "default")]
        return [plans, *gaps, took, "yes" if is_proven(row) else "no"]

    columns = (
        *("plans", "random", "annealing", "random weights", "look-ahead alone", "zero-shot", "fine-tuned", "`dqn`"),
        *("default", "default s", "optimum proven"),
    )
    return [
        "## Held-out synthetic models\n",
        f"Drawn with seeds {HELD_OUT_SEED} and up, which neither training nor tuning used; columns as above.\n",
        table(rows, columns, cells),
        "`python tools/reproduce_paper.py --held-out`\n",
    ]


def _verified(rows: Rows) -> list[str]:
    """What XLA makes of the fastest plan of one stage, where that was compiled."""
    found = [(name, row["verified"]) for name, row in rows.items() if "verified" in row]
    if not found:
        return []
    told = [
        f"{name}: {cell['plan']} on {cell['devices']} devices, compiled in {cell['compile_seconds']:.0f} s (wall). A "
        f"device needs {cell['memory'] / 2**30:.2f} GiB as predicted and {cell['compiled_memory'] / 2**30:.2f} GiB as "
        f"compiled, of {cell['device_memory'] / 2**30:.0f}; collectives move {cell['collectives'] / 1e9:.2f} GB a step "
        f"as predicted and {cell['compiled_collectives'] / 1e9:.2f} GB as compiled.\n"
        for name, cell in found
    ]
    return [
        "## Verification by XLA\n",
        "A launch compiles the best plans for as many virtual CPU devices before it takes them "
        "(`search.verify_top_k`). A pipeline's stages are modules of their own and are compiled when they run; "
        "this is the fastest plan of one stage.\n",
        *told,
        "`python tools/reproduce_paper.py --column verified`\n",
    ]


# Verdicts


def _verdict(rows: Rows) -> str:
    both = {name: row for name, row in rows.items() if "default" in row}
    if not both:
        return "not run."
    proven = {name: row for name, row in both.items() if is_proven(row)}
    later = {n: row["proof"] for n, row in proven.items() if not any(row.get(c, {}).get("proven") for c in QUICK)}
    ratios = [ratio(step_of(row, "default"), best_of(row)) for row in proven.values()]
    good = sum(r is not None and r <= 1.001 for r in ratios)
    cells = [row["default"] for row in both.values() if row["default"].get("curve")]
    ends, finds = [cell["seconds"] for cell in cells], [cell["found_at"] for cell in cells]
    text = (
        f"of {len(both)} rows the optimum is proven on {len(proven)}, and the default search returns it (at most 1.001 "
        f"x) on {good} of these. "
    )
    if cells:
        text += (
            f"It ends after {statistics.median(ends):.0f} s (median; longest {max(ends):.0f} s), and comes upon the "
            f"plan that it returns after {statistics.median(finds):.1f} s (longest {max(finds):.0f} s). "
        )
    for name, cell in later.items():
        text += f"On {name} it does not prove it within its box; the oracle does in {cell['seconds']:.0f} s. "
    for name, row in both.items():
        if name not in proven and bound_of(row):
            text += (
                f"On {name} it is at most {percent(ratio(step_of(row, 'default'), bound_of(row)))} above the optimum. "
            )
    beaten = [name for name, row in both.items() if _loses(row)]
    text += f"Rows on which a baseline is faster than the default search: {', '.join(beaten) or 'none'}."
    agent = {name: ratio(dqn["step_seconds"], best_of(row)) for name, row in rows.items() if (dqn := dqn_of(row))}
    if agent:
        one, five = (sum(r is not None and r <= limit for r in agent.values()) for limit in (1.01, 1.05))
        longest = max(cell["seconds"] for row in rows.values() if (cell := dqn_of(row)) and cell.get("seconds"))
        text += (
            f" `search=dqn`: at most 1.01 x the optimum on {one} and at most 1.05 x on {five} of {len(agent)} rows, in "
            f"at most {longest:.0f} s; the median of {seeds_of(rows)}."
        )
    return text


def _misses(rows: Rows) -> str:
    """Where `search=dqn` is more than 1 % above the optimum, and how its plan differs."""
    found = []
    for name, row in rows.items():
        dqn, optimal = dqn_of(row), best_plan_of(row)
        above = ratio((dqn or {}).get("step_seconds"), best_of(row))
        if dqn and (above is None or above > 1.01):
            found.append(
                f"- {name}: {percent(above)} above. The agent's plan: {dqn.get('plan')}; the optimal one: {optimal}. "
                + _why(dqn.get("plan"), optimal)
            )
    if not found:
        return "Misses of `search=dqn` (more than 1 %): none.\n" if any(map(dqn_of, rows.values())) else ""
    return "Misses of `search=dqn` (more than 1 %):\n\n" + "\n".join(found) + "\n"


def _why(own: str | None, optimal: str | None) -> str:
    if own is None or optimal is None:
        return ""
    if own == optimal:
        return "They differ in groups or cuts only, by more than the two small steps that hill-climbing takes at once."
    return "They differ in mesh, stages or micro-batches: a local optimum that hill-climbing's steps do not leave."


def _loses(row: Cells) -> bool:
    own = step_of(row, "default")
    known = [t for name, t in row["default"].get("baselines", {}).items() if t is not None and name != "single"]
    return bool(known) and (own is None or any(t < own * (1 - 1e-9) for t in known))
