"""Groups of whole steps, their order, notes and refusals."""

from __future__ import annotations

import cProfile
import dataclasses
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import ShapeDtypeStruct as Spec

from automap_launch.errors import CaptureError
from automap_launch.program.analyse import analyse
from automap_launch.program.program import Group, Program
from tests.program import models
from tests.program.conftest import make_step

F32, I32 = jnp.float32, jnp.int32


def analysed(model: models.Model) -> Program:
    function, state, batch = model
    return analyse(make_step(function, state, *batch))


def group_of(program: Program, path: str, dim: int) -> Group | None:
    index = next(k for k, a in enumerate(program.step.arguments) if a.path == path)
    number = program.dim_groups[program.arguments[index]][dim]
    return None if number is None else program.groups[number]


def decisions(program: Program) -> list[tuple[str, tuple[int, ...]]]:
    """What there is to decide, whatever the ids and bytes."""
    return sorted((g.kind, g.sizes) for g in program.groups)


def test_mlp_has_the_groups_batch_input_hidden_and_output():
    program = analysed(models.mlp(widths=(24, 48, 12), batch=16))
    assert program.batch == 0
    assert [(g.kind, g.sizes) for g in program.groups if g.kind == "batch"] == [("batch", (16,))]
    assert sorted((g.sizes, g.members) for g in program.groups[1:]) == [
        ((12,), ("0/1/b", "0/1/w")),
        ((24,), ("0/0/w",)),
        ((48,), ("0/0/b", "0/0/w", "0/1/w")),
    ]
    assert [program.step.arguments[k].path for k in program.parameters] == ["0/0/b", "0/0/w", "0/1/b", "0/1/w"]


def test_optimizer_slots_share_their_parameters_groups():
    program = analysed(models.mlp())
    for k, argument in enumerate(program.step.arguments):
        if argument.path.startswith("1/0/mu/"):
            parameter = next(
                a for a in program.step.arguments if a.path == "0/" + argument.path.removeprefix("1/0/mu/")
            )
            own = program.dim_groups[program.arguments[k]]
            assert own == program.dim_groups[program.arguments[program.step.arguments.index(parameter)]]
            assert None not in own


def test_language_model_has_the_decisions_of_one_layer_however_deep():
    two, six = analysed(models.language_model(2)), analysed(models.language_model(6))
    assert decisions(two) == decisions(six)
    heads = group_of(six, "0/layers/3/q", 1)
    assert heads is group_of(six, "0/layers/0/o", 0)
    assert (heads.sizes, heads.tied) == ((models.LM["heads"],), 6)
    assert group_of(six, "0/layers/5/up", 1).tied == 6
    model = group_of(six, "0/embed", 1)
    assert model is group_of(six, "0/layers/4/down", 1)
    assert model.tied == 1
    assert group_of(six, "0/embed", 0).members == ("0/embed",)


@pytest.mark.parametrize("remat", [False, True])
def test_scan_over_layers_has_the_decisions_of_unrolled_layers(remat):
    unrolled = analysed(models.language_model(4, remat=remat))
    scanned = analysed(models.language_model(4, scan=True, remat=remat))
    assert decisions(unrolled) == decisions(scanned)
    assert group_of(scanned, "0/layers/up", 1) is group_of(scanned, "0/embed", 1)
    assert group_of(scanned, "0/layers/up", 0) is None, "the layers' own dim is walked by the loop"
    assert not scanned.notes


def test_scan_over_layers_has_the_flops_of_unrolled_layers():
    unrolled, scanned = analysed(models.language_model(4)), analysed(models.language_model(4, scan=True))
    dots = [
        sum(op.flops * op.times for op in program.ops if op.name == "dot_general") for program in (unrolled, scanned)
    ]
    assert dots[0] == dots[1]


