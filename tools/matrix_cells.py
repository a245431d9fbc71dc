"""The cells of `verify_matrix.py`: which model, optimizer and plan, and what each must do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from typing import Any, Literal

import jax.numpy as jnp
import optax

from tests.split.models import Model, lm, mlp
from tests.split.more_models import cnn, encoder_decoder, rnn

Precision = Literal["f32", "f64"]
PRECISIONS: tuple[Precision, ...] = ("f32", "f64")
Sabotage = Literal["none", "dropped", "scaled"]


@dataclass(frozen=True)
class PlanCase:
    """A plan: `stages` x `data` x `model` devices, the batch in `micro_batches`."""

    data: int
    model: int
    stages: int = 1
    micro_batches: int = 1
    schedule: str = "none"

    @property
    def is_split(self) -> bool:
        return self.stages > 1 or self.micro_batches > 1


def _mlp(optimizer: Any) -> Model:
    return mlp(layers=8, dtype=jnp.zeros(()).dtype, optimizer=optimizer)


# Deep enough for eight stages, whose blocks the analysis finds. Seven layers in one array: no plan divides them.
MODELS: dict[str, Callable[[Any], Model]] = {
    "mlp": _mlp,
    "tied_lm": lambda optimizer: lm(optimizer=optimizer, masked=True),
    "scan_remat_lm": lambda optimizer: lm(layers=7, optimizer=optimizer, scan=True, remat=True),
    "dropout_lm": lambda optimizer: lm(optimizer=optimizer, dropout=0.3),
    "encoder_decoder": encoder_decoder,
    "cnn_group_norm": lambda optimizer: cnn(optimizer, blocks=5),
    "rnn": lambda optimizer: rnn(optimizer, layers=4),
}
# Judged apart: under a plan that cuts the batch its right answer is a refusal.
BATCH_NORM = "cnn_batch_norm"
# Rows of a batch are told apart by their position, so that permuting them is no control: the tolerance alone counts.
BY_POSITION = frozenset(("dropout_lm",))


def adafactor(rate: float) -> Any:
    """`optax.adafactor` with its decay in the step's own precision: there it is a power in float32 whatever the step
    is in, which XLA rounds one way or the other as it happens to compile it."""

    def decay(step: Any, exponent: float) -> Any:
        return 1 - (step + jnp.ones(())) ** -exponent

    return optax.chain(
        optax.scale_by_factored_rms(min_dim_size_to_factor=8, decay_rate_fn=decay),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(),
        optax.scale(-rate),
    )


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd_momentum": lambda: optax.sgd(0.05, momentum=0.9),
    "adam": lambda: optax.adam(1e-2),
    "adamw_clip": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2)),
    "adafactor": lambda: adafactor(1e-2),
    "lion": lambda: optax.lion(1e-3),
}

PLANS: dict[str, PlanCase] = {
    "DP8": PlanCase(8, 1),
    "TP8": PlanCase(1, 8),
    "DP4xTP2": PlanCase(4, 2),
    "PP4xDP2": PlanCase(2, 1, 4, 4, "1f1b"),
    "PP2xDP2xTP2": PlanCase(2, 2, 2, 4, "gpipe"),
    "PP8": PlanCase(1, 1, 8, 8, "zero_bubble"),
    "accumulate4": PlanCase(4, 2, micro_batches=4),
}


@dataclass(frozen=True, order=True)
class Cell:
    """`sabotage`: how the run is spoilt, which the comparison must notice. `refused`: a piece of the reason for which
    the plan must be refused; empty where the run must equal the plain one."""

    model: str
    optimizer: str
    plan: str
    sabotage: Sabotage = "none"

    @property
    def name(self) -> str:
        parts = [self.model, self.optimizer, self.plan]
        return "/".join(parts if self.sabotage == "none" else [*parts, self.sabotage])

    @property
    def refused(self) -> str:
        if self.model == BATCH_NORM and PLANS[self.plan].is_split:
            return "over the batch"  # each example is normalised by statistics of all
        return ""

    def make(self) -> Model:
        make = partial(cnn, norm="batch") if self.model == BATCH_NORM else MODELS[self.model]
        return make(OPTIMIZERS[self.optimizer]())


def judged() -> list[Cell]:
    """A pairwise cover of models, optimizers and plans, and batch norm under every plan."""
    optimizers, plans = list(OPTIMIZERS), list(PLANS)
    cover = [Cell(*row[:3]) for row in pairwise_cover([list(MODELS), optimizers, plans])]
    norms = [Cell(BATCH_NORM, optimizers[k % len(optimizers)], plan) for k, plan in enumerate(plans)]
    return cover + norms


def controls() -> list[Cell]:
    """Runs that are spoilt on purpose: a micro-batch is dropped, gradients are off by a thousandth."""
    spoilt: tuple[Sabotage, ...] = ("dropped", "scaled")
    cells = (("mlp", "adam", "accumulate4"), ("tied_lm", "adamw_clip", "PP4xDP2"), ("rnn", "sgd_momentum", "PP8"))
    return [Cell(*cell, sabotage) for cell in cells for sabotage in spoilt]


def pairwise_cover(factors: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Rows in which every two values of different factors meet, by a greedy choice: always the row with most pairs
    that have not met, the first of equals. The same rows in the same order every time."""
    rows = list(product(*factors))
    missing = {pair for row in rows for pair in _pairs(row)}
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(missing & _pairs(row)))
        chosen.append(best)
        missing -= _pairs(best)
    return chosen


def _pairs(row: Sequence[str]) -> set[tuple[int, str, int, str]]:
    return {(i, row[i], j, row[j]) for i, j in combinations(range(len(row)), 2)}


def from_name(name: str) -> Cell:
    """The cell of a name.

    Raises:
      ValueError: there is no such model, optimizer or plan.
    """
    parts: list[Any] = name.split("/")
    known: list[Mapping[str, Any]] = [{**MODELS, BATCH_NORM: cnn}, OPTIMIZERS, PLANS, {"dropped": 0, "scaled": 0}]
    if not 3 <= len(parts) <= 4 or any(part not in of for part, of in zip(parts, known, strict=False)):
        raise ValueError(f"no cell is named {name!r}: expected MODEL/OPTIMIZER/PLAN, as listed by --list")
    return Cell(*parts)
