"""JAX and NumPy under the names that they had in 2021."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.backend
import jax.extend.random
import jax.lib
import numpy as np

from automap_launch.frontends.trax.view import View


def jax_view() -> View:
    """`jax` with what Trax 1.4.1 uses of it and today's lacks.

    Not added: `custom_transforms` and `defvjp_all`, which Trax uses only where `jax.custom_vjp` does not exist;
    `device_put_replicated`, which it calls for several devices alone; and what `trax.trainer --gpu_cluster_chief_ip`
    calls to connect hosts, which the launcher does.
    """
    lib = View(
        "jax.lib",
        {
            # Trax frees the devices' memory through it (`free_accelerators_on_step`).
            "xla_bridge": types.SimpleNamespace(get_backend=jax.extend.backend.get_backend),
            # `trax.trainer` imports it for hosts of its own, see above.
            "xla_extension": types.ModuleType("jax.lib.xla_extension"),
        },
    )
    return View(
        "jax",
        {
            "lax": View("jax.lax", {"cond": _cond, "stop_gradient": _stop_gradient}),
            "lib": lib,
            "random": View("jax.random", {"threefry_2x32": jax.extend.random.threefry_2x32}),
            "tree_map": jax.tree_util.tree_map,
            "tree_structure": jax.tree_util.tree_structure,
            "tree_flatten": jax.tree_util.tree_flatten,
            "tree_unflatten": jax.tree_util.tree_unflatten,
            "tree_leaves": jax.tree_util.tree_leaves,
            # Deprecated twins of names that the one world of the launcher answers for.
            "host_id": jax.process_index,
            "host_count": jax.process_count,
            "xla_computation": _xla_computation,
        },
    )


def jax_config_module() -> types.SimpleNamespace:
    """For `from jax.config import config`."""
    return types.SimpleNamespace(config=jax.config)


def numpy_view() -> View:
    """`numpy` with the aliases that NumPy 1.24 and 2.0 removed."""
    return View(
        "numpy",
        {
            "asscalar": lambda array: array.item(),
            "bool": bool,
            "int": int,
            "float": float,
            "object": object,
            "complex_": np.complex128,
            "float_": np.float64,
        },
    )


def scipy_view() -> View:
    """`scipy` with the NumPy functions that it once re-exported; Trax's arithmetic puzzles use them."""
    return View("scipy", {"gcd": np.gcd, "lcm": np.lcm})


@functools.wraps(jax.lax.cond)
def _cond(*args: Any, **kwargs: Any) -> Any:
    """`lax.cond` that also takes one operand a branch by name, as LSH attention passes them."""
    if "true_operand" not in kwargs and "false_operand" not in kwargs:
        return jax.lax.cond(*args, **kwargs)
    (predicate,) = args or (kwargs["pred"],)
    true_fun, false_fun = kwargs["true_fun"], kwargs["false_fun"]
    operands = kwargs.get("true_operand"), kwargs.get("false_operand")
    return jax.lax.cond(predicate, lambda pair: true_fun(pair[0]), lambda pair: false_fun(pair[1]), operands)


@functools.wraps(jax.lax.stop_gradient)
def _stop_gradient(tree: Any) -> Any:
    """`lax.stop_gradient` that leaves Python integers alone: LSH attention branches on lengths that went through it."""
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, int) else jax.lax.stop_gradient(leaf), tree)


def _xla_computation(function: Callable[..., Any]) -> Callable[..., Any]:
    """The HLO of a function, which `trainer_lib.Trainer.save_computation_graphs` writes down."""
    return lambda *args, **kwargs: jax.jit(function, keep_unused=True).lower(*args, **kwargs).compiler_ir("hlo")
