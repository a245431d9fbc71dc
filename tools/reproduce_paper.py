"""Runs the experiments of the Auto-MAP paper, column by column, and has `docs/paper.md` written of them.

    python tools/reproduce_paper.py                                    # whatever is not done yet, then the document
    python tools/reproduce_paper.py --column random --column anneal    # some columns
    python tools/reproduce_paper.py --only t5_11b --hosts 8            # some rows
    python tools/reproduce_paper.py --held-out                         # the held-out synthetic models as well
    python tools/reproduce_paper.py --again --column oracle            # anew, with the code as it is
    python tools/reproduce_paper.py --column proof                     # longer proofs of rows that are left open
    python tools/reproduce_paper.py --write                            # the document of the cells that are done

A cell is one search on one row (a model on so many hosts). Each is kept in `outputs/paper/cells/` as soon as it is
done, so that the tool can be stopped and goes on where it was. Models are the recipes' scripts, captured once as a
launch does. Seconds are CPU time of one process, so that other work on the machine does not change the tables. Every
cell begins with a cost model that has priced nothing yet.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
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
from automap_launch.search.dqn_searcher import DQNSearcher  # noqa: E402
from automap_launch.search.environment import Environment  # noqa: E402
from automap_launch.search.evaluator import Evaluator, Limits, SearchEnd  # noqa: E402
from automap_launch.search.feasible import count_feasible  # noqa: E402
from automap_launch.search.search import SearchResult, search  # noqa: E402
from automap_launch.search.searchers import random_plan, simple_plans  # noqa: E402
from automap_launch.search.space import BoundedCostModel as Costs  # noqa: E402
from automap_launch.search.space import PlanSpace  # noqa: E402
from automap_launch.search.spared import parameter_dims  # noqa: E402
from automap_launch.search.synthetic import Distribution, draw  # noqa: E402
from automap_launch.search.weights import pretrained_agent  # noqa: E402
from automap_launch.train_step import Entry, TrainStep  # noqa: E402
from automap_launch.verification import ChildCompiler  # noqa: E402

FOLDER = ROOT / "outputs" / "paper"
MODELS = ("bert_large", "bert_48", "t5_base", "t5_3b", "t5_11b", "gpt2_xl", "resnet50", "vgg19")
HOSTS = (1, 2, 4, 8)
HELD_OUT_SEED, HELD_OUT = 30_000, 12
SEEDS = (0, 1, 2)
# CPU seconds.
BOX, DQN_BOX, ORACLE_BOX, ABLATION_BOX = "3s", "120s", "60s", "20s"
# Of a proof that took longer than the oracle's box.
PROOF_BOX = "30m"
FINE_TUNING = 64
# Rows with fewer plans that fit say nothing about a search.
FEWEST_PLANS = 100
# What each switch of `search.prune` brings is shown on these rows.
ABLATED = ("bert_large/4", "t5_base/4", "gpt2_xl/4", "resnet50/4")
# Of these, the fastest plan of one stage is compiled by XLA.
VERIFIED = ("t5_11b/8",)
SWITCHES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "linkage_groups": {"linkage_groups": False},
    "tied_layers": {"tied_layers": False},
    "forward_only_cuts": {"forward_only_cuts": False},
    "balance_window": {"balance_window": None},
    "divisibility": {"divisibility": False},
    "memory_bound": {"memory_bound": False},
}
Cell = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A model on a cluster. `make`: its cost model, with nothing priced yet, of layers that are tied or not."""

    name: str
    make: Callable[[bool], Costs]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="MODEL", action="append", choices=MODELS)
    parser.add_argument("--hosts", metavar="N", type=int, action="append", choices=HOSTS)
    parser.add_argument("--column", action="append", choices=(*COLUMNS, *ABLATIONS))
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--again", action="store_true", help="also cells that are done")
    parser.add_argument("--write", action="store_true", help="run nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.write:
        rows = [*recipe_rows(options.only or MODELS, options.hosts or HOSTS)]
        rows += [*held_out_rows()] if options.held_out else []
        for column in options.column or (*COLUMNS, *ABLATIONS):
            for row in rows:
                if row.name in ROWS_OF.get(column, (row.name,)):
                    run_cell(row, column, again=options.again)
    from tools.paper_document import write  # it reads names from here

    write()
    return 0


def run_cell(row: Row, column: str, *, again: bool = False) -> None:
    """Runs a cell that is not done, and keeps it."""
    file, tied = cell_file(row.name, column), "tied_layers" not in column
    if (file.exists() and not again) or (column == "proof" and not left_open(row.name)):
        return
    model = row.make(tied)
    cell = {**COLUMNS, **ABLATIONS}[column](model, pins_of(model))
    cell["costs"] = costs_stamp(model if tied else row.make(True))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(cell, indent=1) + "\n")
    print(row.name, column, {k: v for k, v in cell.items() if k not in ("curve", "baselines")}, flush=True)


