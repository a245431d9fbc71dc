"""Writes `docs/paper.md`: the search on the models and clusters of the Auto-MAP paper, against a proven optimum.

    python tools/reproduce_paper.py                          # every row that is not done yet, then the document
    python tools/reproduce_paper.py --only t5_11b --hosts 8  # some rows
    python tools/reproduce_paper.py --held-out               # the held-out synthetic models as well
    python tools/reproduce_paper.py --write                  # the document from the rows that are done

Each model is the recipe's script, captured as a launch does, once; programs and rows are kept in `outputs/paper/`.
Seconds are of CPU time of one core, so that a busy machine does not change the table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import yaml  # noqa: E402

from automap_launch.cluster.file import load_cluster  # noqa: E402
from automap_launch.errors import NoPlanFitsError  # noqa: E402
from automap_launch.frontends.capture import capture  # noqa: E402
from automap_launch.frontends.config import FrontendConfig  # noqa: E402
from automap_launch.plan.cost import CostModel  # noqa: E402
from automap_launch.plan.decision import Decision  # noqa: E402
from automap_launch.plan.pins import Pins  # noqa: E402
from automap_launch.program.analyse import analyse  # noqa: E402
from automap_launch.program.program import Program  # noqa: E402
from automap_launch.search.agent import Agent  # noqa: E402
from automap_launch.search.config import AgentConfig, PinConfig, PruningConfig, SearchConfig  # noqa: E402
from automap_launch.search.environment import Environment  # noqa: E402
from automap_launch.search.evaluator import Evaluator, Limits, SearchEnd  # noqa: E402
from automap_launch.search.search import SearchResult, search  # noqa: E402
from automap_launch.search.space import CostModel as Costs  # noqa: E402
from automap_launch.search.space import PlanSpace  # noqa: E402
from automap_launch.search.synthetic import Distribution, draw  # noqa: E402
from automap_launch.search.weights import pretrained_agent  # noqa: E402
from automap_launch.train_step import Entry, TrainStep  # noqa: E402

DOCUMENT = ROOT / "docs" / "paper.md"
FOLDER = ROOT / "outputs" / "paper"
MODELS = ("bert_large", "bert_48", "t5_base", "t5_3b", "t5_11b", "gpt2_xl", "resnet50", "vgg19")
HOSTS = (1, 2, 4, 8)
BASELINES = ("single", "data_parallel", "zero_data_parallel", "megatron", "pipeline")
# Rows with fewer plans say nothing about a search.
FEWEST_PLANS = 100
HELD_OUT_SEED, HELD_OUT = 30_000, 12


@dataclass(frozen=True)
class Bounds:
    """What each search of a row may use. `seconds`: of CPU time."""

    oracle: str = "120s"
    default: str = "60s"
    dqn: str = "60s"
    equal_seconds: str = "15s"
    equal_evaluations: int = 1000
    seeds: int = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="MODEL", action="append", choices=MODELS)
    parser.add_argument("--hosts", metavar="N", type=int, action="append", choices=HOSTS)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--seeds", type=int, default=Bounds.seeds)
    options = parser.parse_args()
    rows = Rows(FOLDER / "rows.json")
    if not options.write:
        bounds = Bounds(seeds=options.seeds)
        for name, model in problems(options.only or MODELS, options.hosts or HOSTS, rows):
            rows.add(name, row_of(model, Pins.resolve(PinConfig(), model.program, model.cluster), bounds))
        if options.held_out:
            for name, synthetic in held_out(rows):
                rows.add(name, row_of(synthetic, synthetic.pins, bounds))
    DOCUMENT.write_text(document(rows.all))
    return 0


class Rows:
    """Results by row, on disk after each."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.all: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}

    def add(self, name: str, row: dict[str, Any]) -> None:
        self.all[name] = row
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self.all, indent=1) + "\n")
        print(name, json.dumps({k: v for k, v in row.items() if k != "baselines"}), flush=True)


