"""Sharding rules, one operation at a time: local work, bytes, and collectives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from automap_launch.plan.cases import Collective, case_of, gathers_of
from automap_launch.plan.platforms import rules_of
from automap_launch.plan.quantity import divisors
from automap_launch.plan.rows import Row, Tensor

MESH = {"data": 4, "model": 2}
B, H, D = 0, 1, 2  # groups
CPU, GPU = rules_of("cpu"), rules_of("cuda")


def tensor(shape, groups, dtype="float32", counted=True):
    return Tensor(tuple(shape), dtype, tuple(groups), counted)


def dot(left, right, result, contracted, *, part="forward", flops=1000):
    return Row("dot_general", part, flops, (left, right), (result,), contracted, (), part == "backward")


X, W, Y = tensor((64, 16), (B, H)), tensor((16, 32), (H, D)), tensor((64, 32), (B, D))
FORWARD = dot(X, W, Y, ((0, 1), (1, 0)))
WEIGHT_GRADIENT = dot(X, Y, W, ((0, 0), (1, 0)), part="backward")


def test_batch_and_free_dims_divide_the_work_without_talk():
    case = case_of(FORWARD, {B: "data", D: "model"}, MESH, CPU)
    assert case.flops == 1000 / 8
    assert case.bytes == 4 * (64 * 16 / 4 + 16 * 32 / 2 + 64 * 32 / 8)
    assert case.collectives == ()


def test_a_sharded_contraction_is_reduced_on_the_spot():
    case = case_of(FORWARD, {B: "data", H: "model"}, MESH, CPU)
    assert case.flops == 1000 / 8
    assert case.collectives == (Collective("all_reduce", "model", 4 * 64 * 32 / 4),)


def test_gradients_are_reduced_over_the_data_axis_and_can_be_joined():
    case = case_of(WEIGHT_GRADIENT, {B: "data", D: "model"}, MESH, CPU)
    assert case.collectives == (Collective("all_reduce", "data", 4 * 16 * 32 / 2, combinable=True),)


def test_partial_sums_over_both_axes_are_one_reduction():
    loss = Row("reduce", "forward", 64 * 16, (X,), (tensor((), ()),), ((0, 0), (0, 1)), (), False)
    case = case_of(loss, {B: "data", H: "model"}, MESH, CPU)
    assert case.collectives == (Collective("all_reduce", "data+model", 4),)


def test_zero_scatters_gradients_where_the_platform_can():
    axes = {B: "data"}
    whole = 4 * 16 * 32
    on_cpu = case_of(WEIGHT_GRADIENT, axes, MESH, CPU, scattered=True)
    assert on_cpu.collectives == (Collective("all_reduce", "data", whole, combinable=True),)
    on_gpu = case_of(WEIGHT_GRADIENT, axes, MESH, GPU, scattered=True)
    assert on_gpu.collectives == (Collective("reduce_scatter", "data", whole, combinable=True),)


def test_zero_updates_shards():
    update = Row("add", "update", 512, (W, W), (W,), (), (), False)
    plain, scattered = (case_of(update, {}, MESH, CPU, scattered=s) for s in (False, True))
    assert (scattered.flops, scattered.bytes) == (plain.flops / 4, plain.bytes / 4)


def test_zero_gathers_each_parameter_that_it_can_cut():
    (gather,) = gathers_of(W, {D: "model"}, MESH)
    assert gather.at(divisors(MESH)) == Collective("all_gather", "data", 4 * 16 * 32 / 2, combinable=True)
    assert gathers_of(tensor((3,), (D,)), {}, MESH) == ()


def test_a_dim_that_must_be_whole_is_gathered():
    sort = Row("sort", "forward", 100, (X,), (X,), (), ((0, 1),), False)
    case = case_of(sort, {B: "data", H: "model"}, MESH, CPU)
    assert case.collectives == (Collective("all_gather", "model", 4 * 64 * 16 / 4),)
    assert case_of(sort, {B: "data"}, MESH, CPU).collectives == ()


def test_square_weights_are_cut_once_and_their_product_is_scattered():
    """x[B, D] @ w[D, D']: both dims of w in one group. The contraction is cut, and so is the result."""
    x = tensor((64, 32), (B, D))
    square = dot(x, tensor((32, 32), (D, D)), x, ((0, 1), (1, 0)))
    size = 4 * 64 * 32
    assert case_of(square, {D: "model"}, MESH, GPU).collectives == (Collective("reduce_scatter", "model", size),)
    # A CPU reduces it whole and cuts it then.
    assert case_of(square, {D: "model"}, MESH, CPU).collectives == (Collective("all_reduce", "model", size),)


def test_a_side_whose_partner_cannot_be_cut_is_gathered():
    """dy[B, D] @ w[D', D]^T: w is cut on its first dim, so the contraction is not, and dy must be whole."""
    dy = tensor((64, 32), (B, D))
    back = dot(dy, tensor((32, 32), (D, D)), dy, ((0, 1), (1, 1)), part="backward")
    case = case_of(back, {D: "model"}, MESH, CPU)
    assert case.collectives == (Collective("all_gather", "model", 4 * 64 * 32),)
    assert case.flops == 1000 / 2


def test_scores_between_two_cut_sequences_gather_one_of_them():
    """q[B, T] . k[B, T'] -> [B, T, T']: one axis cannot cut both T."""
    t = 3
    q = tensor((64, 16, 8), (B, t, None))
    scores = dot(q, q, tensor((64, 16, 16), (B, t, t)), ((0, 2), (1, 2)))
    case = case_of(scores, {B: "data", t: "model"}, MESH, CPU)
    assert case.collectives == (Collective("all_gather", "model", 4 * 64 * 16 * 8 / 4),)


def test_sixteen_bit_sums_are_widened_on_cpu_only():
    half = [tensor(t.shape, t.groups, "bfloat16") for t in (X, W, Y)]
    row = dot(*half, ((0, 1), (1, 0)))
    (on_cpu,) = case_of(row, {H: "model"}, MESH, CPU).collectives
    (on_gpu,) = case_of(row, {H: "model"}, MESH, GPU).collectives
    assert on_cpu.size == 2 * on_gpu.size == 4 * 64 * 32


@pytest.mark.parametrize(
    ("name", "moved"),
    [("dynamic_update_slice", 2 * 4 * 16), ("dynamic_slice", 2 * 4 * 16)],
)
def test_slices_move_only_what_they_replace_or_return(name, moved):
    whole, part = tensor((1000, 16), (None, None), counted=False), tensor((1, 16), (None, None))
    if name == "dynamic_slice":
        row = Row(name, "forward", 0, (whole,), (part,), (), (), False)
    else:
        row = Row(name, "forward", 0, (whole, part), (tensor((1000, 16), (None, None)),), (), (), False)
    assert case_of(row, {}, MESH, CPU).bytes == moved


def test_rows_of_an_embedding_that_is_stored_by_columns_are_exchanged():
    table, tokens, rows = tensor((256, 16), (H, D)), tensor((64, 1), (B, None), "int32"), tensor((64, 16), (B, D))
    scatter = Row("scatter", "backward", 64 * 16, (table, tokens, rows), (table,), ((1, 0), (2, 0)), (), gradient=True)
    by_columns = case_of(scatter, {B: "data", H: "model"}, MESH, CPU, scattered=True)
    assert by_columns.collectives == (Collective("all_to_all", "data", 4 * 64 * 16 / 4),)
    by_rows = case_of(scatter, {B: "data"}, MESH, CPU, scattered=True)
    assert by_rows.collectives == (Collective("all_reduce", "data", 4 * 256 * 16, combinable=True),)
    odd = tensor((3, 16), (H, D))  # no part of its rows: it is stored by columns, and sharded by no row
    only_stored = replace(scatter, operands=(odd, tokens, rows), results=(odd,))
    assert case_of(only_stored, {B: "data"}, MESH, CPU, scattered=True).collectives[0].kind == "all_reduce"
    not_stored = case_of(scatter, {B: "data", H: "model"}, MESH, CPU)
    assert not_stored.collectives == (Collective("all_reduce", "data", 4 * 256 * 16 / 2, combinable=True),)


def test_where_both_sides_of_a_product_are_cut_the_one_that_the_result_is_not_cut_by_is_gathered():
    left, right = tensor((64, 16), (B, H)), tensor((64, 32), (B, D))
    gradient = dot(left, right, tensor((16, 32), (H, D)), ((0, 0), (1, 0)), part="backward")
    case = case_of(gradient, {H: "model", D: "model"}, MESH, CPU)
    assert case.collectives == (Collective("all_gather", "model", 4 * 64 * 32),)
    other_way = dot(right, left, tensor((32, 16), (D, H)), ((0, 0), (1, 0)), part="backward")
    case = case_of(other_way, {H: "model", D: "model"}, MESH, CPU)
    assert case.collectives == (Collective("all_gather", "model", 4 * 64 * 32),)


def test_a_tensor_is_gathered_for_the_first_product_that_reads_it():
    cut = dot(X, tensor((16, 32), (None, D)), Y, ((0, 1), (1, 0)))
    assert case_of(cut, {H: "model"}, MESH, CPU).collectives == (Collective("all_gather", "model", 4 * 64 * 16),)
    assert case_of(replace(cut, again=frozenset({0})), {H: "model"}, MESH, CPU).collectives == ()


def test_a_product_reads_a_gathered_tensor_through_a_copy_unless_its_first_dim_was_gathered():
    columns = case_of(dot(X, W, Y, ((0, 1), (1, 0))), {B: "data", H: "model"}, MESH, CPU)
    assert columns.relaid == 0  # summed, not gathered
    uncut = tensor((16, 32), (None, D))
    first = case_of(dot(X, uncut, Y, ((0, 1), (1, 0))), {B: "data", H: "model"}, MESH, CPU)
    assert first.collectives == (Collective("all_gather", "model", 4 * 64 * 16 / 4),)
    assert first.relaid == 2 * 4 * 64 * 16 / 4
    again = replace(dot(X, uncut, Y, ((0, 1), (1, 0))), again=frozenset({0}))
    second = case_of(again, {B: "data", H: "model"}, MESH, CPU)
    assert (second.collectives, second.relaid) == ((), first.relaid)
    rows = dot(tensor((16, 64), (H, B)), uncut, Y, ((0, 0), (1, 0)))
    assert case_of(rows, {B: "data", H: "model"}, MESH, CPU).relaid == 0