def costs_stamp(model: Costs) -> str:
    """Tells whether two cells were made with the same cost model: a digest of what it says of a few plans."""
    rng, space = np.random.default_rng(0), PlanSpace(model.program, pins_of(model))
    estimates = model.estimate_many([random_plan(space, rng) for _ in range(8)])
    said = [(f"{e.step_seconds:.6g}", e.memory.total, e.fits) for e in estimates]
    return hashlib.sha256(repr((space.size, said)).encode()).hexdigest()[:12]


def cell_file(row: str, column: str) -> Path:
    return FOLDER / "cells" / row.replace("/", "_") / f"{column}.json"


def cells_of(row: str) -> dict[str, Cell]:
    """The cells of a row that are done, by column; without those that another cost model than the newest has made."""
    files = sorted(cell_file(row, "x").parent.glob("*.json"), key=lambda file: file.stat().st_mtime)
    cells = {file.stem: json.loads(file.read_text()) for file in files}
    newest = next((cell["costs"] for cell in reversed(cells.values()) if "costs" in cell), None)
    return {column: cell for column, cell in cells.items() if cell.get("costs") == newest}


def left_open(row: str) -> bool:
    """Whether the row was searched, and its optimum is not proven."""
    found = [cell for column, cell in cells_of(row).items() if column in ("default", "oracle")]
    return bool(found) and not any(cell.get("proven") for cell in found)


# Rows


def recipe_rows(models: tuple[str, ...], hosts: tuple[int, ...]) -> Iterator[Row]:
    for model in models:
        for n in hosts:
            yield Row(f"{model}/{n}", partial(_recipe_model, model, n))


def held_out_rows() -> Iterator[Row]:
    """Synthetic models that were used neither for training nor for tuning anything."""
    for number in range(HELD_OUT):
        yield Row(f"synthetic/{number}", partial(_held_out_model, number))


def _recipe_model(model: str, hosts: int, tie_layers: bool) -> CostModel:
    return CostModel(program_of(model, tie_layers), load_cluster(ROOT / "conf" / "cluster" / f"v100_{hosts}x8.yaml"))


def _held_out_model(number: int, tie_layers: bool) -> Costs:  # its layers are drawn tied
    return draw(np.random.default_rng(HELD_OUT_SEED + number), Distribution())


@cache
def program_of(model: str, tie_layers: bool = True) -> Program:
    """The program of a recipe's step; captured by the first call, then read from `outputs/`."""
    folder = FOLDER / "steps" / model
    if not (folder / "step.json").exists():
        recipe = yaml.safe_load((ROOT / "recipes" / f"{model}.yaml").read_text())
        entry = Entry(str(ROOT / "recipes" / recipe["entry"]["script"]), args=tuple(map(str, recipe["entry"]["args"])))
        capture(entry, FrontendConfig(), ["cpu", "cuda"], folder, FOLDER / f"{model}.log")
    return analyse(TrainStep.load(folder), tie_layers=tie_layers)


def pins_of(model: Costs) -> Pins:
    """No pins."""
    if isinstance(model, CostModel):
        return Pins.resolve(PinConfig(), model.program, model.cluster)
    return model.pins  # type: ignore[attr-defined, no-any-return]


# Columns


def searched(method: str, budget: str, model: Costs, pins: Pins, **config: Any) -> Cell:
    """One search, with nothing that ends it early but its own rules."""
    settings = SearchConfig(method=method, budget=budget, patience=None, **config)
    baselines = None if isinstance(model, CostModel) else _simple_baselines(model)
    try:
        return told(search(model, settings, pins, baselines=baselines, clock=time.process_time))
    except NoPlanFitsError:
        return {"step_seconds": None}


