"""Seconds of rows by curves, and the matrix product that a row is on one device."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from automap_launch.cluster.curves import Curves, ProductCurve
from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import Decision
from automap_launch.plan.rows import Row, Tensor
from automap_launch.plan.speed import Product, Speed, product_of
from tests.plan.programs import BATCH, HIDDEN, IN, cluster, two_layers

MESH = {"data": 2, "model": 4}


def row(name, operands, result, flops, *, part="forward", dtype="float32"):
    tensors = [Tensor(shape, dtype, (None,) * len(shape), counted=True) for shape in (*operands, result)]
    return Row(name, part, flops, tuple(tensors[:-1]), (tensors[-1],), (), (), gradient=False)


def product(result_spec, operands, result, depth, *, summed_over=1, name="dot_general"):
    return product_of(row(name, operands, result, 2 * math.prod(result) * depth), result_spec, MESH, summed_over)


def test_rows_columns_and_depth_of_a_product():
    assert product((None, None), [(6, 10), (10, 7)], (6, 7), 10) == Product(1, 6, 7, 10)
    # Rows of two dims, and depth of two dims of which one is summed over the data axis.
    assert product(("data", None, "model"), [(8, 3, 10), (10, 12)], (8, 3, 12), 10) == Product(1, 12, 3, 10)
    assert product((None, None), [(4, 5, 6), (4, 5, 7)], (6, 7), 20, summed_over=2) == Product(1, 6, 7, 10)


def test_batch_dims_stand_first_and_dims_of_size_one_do_not_count():
    assert product(("data", "model", None, None), [(4, 8, 5, 9), (4, 8, 9, 6)], (4, 8, 5, 6), 9) == Product(4, 5, 6, 9)
    assert product((None, None, None), [(1, 6, 10), (10, 7)], (1, 6, 7), 10) == Product(1, 6, 7, 10)


def test_a_convolution_counts_as_rows_by_features():
    found = product(("data", None, None, "model"), [(4, 8, 8, 3), (3, 3, 3, 16)], (4, 8, 8, 16), 27, name="convolution")
    assert found == Product(1, 128, 4, 27)


def test_other_rows_are_no_product():
    assert product_of(row("add", [(4, 4), (4, 4)], (4, 4), 16), (None, None), MESH, 1) is None


def curve():
    """A nanosecond for each multiplication."""
    sizes = (10, 1000)
    return ProductCurve("float32", (1,), sizes, tuple(1e-9 * math.prod(s) for s in itertools.product(sizes, repeat=3)))


def test_a_measured_product_takes_what_it_takes():
    speed = Speed(cluster(products=(curve(),), op_seconds=5e-6))
    shape = Product(1, 100, 100, 100)
    dot = row("dot_general", [(100, 100), (100, 100)], (100, 100), 2e6)
    assert speed.seconds(dot, 2e6, 0, shape) == pytest.approx(1e-3)
    # The peak in bfloat16 is twice that in float32: half the time where it was not measured.
    half = row("dot_general", [(100, 100), (100, 100)], (100, 100), 2e6, dtype="bfloat16")
    assert speed.seconds(half, 2e6, 0, shape) == pytest.approx(0.5e-3)
    # Operands that take longer to read than to multiply.
    assert speed.seconds(dot, 2e6, 1e9, shape) == pytest.approx(1e9 / 1e11)


def test_the_update_pays_for_memory_and_the_rest_for_what_is_fresh():
    speed = Speed(cluster(traffic_bytes=(1000,), traffic_seconds=(1e-6,)))
    add = row("add", [(100,)], (100,), 0)
    assert speed.seconds(add, 0, 1000, None) == pytest.approx(1e-6)
    assert speed.seconds(replace(add, part="update"), 0, 1000, None) == pytest.approx(1000 / 1e11)


def test_exponentials_have_a_rate_of_their_own():
    speed = Speed(cluster(transcendental=1e6))
    assert speed.seconds(row("exponential", [(100,)], (100,), 100), 100, 0, None) == pytest.approx(1e-4)
    assert speed.seconds(row("multiply", [(100,)], (100,), 100), 100, 0, None) == pytest.approx(100 / 1e12)


def test_a_plans_products_are_those_of_one_device():
    calibrated = replace(cluster(), curves=Curves(products=(curve(),)))
    hidden = frozenset({2})
    seconds = CostModel(two_layers(), calibrated).breakdown(Decision(1, 8, hidden)).compute["forward"]
    elementwise = 4 * BATCH * HIDDEN / 8 / 1e11  # the activation is read; its own result is written at once
    products = 1e-9 * (BATCH * IN * HIDDEN / 8 + BATCH * HIDDEN / 8 * 32)
    assert seconds == pytest.approx(products, abs=4 * elementwise)