def problems(models: tuple[str, ...], hosts: tuple[int, ...], rows: Rows) -> Iterator[tuple[str, CostModel]]:
    """Rows that are not done yet."""
    for model in models:
        left = [n for n in hosts if f"{model}/{n}" not in rows.all]
        program = program_of(model) if left else None
        for n in left:
            assert program is not None
            cluster = load_cluster(ROOT / "conf" / "cluster" / f"v100_{n}x8.yaml")
            yield f"{model}/{n}", CostModel(program, cluster)


def program_of(model: str) -> Program:
    folder = FOLDER / "steps" / model
    if not (folder / "step.json").exists():
        recipe = yaml.safe_load((ROOT / "recipes" / f"{model}.yaml").read_text())
        entry = Entry(str(ROOT / "recipes" / recipe["entry"]["script"]), args=tuple(map(str, recipe["entry"]["args"])))
        return analyse(capture(entry, FrontendConfig(), ["cpu", "cuda"], folder, FOLDER / f"{model}.log"))
    return analyse(TrainStep.load(folder))


def held_out(rows: Rows) -> Iterator[tuple[str, Any]]:
    """Synthetic models that were used neither for training nor for tuning anything."""
    rng = np.random.default_rng(HELD_OUT_SEED)
    for number in range(HELD_OUT):
        model = draw(rng, Distribution())
        if f"synthetic/{number}" not in rows.all:
            yield f"synthetic/{number}", model


def row_of(model: Costs, pins: Pins, bounds: Bounds) -> dict[str, Any]:
    """All columns of one row."""
    space = PlanSpace(model.program, pins)
    row: dict[str, Any] = {"plans": space.size, "devices": space.devices}
    given = None if isinstance(model, CostModel) else simple_baselines(model)

    def run(method: str, budget: str, seed: int = 0, **config: Any) -> SearchResult | None:
        settings = SearchConfig(method=method, budget=budget, patience=None, seed=seed, **config)
        try:
            return search(model, settings, pins, baselines=given, clock=time.process_time)
        except NoPlanFitsError:
            return None

    oracle = run("exact", bounds.oracle)
    if oracle is None:
        return {**row, "fits": False}
    row["baselines"] = {n: e.step_seconds if e and e.fits else None for n, e in oracle.baselines.items()}
    row["oracle"] = {**told(oracle), "proven": oracle.proven_optimal, "bound": oracle.lower_bound_step_seconds}
    default = run("portfolio", bounds.default)
    row["default"] = told(default)
    row["default"]["proven"] = default.proven_optimal if default else False
    patient = AgentConfig(epsilon_episodes=30, round_episodes=60)
    row["dqn"] = median([told(run("dqn", bounds.dqn, seed, agent=patient)) for seed in range(bounds.seeds)])
    for method in ("random", "anneal", "dqn"):
        row[f"{method}_equal_evaluations"] = told(run(method, "1h", max_evaluations=bounds.equal_evaluations))
        row[f"{method}_equal_seconds"] = told(run(method, bounds.equal_seconds))
    row["zero_shot"] = alone(
        model, space, bounds.equal_seconds, lambda: pretrained_agent(AgentConfig(), 0), learn=False
    )
    row["agent_alone"] = alone(model, space, bounds.equal_seconds, lambda: pretrained_agent(AgentConfig(), 0))
    row["untrained_alone"] = alone(model, space, bounds.equal_seconds, lambda: Agent(AgentConfig(), 0))
    wide = run("dqn", bounds.equal_seconds, agent=patient, pruning=PruningConfig(balance_window=None))
    row["no_balance_window"] = told(wide)
    return row


def simple_baselines(model: Costs) -> dict[str, Decision | None]:
    devices, batch = model.cluster.devices, model.program.groups[0].divisor
    divides = batch % devices == 0
    return {
        "single": Decision(1, 1),
        "data_parallel": Decision(devices, 1) if divides else None,
        "zero_data_parallel": Decision(devices, 1, storage="state") if divides else None,
    }