def test_chain_of_equal_layers_has_two_groups_in_turn():
    program = analysed(models.mlp(widths=(24, 64, 64, 64, 64, 64, 8)))
    hidden = [group_of(program, f"0/{k}/w", 1) for k in range(5)]
    assert hidden[1] is hidden[3]
    assert hidden[2].id not in (hidden[1].id, hidden[3].id)
    for layer in range(1, 6):
        assert group_of(program, f"0/{layer}/w", 0) is hidden[layer - 1]
        assert group_of(program, f"0/{layer}/w", 0) is not group_of(program, f"0/{layer}/w", 1)


def test_one_axis_must_divide_every_size_of_a_group():
    def loss(params, x):
        heads = (x @ params["w"]).reshape(x.shape[0], 6, 10)
        return jnp.mean(jnp.tanh(heads * params["scale"][:, None]) ** 2)

    params = {"w": Spec((24, 60), F32), "scale": Spec((6,), F32)}
    group = group_of(analysed(models.trained(loss, params, Spec((8, 24), F32))), "0/w", 1)
    assert group.sizes == (6, 60)
    assert group.divisor == 6
    assert group.members == ("0/scale", "0/w")


def test_groups_are_ordered_batch_first_then_by_bytes():
    program = analysed(models.language_model())
    assert program.groups[0].kind == "batch"
    assert [g.id for g in program.groups] == list(range(len(program.groups)))
    sizes = [g.bytes for g in program.groups[1:]]
    assert sizes == sorted(sizes, reverse=True)


def test_groups_and_dims_agree():
    program = analysed(models.convolutional())
    for group in program.groups:
        assert all(program.dim_groups[value][dim] == group.id for value, dim in group.dims)
    count = sum(item is not None for dims in program.dim_groups for item in dims)
    assert count == sum(len(g.dims) for g in program.groups)


def test_convolutional_network_shards_channels_and_no_spatial_dim():
    program = analysed(models.convolutional())
    assert group_of(program, "0/conv1", 3) is group_of(program, "0/conv2", 2)
    assert group_of(program, "0/conv2", 3) is group_of(program, "0/dense", 0)
    assert [group_of(program, "0/conv1", k) for k in (0, 1)] == [None, None]
    assert program.groups[program.batch].sizes == (8,)
    assert {g.kind for g in program.groups} == {"batch", "parameter"}


def test_call_back_into_python_keeps_its_tensors_whole_and_says_where():
    def step(w, x):
        h = jax.pure_callback(lambda h: h, Spec((8, 6), F32), x @ w)
        return w * 2, jnp.tanh(h)

    program = analyse(make_step(step, (Spec((4, 6), F32),), Spec((8, 4), F32)))
    (note,) = program.notes
    assert note.startswith("a call back into Python at step.py:")
    (call,) = [op for op in program.ops if op.name == "custom_call"]
    assert {(call.results[-1], 0), (call.results[-1], 1)} <= set(call.whole)


def test_printing_from_a_step_changes_no_group():
    def loss(w, x):
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    def step(w, x, prints):
        value, gradient = jax.value_and_grad(loss)(w, x)
        if prints:
            jax.debug.print("{value} {x}", value=value, x=x)
        return w - gradient, value

    made = [
        analyse(make_step(functools.partial(step, prints=p), (Spec((4, 6), F32),), Spec((8, 4), F32)))
        for p in (False, True)
    ]
    assert decisions(made[0]) == decisions(made[1])
    assert [len(p.notes) for p in made] == [0, 1]


def test_library_call_without_a_rule_is_named_and_one_with_a_rule_is_not():
    def known(w, x):
        return w * 2, jax.lax.linalg.eigh(jnp.tanh(x @ w))[1]

    def unknown(w, x):
        return w * 2, jnp.tanh(jax.ffi.ffi_call("my_kernel", Spec((8, 8), F32))(x @ w))

    for step, notes in ((known, 0), (unknown, 1)):
        program = analyse(make_step(step, (Spec((4, 8), F32),), Spec((8, 4), F32)))
        assert len(program.notes) == notes
        (call,) = [op for op in program.ops if op.name == "custom_call"]
        assert (call.operands[0], 0) in call.whole
    assert program.notes[0].startswith("my_kernel (no rule for this operation) at step.py:")


