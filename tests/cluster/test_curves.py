"""Interpolation of measured curves, and what a curve must hold."""

from __future__ import annotations

import itertools

import pytest

from automap_launch.cluster.curves import CollectiveCurve, Curves, ProductCurve


def seconds_of(batch, m, n, k):
    """A machine whose products cost a power law of their sizes: interpolation must give it back exactly."""
    return 1e-9 * batch**0.9 * m * n**0.8 * k**0.95


SIZES, BATCHES = (16, 128, 1024), (1, 16)
PRODUCTS = ProductCurve(
    "float32",
    BATCHES,
    SIZES,
    tuple(seconds_of(b, *shape) for b in BATCHES for shape in itertools.product(SIZES, repeat=3)),
)


@pytest.mark.parametrize("shape", [(1, 16, 128, 1024), (3, 40, 200, 17), (16, 1024, 1024, 1024)])
def test_a_power_law_is_given_back_between_the_points(shape):
    assert PRODUCTS.at(*shape) == pytest.approx(seconds_of(*shape))


def test_beyond_the_points_products_cost_in_proportion_and_below_them_as_the_first_one():
    assert PRODUCTS.at(64, 1024, 4096, 2048) == pytest.approx(4 * 4 * 2 * PRODUCTS.at(16, 1024, 1024, 1024))
    assert PRODUCTS.at(1, 2, 16, 1) == pytest.approx(PRODUCTS.at(1, 16, 16, 16))


def test_a_single_size_scales_in_proportion():
    curve = ProductCurve("float32", (1,), (64,), (1e-6,))
    assert curve.at(2, 64, 128, 64) == pytest.approx(4e-6)


def test_traffic_is_linear_between_points_and_in_proportion_outside():
    curves = Curves(traffic_bytes=(1000, 2000), traffic_seconds=(1.0, 4.0))
    assert [curves.traffic(size) for size in (500, 1000, 1500, 2000, 4000)] == pytest.approx([0.5, 1.0, 2.5, 4.0, 8.0])
    assert Curves().traffic(1000) is None


def test_curves_are_found_by_what_they_measure():
    ring = CollectiveCurve("all_reduce", 4, 1e-5, 1e-9)
    curves = Curves(products=(PRODUCTS,), collectives=(ring,))
    assert curves.product("float32") == PRODUCTS
    assert curves.product("bfloat16") is None
    assert curves.collective("all_reduce", 4) == ring
    assert curves.collective("all_reduce", 8) is None
    assert curves.collective("all_gather", 4) is None


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ProductCurve("float32", (1,), (16, 8), (1.0,) * 8), "sizes of products in float32 must"),
        (lambda: ProductCurve("float32", (1,), (8, 16), (1.0,) * 7), "need 8 seconds above 0 .* got 7"),
        (lambda: ProductCurve("float32", (1,), (8,), (0.0,)), "need 1 seconds above 0"),
        (lambda: Curves(traffic_bytes=(1, 2), traffic_seconds=(1.0,)), "2 points and traffic_seconds 1"),
        (
            lambda: Curves(traffic_bytes=(1, 2), traffic_seconds=(2.0, 1.0)),
            "traffic_seconds must be above 0 and asc",
        ),
        (lambda: Curves(transcendental=0.0), "transcendental is 0"),
        (lambda: Curves(products=(PRODUCTS, PRODUCTS)), "products has two curves"),
        (lambda: CollectiveCurve("permute", 1, 0.0, 0.0), "over 2 devices or more"),
    ],
)
def test_impossible_curves_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