def patient_agent() -> AgentConfig:
    """As `search=dqn` sets it."""
    record = yaml.safe_load((ROOT / "conf" / "search" / "dqn.yaml").read_text())
    return AgentConfig(**record["agent"])


def size_of(model: Costs, pins: Pins) -> Cell:
    """How large the space is, and what of it each of the paper's prunings spares."""
    program = model.program
    space = PlanSpace(program, pins)
    dims = parameter_dims(program).total()
    groups = [max(len(space.free_groups(head.mesh[1])), 1) for head in space.heads]
    return {
        "plans": space.size,
        "feasible": count_feasible(model, space, FEWEST_PLANS),
        "devices": pins.devices,
        "operations": len(program.ops),
        "dims": sum(group is not None for dims in program.dim_groups for group in dims),
        "groups": len(program.groups),
        "untied_groups": sum(group.tied for group in program.groups),
        "blocks": len(program.blocks),
        # Were each dim of a parameter decided by itself, and were backward part and update cut apart from the forward.
        "log10_without_groups": math.log10(space.size) + (dims - max(groups)) * math.log10(2),
        "log10_without_forward_only": math.log10(
            sum(space.partition.cut_sets(h.stages) ** 3 * 2**n for h, n in zip(space.heads, groups, strict=True))
        ),
    }


def layer_level(model: Costs, pins: Pins) -> Cell:
    """The best plan that decides whole layers: sharded as by hand or not at all, cut evenly by work."""
    plans = simple_plans(PlanSpace(model.program, pins))
    fitting = [e.step_seconds for e in model.estimate_many(plans) if e.fits]
    return {"step_seconds": min(fitting, default=None), "evaluations": len(plans)}


def one_episode(make: Callable[[], Agent], model: Costs, pins: Pins) -> Cell:
    """The plan that one greedy episode ends with: no seeds, no upper confidence bounds, no hill-climbing."""
    began = time.process_time()
    evaluator = Evaluator(model, PlanSpace(model.program, pins), clock=time.process_time)
    environment = Environment(evaluator)
    make().roll_out(environment)
    estimate = evaluator.estimate(environment.decision)
    return {
        "step_seconds": estimate.step_seconds if estimate.fits else None,
        "seconds": round(time.process_time() - began, 2),
        "evaluations": evaluator.evaluations,
        "episodes": 1,
        "plan": describe(environment.decision),
    }


def agent_alone(make: Callable[[], Agent], fine_tuning: int, model: Costs, pins: Pins) -> Cell:
    """The best plan of an agent that fine-tunes, and then exploits what it learnt on the model itself; no upper
    confidence bounds and no hill-climbing."""
    evaluator = Evaluator(model, PlanSpace(model.program, pins), Limits(seconds=60), clock=time.process_time)
    searcher = DQNSearcher(make(), explore=False, hill_climbing=False, fine_tuning=fine_tuning)
    evaluator.found_by = searcher.name
    with contextlib.suppress(SearchEnd):
        searcher.run(evaluator, lambda event: None)
    return {
        "step_seconds": evaluator.best.estimate.step_seconds if evaluator.best else None,
        "seconds": round(evaluator.seconds, 2),
        "evaluations": evaluator.evaluations,
        "episodes": evaluator.episode,
        "plan": describe(evaluator.best.decision) if evaluator.best else None,
    }


def shipped() -> Agent:
    return pretrained_agent(AgentConfig(), 0)


def untrained() -> Agent:
    """Acts as the look-ahead says."""
    return Agent(AgentConfig(), 0)


def scrambled() -> Agent:
    """Random weights in place of the shipped ones."""
    agent = untrained()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in agent.online.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return agent


def ablated(switch: str, model: Costs, pins: Pins) -> Cell:
    """`search=dqn` with one pruning switched off, or none."""
    prune = PruningConfig(**SWITCHES[switch])
    space = PlanSpace(model.program, pins, prune)
    cell = searched("dqn", ABLATION_BOX, model, pins, agent=patient_agent(), prune=prune)
    return {**cell, "plans_log10": math.log10(space.size)}