def alone(
    model: Costs, space: PlanSpace, budget: str, make: Callable[[], Agent], *, learn: bool = True
) -> dict[str, Any]:
    """The plain network without seeds, upper confidence bounds and hill-climbing: the plans its episodes end with."""
    evaluator = Evaluator(model, space, Limits(seconds=float(budget.removesuffix("s"))), clock=time.process_time)
    environment, agent = Environment(evaluator), make()
    best, found, stale = float("inf"), 0.0, 0
    episode = 0
    try:
        while stale < (50 if learn else 1):
            episode += 1
            if episode == 1 or not learn:
                agent.roll_out(environment)
            else:
                agent.run_episode(environment)
            estimate = evaluator.estimate(environment.decision)
            stale += 1
            if estimate.fits and estimate.step_seconds < best:
                best, found, stale = estimate.step_seconds, evaluator.seconds, 0 if learn else 1
    except SearchEnd:
        pass
    return {
        "step_seconds": None if best == float("inf") else best,
        "seconds": round(found, 2),
        "evaluations": evaluator.evaluations,
        "episodes": episode,
    }


def told(result: SearchResult | None) -> dict[str, Any]:
    if result is None:
        return {"step_seconds": None, "seconds": None, "evaluations": None, "episodes": None}
    return {
        "step_seconds": result.estimate.step_seconds,
        "seconds": round(result.seconds, 2),
        "evaluations": result.evaluations,
        "episodes": result.episodes,
        "found_by": result.found_by,
        "agent_gap": result.agent.gap if result.agent else None,
        "plan": describe(result.decision),
    }


def describe(decision: Decision) -> str:
    storage = {"none": "", "optimizer": " zero-1", "state": " zero-3"}[decision.storage]
    stages = f"{decision.stages} stages ({decision.schedule}, {decision.micro_batches}) x " if decision.cuts else ""
    return f"{stages}{decision.data} data x {decision.model} model{storage}"


