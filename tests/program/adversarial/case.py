"""What a small step is made of, and the list that it is put on."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

B, D, H, C = 8, 6, 10, 3
Tree = Any


@dataclass(frozen=True)
class Case:
    """A step, its state and batch, and the kind of refusal expected; None where it must be exact.

    Attributes:
      about: what it is hard about. topic: what it shares with the others of its file.
    """

    name: str
    about: str
    topic: str
    step: Callable[..., Any]
    state: tuple[Tree, ...]
    batch: tuple[Tree, ...]
    refused: str | None


CASES: list[Case] = []


def params() -> Tree:
    rng = np.random.RandomState(0)
    return {
        "w1": rng.randn(D, H).astype("f"), "b1": rng.randn(H).astype("f"), "w2": rng.randn(H, C).astype("f"),
    }  # fmt: skip


def data() -> tuple[Any, Any]:
    rng = np.random.RandomState(1)
    return rng.randn(B, D).astype("f"), rng.randint(0, C, B).astype("i")


def hidden(p: Tree, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ p["w1"] + p["b1"])


def nll(p: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
    """Loss of each example."""
    return -jnp.take_along_axis(jax.nn.log_softmax(hidden(p, x) @ p["w2"]), y[:, None], 1)[:, 0]


def sgd(p: Tree, g: Tree) -> Tree:
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, g)


def _put_on_the_list(
    written: Callable[..., Any],
    step: Callable[..., Any],
    refused: str | None,
    state: tuple[Tree, ...] = (),
    batch: tuple[Tree, ...] | None = None,
) -> None:
    """`written`: the function that the case is written as."""
    about, topic = inspect.getdoc(written), inspect.getdoc(sys.modules[written.__module__])
    if not (about and topic):
        raise ValueError(f"{written.__name__} does not say what it is hard about")
    of_state = (params(), *state)
    CASES.append(Case(written.__name__, about, topic, step, of_state, data() if batch is None else batch, refused))


def case(
    refused: str | None = None, state: tuple[Tree, ...] = (), batch: tuple[Tree, ...] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a step. `state`: after the parameters. `batch`: instead of `data()`."""

    def register(step: Callable[..., Any]) -> Callable[..., Any]:
        _put_on_the_list(step, step, refused, state, batch)
        return step

    return register


def loss_case(refused: str | None = None, batch: tuple[Tree, ...] | None = None) -> Callable[..., Any]:
    """Registers the SGD step of a loss `loss(params, *batch)`."""

    def register(loss: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def step(p: Tree, *batch: Tree) -> Any:
            value, g = jax.value_and_grad(loss)(p, *batch)
            return sgd(p, g), value

        _put_on_the_list(loss, step, refused, batch=batch)
        return loss

    return register


def metric_case(refused: str | None = None) -> Callable[..., Any]:
    """Registers the SGD step of the mean loss with a metric `metric(params, x, y)`."""

    def register(metric: Callable[..., Any]) -> Callable[..., Any]:
        def step(p: Tree, x: jax.Array, y: jax.Array) -> Any:
            g = jax.grad(lambda p: nll(p, x, y).mean())(p)
            return sgd(p, g), metric(p, x, y)

        _put_on_the_list(metric, step, refused)
        return metric

    return register


X, Y = data()
MASK = (np.arange(B) % 3 > 0).astype("f")
KEY = np.array([3, 7], "uint32")