def test_a_key_is_never_sharded():
    def step(w, x, key):
        return w * 2, jnp.tanh(x @ w) * jax.random.normal(key, (8, 6))

    for key in (Spec((2,), jnp.uint32), jax.eval_shape(lambda: jax.random.key(0))):
        program = analyse(make_step(step, (Spec((4, 6), F32),), Spec((8, 4), F32), other=(key,)))
        assert program.dim_groups[program.arguments[2]] == (None,)
        assert program.groups[program.batch].sizes == (8,)


def test_platform_and_record_must_match_the_module():
    function, state, batch = models.mlp()
    step = make_step(function, state, *batch)
    with pytest.raises(CaptureError, match="lowered for cpu, not for cuda"):
        analyse(step, "cuda")
    with pytest.raises(CaptureError, match="different captures"):
        analyse(dataclasses.replace(step, arguments=step.arguments[:-1], results=()))


_CHILD = """
import json, sys
from tests.program import models
from tests.program.conftest import make_step
from automap_launch.program.analyse import analyse
function, state, batch = models.language_model(2, scan=True)
program = analyse(make_step(function, state, *batch))
print(json.dumps([program.dim_groups, [[g.id, g.kind, g.sizes, g.members, g.bytes, g.tied] for g in program.groups],
                  [op.part for op in program.ops]]))
"""


def test_analysis_is_the_same_in_every_process():
    outputs = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(
            [sys.executable, "-c", _CHILD], capture_output=True, text=True, env=environment, check=True, timeout=120,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        outputs.append(json.loads(done.stdout.splitlines()[-1]))
    assert outputs[0] == outputs[1]


def test_analysing_starts_no_backend(tmp_path):
    function, state, batch = models.mlp()
    make_step(function, state, *batch).save(tmp_path)
    code = (
        "import sys; from pathlib import Path; from automap_launch.train_step import TrainStep\n"
        "from automap_launch.program.analyse import analyse\n"
        f"analyse(TrainStep.load(Path({str(tmp_path)!r})))\n"
        "from jax._src import xla_bridge; print(len(xla_bridge._backends))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "0"


def _calls(model: models.Model) -> tuple[int, int]:
    """Operations of a model, and calls of functions that its analysis makes: its work, whatever the machine's load."""
    function, state, batch = model
    step = make_step(function, state, *batch)
    profile = cProfile.Profile()
    program = profile.runcall(analyse, step)
    return len(program.ops), sum(entry.callcount for entry in profile.getstats())


def test_work_is_linear_in_the_number_of_operations():
    operations, calls = zip(*(_calls(models.language_model(n)) for n in (3, 6, 12)), strict=True)
    assert operations[2] - operations[1] == 2 * (operations[1] - operations[0])
    assert calls[2] - calls[1] == pytest.approx(2 * (calls[1] - calls[0]), rel=0.05)


def test_rows_of_a_position_table_of_which_a_part_is_used_are_no_decision(build_step):
    """XLA would shard the sequence of every activation with them, instead of gathering the table."""

    def step(params, x):
        def loss(params):
            return jnp.mean((jnp.tanh(x + params["position"][:8]) @ params["w"]) ** 2)

        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params)), loss(params)

    shapes = {"position": (16, 6), "w": (6, 4)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    program = analyse(build_step(step, (params,), jax.ShapeDtypeStruct((4, 8, 6), jnp.float32)))
    assert group_of(program, "0/position", 0) is None
    assert group_of(program, "0/position", 1) is not None


def test_a_batch_of_which_parts_are_taken_stays_the_batch(build_step):
    def step(w, x):
        def loss(w):
            h = jnp.tanh(x) @ w
            return jnp.mean(h**2) + jnp.mean(h[:4])

        return w - jax.grad(loss)(w), loss(w)

    floats = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((6, 3), (8, 6))]
    program = analyse(build_step(step, (floats[0],), floats[1]))
    assert program.batch is not None
    assert program.dim_groups[program.arguments[1]][0] == program.batch