def verified(model: Costs, pins: Pins) -> Cell:
    """The fastest plan of one stage, as predicted and as XLA compiles it for virtual CPU devices."""
    assert isinstance(model, CostModel), "a step that can be compiled"
    settings = SearchConfig(method="portfolio", budget=ORACLE_BOX, patience=None)
    one_stage = Pins.resolve(PinConfig(stages=1), model.program, model.cluster)
    decision = search(model, settings, one_stage, clock=time.process_time).decision
    with tempfile.TemporaryDirectory() as folder:
        model.program.step.save(Path(folder))
        began = time.monotonic()
        compiled = ChildCompiler(model, Path(folder), 600, settings.max_blocks, "10m")(decision)
    return {
        "plan": describe(decision),
        "devices": decision.devices,
        "compile_seconds": round(time.monotonic() - began, 1),
        "memory": model.estimate(decision).memory.total,
        "compiled_memory": compiled.memory,
        "device_memory": model.cluster.device.memory_bytes,
        "collectives": sum(use.bytes for use in model.breakdown(decision).collectives),
        "compiled_collectives": compiled.collectives,
    }


COLUMNS: dict[str, Callable[[Costs, Pins], Cell]] = {
    "size": size_of,
    "layers": layer_level,
    "look_ahead": partial(one_episode, untrained),
    "scrambled": partial(one_episode, scrambled),
    "zero_shot": partial(one_episode, shipped),
    "fine_tuned": partial(agent_alone, shipped, FINE_TUNING),
    "random": partial(searched, "random", BOX),
    "anneal": partial(searched, "anneal", BOX),
    **{
        f"dqn-{seed}": lambda model, pins, seed=seed: searched(
            "dqn", DQN_BOX, model, pins, seed=seed, agent=patient_agent()
        )
        for seed in SEEDS
    },
    "default": partial(searched, "portfolio", ORACLE_BOX),
    "oracle": partial(searched, "exact", ORACLE_BOX),
    "proof": partial(searched, "exact", PROOF_BOX),
    "verified": verified,
}
ABLATIONS: dict[str, Callable[[Costs, Pins], Cell]] = {f"without-{name}": partial(ablated, name) for name in SWITCHES}
ROWS_OF = {**dict.fromkeys(ABLATIONS, ABLATED), "verified": VERIFIED}


def _simple_baselines(model: Costs) -> dict[str, Decision | None]:
    """Of a synthetic model, which has no parts that a Megatron-style plan could be made of by hand."""
    devices, batch = model.cluster.devices, model.program.groups[0].divisor
    divides = batch % devices == 0
    return {
        "single": Decision(1, 1),
        "data_parallel": Decision(devices, 1) if divides else None,
        "zero_data_parallel": Decision(devices, 1, storage="state") if divides else None,
    }


def told(result: SearchResult) -> Cell:
    """A search's result. `curve`: seconds, evaluations and step seconds of every improvement."""
    return {
        "step_seconds": result.estimate.step_seconds,
        "seconds": round(result.seconds, 2),
        "evaluations": result.evaluations,
        "episodes": result.episodes,
        "found_by": result.found_by,
        "found_at": round(result.curve[-1].seconds, 2),
        "ended": result.ended,
        "proven": result.proven_optimal,
        "bound": result.lower_bound_step_seconds,
        "agent_gap": result.agent.gap if result.agent else None,
        "agent_seconds": round(result.agent.seconds, 2) if result.agent else None,
        "plan": describe(result.decision),
        "shape": [result.decision.stages, result.decision.data, result.decision.model],
        "baselines": {n: e.step_seconds if e and e.fits else None for n, e in result.baselines.items()},
        "curve": [[round(e.seconds, 2), e.evaluations, e.estimate.step_seconds] for e in result.curve],
    }


def describe(decision: Decision) -> str:
    storage = {"none": "", "optimizer": ", optimizer sharded", "state": ", state sharded"}[decision.storage]
    if decision.cuts:
        pipeline = f"{decision.stages} stages ({decision.schedule}, {decision.micro_batches} micro-batches) x "
    else:
        pipeline = f"{decision.micro_batches} micro-batches, " if decision.micro_batches > 1 else ""
    return f"{pipeline}{decision.data} data x {decision.model} model{storage}"


def at(cell: Cell, *, seconds: float = math.inf, evaluations: float = math.inf) -> float | None:
    """The best step time that a search had by then; None: no plan that fits."""
    seen = [step for when, count, step in cell.get("curve", ()) if when <= seconds and count <= evaluations]
    return seen[-1] if seen else None


if __name__ == "__main__":
    sys.exit(main())
