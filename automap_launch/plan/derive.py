"""`derive_layout`: from a decision to the sharding of every argument and result of the step."""

from __future__ import annotations

from automap_launch.plan.decision import Decision
from automap_launch.plan.layout import Layout, Spec
from automap_launch.plan.sharding import axes_of, mesh_of, spec_of, storage_spec
from automap_launch.program.program import ITEM_BYTES, Program
from automap_launch.program.stacks import stacks_of

# A result below this size is worth more whole on every device (a metric that the script prints) than sharded.
REPLICATED_BYTES = 2**20


def derive_layout(program: Program, decision: Decision) -> Layout:
    """Shardings of the step's arguments and results over the mesh (data, model) of a stage.

    An argument is sharded as its groups are; what the decision stores sharded (ZeRO) has the data axis on its first
    free dim besides. A result that replaces an argument leaves in that argument's stored sharding; another one is
    replicated when it is small, else sharded as its groups are.
    """
    mesh, axes = mesh_of(decision), axes_of(program, decision)
    step = program.step
    compute = tuple(
        _spec(program, value, argument.shape, axes, mesh)
        for value, argument in zip(program.arguments, step.arguments, strict=True)
    )
    scattered = stored_leaves(program, decision)
    stacks = stacks_of(program) if scattered and decision.stages > 1 else ()
    stacked = {i for stack in stacks for i in (*stack.parameters, *stack.optimizer)}
    storage = tuple(
        storage_spec(spec, argument.shape, mesh, layers=i in stacked) if i in scattered else spec
        for i, (spec, argument) in enumerate(zip(compute, step.arguments, strict=True))
    )
    # Only what the forward and backward parts read is gathered; the update works on the optimizer's shards as they are.
    parameters = set(program.parameters)
    compute = tuple(inside if i in parameters else storage[i] for i, inside in enumerate(compute))
    results = []
    for value, result in zip(program.results, step.results, strict=True):
        if result.replaces is not None and step.arguments[result.replaces].shape == result.shape:
            results.append(storage[result.replaces])
        elif program.values[value].size * ITEM_BYTES.get(result.dtype, 1) <= REPLICATED_BYTES:
            results.append((None,) * len(result.shape))
        else:
            results.append(_spec(program, value, result.shape, axes, mesh))
    return Layout(mesh, compute, storage, tuple(results))


def stored_leaves(program: Program, decision: Decision) -> frozenset[int]:
    """Indices of the arguments that the decision stores sharded over the data axis, where a dim of them allows it."""
    if decision.storage == "none":
        return frozenset()
    parameters = set(program.parameters)
    return frozenset(
        i
        for i, argument in enumerate(program.step.arguments)
        if argument.role == "state" and (decision.storage == "state" or i not in parameters)
    )


def _spec(program: Program, value: int, shape: tuple[int, ...], axes: dict[int, str], mesh: dict[str, int]) -> Spec:
    if program.values[value].shape != shape:
        # A typed PRNG key: a scalar to JAX, some words to the module.
        return (None,) * len(shape)
    return spec_of(program.dim_groups[value], shape, axes, mesh)
