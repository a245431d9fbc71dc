import math
import re
from xml.etree import ElementTree

import pytest

from automap_launch.tracking.charts import Bar, Point, Series, bar_chart, line_chart, thin


def path_of(chart: str) -> str:
    match = re.search(r'<path d="([^"]*)"', chart)
    assert match is not None
    return match[1]


def numbers(path: str) -> list[float]:
    return [float(n) for n in re.findall(r"-?\d+\.?\d*", path)]


def test_a_line_falls_where_the_values_fall() -> None:
    chart = line_chart([Series("loss", [(1, 4.0), (2, 2.0), (3, 1.0)])], x_label="step", y_format=str)
    assert chart is not None
    ElementTree.fromstring(chart)
    x1, y1, x2, y2, x3, y3 = numbers(path_of(chart))
    assert x1 < x2 < x3
    assert y1 < y2 < y3  # pixels grow downwards
    assert x2 - x1 == pytest.approx(x3 - x2)
    assert y2 - y1 == pytest.approx(2 * (y3 - y2), abs=0.2)


def test_a_logarithmic_axis_spaces_equal_ratios_equally() -> None:
    chart = line_chart([Series("a", [(1, 100.0), (2, 10.0), (3, 1.0)])], x_label="", y_format=str, log=True)
    assert chart is not None
    _, y1, _, y2, _, y3 = numbers(path_of(chart))
    assert y2 - y1 == pytest.approx(y3 - y2, abs=0.2)


def test_values_that_are_not_finite_leave_a_gap() -> None:
    points = [(1, 1.0), (2, math.nan), (3, 2.0), (4, math.inf), (5, 1.0), (6, 2.0)]
    chart = line_chart([Series("a", points)], x_label="", y_format=str)
    assert chart is not None
    assert path_of(chart).count("M") == 3
    assert "nan" not in chart
    assert "inf" not in chart


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)], [(1.0, math.nan), (2.0, math.nan)]])
def test_nothing_to_draw_is_none(points: list[Point]) -> None:
    assert line_chart([Series("a", points)], x_label="", y_format=str) is None


@pytest.mark.parametrize("value", [0.0, 3.0, -2.0, 1e-9, 1e12])
@pytest.mark.parametrize("log", [False, True])
def test_a_constant_is_a_line_too(value: float, log: bool) -> None:
    chart = line_chart([Series("a", [(1, value), (2, value)])], x_label="", y_format="{:g}".format, log=log)
    assert chart is not None
    _, y1, _, y2 = numbers(path_of(chart))
    assert y1 == y2


def test_an_axis_from_zero_shows_noise_as_noise() -> None:
    points = [(1, 100.0), (2, 101.0)]
    chart = line_chart([Series("a", points)], x_label="", y_format="{:g}".format, from_zero=True)
    assert chart is not None
    _, y1, _, y2 = numbers(path_of(chart))
    assert abs(y2 - y1) < 5
    assert ">0</text>" in chart


def test_steps_are_drawn_as_steps() -> None:
    chart = line_chart([Series("a", [(1, 2.0), (2, 1.0)])], x_label="", y_format=str, steps=True)
    assert chart is not None
    assert re.fullmatch(r"M[\d.]+,[\d.]+H[\d.]+V[\d.]+", path_of(chart))


def test_thinning_keeps_the_peaks_the_breaks_and_the_order() -> None:
    points = [(float(i), math.sin(i)) for i in range(100_000)]
    points[54_321] = (54_321.0, 50.0)
    points[70_001] = (70_001.0, -50.0)
    points[80_000] = (80_000.0, math.nan)
    kept = thin(points)
    assert len(kept) <= 700
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    assert {(54_321.0, 50.0), (70_001.0, -50.0)} <= set(kept)
    assert [x for x, y in kept if math.isnan(y)] == [80_000.0]


def test_bars_share_a_scale_and_escape_their_names() -> None:
    chart = bar_chart(
        [
            Bar("<b>", [("compute", 1.0), ("communication", 1.0)], "2 s"),
            Bar("half", [("x", 1.0)], "1 s"),
            Bar("does not fit", [], "too large"),
        ]
    )
    assert re.findall(r"width:([\d.]+)%", chart) == ["50.00", "50.00", "50.00"]
    assert "&lt;b&gt;" in chart
    assert "<b>" not in chart
    assert "too large" in chart
