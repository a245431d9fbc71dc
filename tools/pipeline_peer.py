"""The peer of `bench_pipeline.py`: GPipe written by hand with `shard_map`, for one model and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

RATE = 0.05


def loss(weights: Any, x: Any, target: Any) -> Any:
    """Layers `tanh(x w)` one after the other, and the mean squared error. `weights` [layers, width, width]."""
    for i in range(weights.shape[0]):
        x = jnp.tanh(x @ weights[i])
    return ((x - target) ** 2).mean()


def make(devices: Sequence[Any], micro_batches: int) -> tuple[Callable[..., Any], NamedSharding]:
    """`step(weights, x, target) -> (weights, loss)`, jitted, and the sharding of its weights over the stages.

    Every device walks `micro_batches + stages - 1` rounds: it takes in what the stage before it made, runs its layers,
    and hands on. JAX differentiates through it, so that the backward pass walks the rounds backwards.
    """
    stages = len(devices)
    mesh = Mesh(np.array(devices), ("stage",))
    forward = [(s, (s + 1) % stages) for s in range(stages)]

    def local(weights: Any, x: Any, target: Any) -> Any:
        stage = lax.axis_index("stage")
        parts = x.reshape(micro_batches, -1, x.shape[1])
        wanted = target.reshape(parts.shape)

        def round_(held: Any, number: Any) -> Any:
            taken = jnp.where(stage == 0, parts[jnp.minimum(number, micro_batches - 1)], held)
            for i in range(weights.shape[0]):
                taken = jnp.tanh(taken @ weights[i])
            mine = number - (stages - 1)
            error = ((taken - wanted[jnp.clip(mine, 0, micro_batches - 1)]) ** 2).mean()
            counts = (stage == stages - 1) & (mine >= 0)
            return lax.ppermute(taken, "stage", forward), jnp.where(counts, error, 0.0)

        rounds = jnp.arange(micro_batches + stages - 1)
        _, errors = lax.scan(round_, jnp.zeros_like(parts[0]), rounds)
        return lax.psum(errors.sum() / micro_batches, "stage")

    whole = PartitionSpec()
    apart = PartitionSpec("stage")
    mapped = jax.shard_map(local, mesh=mesh, in_specs=(apart, whole, whole), out_specs=whole, check_vma=False)

    def step(weights: Any, x: Any, target: Any) -> Any:
        value, gradient = jax.value_and_grad(mapped)(weights, x, target)
        return weights - RATE * gradient, value

    sharding = NamedSharding(mesh, apart)
    return jax.jit(step, donate_argnums=0, out_shardings=(sharding, NamedSharding(mesh, whole))), sharding
