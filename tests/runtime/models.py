"""A small step with everything in it: Adam, dropout by a typed key, an integer counter, a metric."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from automap_launch.plan.layout import Spec
from automap_launch.train_step import Argument

OPTIMIZER = optax.adam(1e-2)
MESH = {"data": 4, "model": 2}


def init() -> dict[str, Any]:
    first, second = jax.random.split(jax.random.key(0))
    params = {
        "w1": jax.random.normal(first, (16, 32)) * 0.1,
        "b1": jnp.zeros(32),
        "w2": jax.random.normal(second, (32, 4)) * 0.1,
    }
    return {"params": params, "opt": OPTIMIZER.init(params), "key": jax.random.key(7)}


def batch(rows: int = 16) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows)
    return rng.normal(size=(rows, 16)).astype(np.float32), rng.normal(size=(rows, 4)).astype(np.float32)


def step(state: dict[str, Any], x: Any, y: Any) -> tuple[dict[str, Any], Any]:
    key, dropout = jax.random.split(state["key"])

    def loss_fn(params: Any) -> Any:
        hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
        hidden = jnp.where(jax.random.bernoulli(dropout, 0.9, hidden.shape), hidden, 0)
        return ((hidden @ params["w2"] - y) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state["params"])
    updates, opt = OPTIMIZER.update(grads, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt, "key": key}, loss


def data_parallel(argument: Argument) -> Spec:
    return ("data", *[None] * (len(argument.shape) - 1)) if argument.role == "batch" else ()


def tensor_parallel(argument: Argument) -> Spec:
    specs: dict[str, Spec] = {"w1": (None, "model"), "b1": ("model",), "w2": ("model", None)}
    return specs.get(argument.path.rsplit("/", 1)[-1], data_parallel(argument))


def zero(argument: Argument) -> Spec:
    """Stored over both axes, computed as `tensor_parallel` says."""
    specs: dict[str, Spec] = {"w1": ("data", "model"), "w2": ("model", "data")}
    return specs.get(argument.path.rsplit("/", 1)[-1], tensor_parallel(argument))


def difference(one: Any, other: Any) -> float:
    """Largest relative L2 difference of two states over their tensors; keys count by their data."""

    def numbers(leaf: Any) -> np.ndarray:
        key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if key else leaf).astype(np.float64)

    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    arrays = [(numbers(a), numbers(b)) for a, b in pairs]
    return max(float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30)) for a, b in arrays)