def median(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The run of median step time."""
    fitting = sorted((r for r in results if r["step_seconds"] is not None), key=lambda r: float(r["step_seconds"]))
    return fitting[len(fitting) // 2] if fitting else results[0]


HEADER = """\
# The paper's experiments

Written by `python tools/reproduce_paper.py --held-out`. Models are recipes, clusters are hosts of eight V100 of 32 GB
with NVLink and 25 GbE between hosts, as in Auto-MAP (Wang et al., arXiv 2007.04069). Step times are **predicted** by
our cost model (`docs/estimates.md` holds that against XLA); what is measured here is the search. Seconds are CPU time
of one core. Every search sees the same cost model and the same space: stages, cuts, micro-batches, schedule, mesh,
storage, and one choice a linkage group. *Optimum* is proven by the oracle unless a bound is given.
"""


def document(rows: dict[str, dict[str, Any]]) -> str:
    shown = {n: r for n, r in rows.items() if r.get("fits", True)}
    counted = {n: r for n, r in shown.items() if r["plans"] >= FEWEST_PLANS}
    parts = [HEADER, f"{len(shown)} of {len(MODELS) * len(HOSTS) + HELD_OUT} rows are done.\n"]
    missing = [n for n, r in rows.items() if not r.get("fits", True)]
    if missing:
        parts.append(f"No plan fits, and the oracle says so: {', '.join(missing)}.\n")
    parts.append("## RQ1: are good plans found with no hand design?\n\nSeconds a step; — where it does not fit.\n")
    parts.append(table(shown, ("plans", *BASELINES, "default search", "optimum", "the plan"), _step_times))
    parts.append(_verdict(counted))
    parts.append("## RQ2: are data, operator and pipeline parallelism searched in one space?\n")
    kinds = [r["default"].get("plan") or "" for r in counted.values()]
    parts.append(
        f"Of {len(kinds)} plans that the default search returned, {sum('stages' in k for k in kinds)} are pipelines, "
        f"{sum('x 1 model' not in k for k in kinds)} shard groups over `model`, and "
        f"{sum('zero' in k for k in kinds)} store state sharded; the last column of the table above names each.\n"
    )
    parts.append(
        "## RQ3: does HLO level beat layer or operator level?\n\nNot measured as such: there is no layer-level search "
        "here to compare with. What carries over is that one search serves JAX, TensorFlow and Trax scripts, since all "
        "arrive as StableHLO (`docs/styles.md`, `tests/frontends`).\n"
    )
    parts.append("## RQ4: what does pruning bring?\n\nGap to the optimum after equal CPU seconds of `search=dqn`.\n")
    parts.append(
        table(
            counted,
            ("balance window", "no window"),
            lambda r: [_gap(r, "dqn_equal_seconds"), _gap(r, "no_balance_window")],
        )
    )
    parts.append("## RQ5: does a pre-trained agent generalise?\n\nGap to the optimum, and episodes.\n")
    parts.append(
        table(counted, ("zero-shot", "agent alone", "untrained alone", "`search=dqn`", "episodes", "seconds"), _agents)
    )
    parts.append("## The same number of evaluations, and the same seconds\n\nGap to the optimum.\n")
    methods = [f"{m}_equal_{what}" for what in ("evaluations", "seconds") for m in ("random", "anneal", "dqn")]
    names = tuple(m.replace("_equal_", ", equal ") for m in methods)
    parts.append(table(counted, names, lambda r: [_gap(r, m) for m in methods]))
    return "\n".join(parts)


def table(
    rows: dict[str, dict[str, Any]], columns: tuple[str, ...], cells: Callable[[dict[str, Any]], list[str]]
) -> str:
    lines = [f"| model / hosts | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    lines += [f"| {name} | {' | '.join(cells(row))} |" for name, row in rows.items()]
    return "\n".join(lines) + "\n"


def _step_times(row: dict[str, Any]) -> list[str]:
    optimum = _seconds(row["oracle"]["step_seconds"])
    if not row["oracle"]["proven"]:
        optimum += f" (bound {_seconds(row['oracle']['bound'])})"
    times = [_seconds(row["baselines"].get(name)) for name in BASELINES]
    return [
        f"{row['plans']:.1e}",
        *times,
        _seconds(row["default"]["step_seconds"]),
        optimum,
        row["default"].get("plan") or "",
    ]


def _agents(row: dict[str, Any]) -> list[str]:
    gaps = [_gap(row, name) for name in ("zero_shot", "agent_alone", "untrained_alone", "dqn")]
    return [*gaps, str(row["dqn"]["episodes"]), str(row["dqn"]["seconds"])]


def _verdict(rows: dict[str, dict[str, Any]]) -> str:
    if not rows:
        return ""
    ratios = {m: [_ratio(r, m) for r in rows.values()] for m in ("default", "dqn")}
    worse = [n for n, r in rows.items() if _ratio(r, "default") > 1 and _loses(r)]
    seconds = [r["default"]["seconds"] for r in rows.values() if r["default"]["seconds"] is not None]
    within = {
        (method, limit): sum(ratio <= limit for ratio in found)
        for method, found in ratios.items()
        for limit in (1.001, 1.01, 1.05)
    }
    return (
        f"Default search: at most 1.001 x the best known on {within['default', 1.001]} of {len(rows)} rows, in "
        f"{statistics.median(seconds):.0f} s (median), {max(seconds):.0f} s (longest). `search=dqn`: at most 1.01 x on "
        f"{within['dqn', 1.01]}, at most 1.05 x on {within['dqn', 1.05]} (median of the seeds). Rows on which a "
        f"baseline beats the default search: {', '.join(worse) or 'none'}.\n"
    )


def _loses(row: dict[str, Any]) -> bool:
    own = row["default"]["step_seconds"]
    known = [t for name, t in row["baselines"].items() if t is not None and name != "single"]
    return own is None or any(t < own * (1 - 1e-9) for t in known)


def _ratio(row: dict[str, Any], method: str) -> float:
    """Over the best that any search of the row found."""
    best = min(row[m]["step_seconds"] for m in ("oracle", "default", "dqn") if row[m]["step_seconds"] is not None)
    own = row[method]["step_seconds"]
    return float("inf") if own is None else float(own) / float(best)


def _gap(row: dict[str, Any], method: str) -> str:
    ratio = _ratio(row, method)
    return "—" if ratio == float("inf") else f"{100 * (ratio - 1):.1f} %"


def _seconds(value: float | None) -> str:
    return "—" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
