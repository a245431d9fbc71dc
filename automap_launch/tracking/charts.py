"""Charts as inline SVG. Colours are CSS classes, so one chart serves light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from automap_launch.tracking.markup import Html, element

Point = tuple[float, float]

_WIDTH, _HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 16, 14, 40
_MAX_POINTS = 600
_SERIES_COLOURS = 4  # classes `s0` ... of the page


@dataclass(frozen=True)
class Series:
    """A named line. Points whose y is not finite leave a gap."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Bar:
    """A horizontal bar made of parts (name, value); `text` stands behind it. Without parts there is the text alone.

    The parts take the page's colours in turn, beginning with number `colour`.
    """

    label: str
    parts: Sequence[tuple[str, float]]
    text: str
    colour: int = 0
    strong: bool = False


@dataclass(frozen=True)
class _Scale:
    """Maps [low, high] to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (
            (math.log(v) for v in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        )
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def line_chart(
    series: Sequence[Series],
    *,
    x_label: str,
    y_format: Callable[[float], str],
    log: bool = False,
    steps: bool = False,
    from_zero: bool = False,
) -> Html | None:
    """Lines over a common x axis; None when there are fewer than two points to draw.

    Args:
      log: logarithmic y axis, when all values are above 0.
      steps: each value holds until the next point.
      from_zero: the y axis begins at 0, so that noise does not look like a change.
    """
    finite = [p for s in series for p in s.points if math.isfinite(p[1])]
    if len(finite) < 2:
        return None
    xs, ys = [p[0] for p in finite], [p[1] for p in finite]
    log = log and min(ys) > 0
    x_scale = _Scale(*_span(xs), _LEFT, _WIDTH - _RIGHT)
    y_span = _log_span(ys) if log else (0.0, 1.05 * max(ys)) if from_zero and max(ys) > 0 else _span(ys)
    y_scale = _Scale(*y_span, _HEIGHT - _BOTTOM, _TOP, log)
    drawn = [_y_tick(y_scale, tick, y_format) for tick in (_log_ticks if log else _ticks)(y_scale.low, y_scale.high)]
    drawn += [_x_tick(x_scale, tick) for tick in _ticks(x_scale.low, x_scale.high)]
    for i, s in enumerate(series):
        path = _path(thin(s.points), x_scale, y_scale, steps=steps)
        title = element("title", s.name)
        drawn.append(element("g", title, element("path", d=path), class_=f"curve s{i % _SERIES_COLOURS}"))
    drawn.append(_text(x_label, (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 4, "middle"))
    svg = element("svg", *drawn, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img")
    if len(series) == 1:
        return element("figure", svg)
    return element("figure", legend([s.name for s in series]), svg)


def bar_chart(bars: Sequence[Bar]) -> Html:
    """Horizontal bars on one scale that begins at 0."""
    longest = max((sum(v for _, v in bar.parts) for bar in bars), default=0.0) or 1.0
    rows = []
    for bar in bars:
        fills = [
            element("i", style=f"width:{100 * value / longest:.2f}%", class_=f"s{i % _SERIES_COLOURS}", title=name)
            for i, (name, value) in enumerate(bar.parts, bar.colour)
        ]
        rows.append(
            element(
                "div",
                element("span", bar.label, class_="label"),
                element("span", *fills, class_="track"),
                element("span", bar.text, class_="value"),
                class_="bar strong" if bar.strong else "bar",
            )
        )
    return element("div", *rows, class_="bars")


def legend(names: Sequence[str]) -> Html:
    items = [
        element("span", element("i", class_=f"s{i % _SERIES_COLOURS}"), name, class_="key")
        for i, name in enumerate(names)
    ]
    return element("div", *items, class_="legend")


def thin(points: Sequence[Point], limit: int = _MAX_POINTS) -> list[Point]:
    """At most about `limit` points that keep every peak: the lowest and the highest of each bucket, in order."""
    if len(points) <= limit:
        return list(points)
    size = math.ceil(2 * len(points) / limit)
    kept: list[Point] = []
    for start in range(0, len(points), size):
        bucket = range(start, min(start + size, len(points)))
        broken = [i for i in bucket if not math.isfinite(points[i][1])]
        finite = [i for i in bucket if math.isfinite(points[i][1])]
        ends = {min(finite, key=lambda i: points[i][1]), max(finite, key=lambda i: points[i][1])} if finite else set()
        kept += [points[i] for i in sorted(ends | set(broken[:1]))]
    return kept


def _path(points: Sequence[Point], x_scale: _Scale, y_scale: _Scale, *, steps: bool) -> str:
    commands: list[str] = []
    pen_down = False
    for x, y in points:
        if not math.isfinite(y):
            pen_down = False
            continue
        px, py = f"{x_scale(x):.1f}", f"{y_scale(y):.1f}"
        if pen_down and steps:
            commands.append(f"H{px}V{py}")
        else:
            commands.append(f"{'L' if pen_down else 'M'}{px},{py}")
        pen_down = True
    return "".join(commands)


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high > low:
        return low, high
    margin = abs(high) / 2 or 1.0
    return low - margin, high + margin


def _log_span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low * 1.01 else (low / 2, high * 2)


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers."""
    rough = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(rough))
    size *= next(m for m in (1, 2, 5, 10) if rough <= m * size)
    first = math.ceil(low / size)
    return [i * size for i in range(first, math.floor(high / size) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        ticks = [d * 10.0**e for e in decades for d in digits if low <= d * 10.0**e <= high]
        if len(ticks) >= 3:
            return ticks
    return _ticks(low, high)


def _x_tick(scale: _Scale, value: float) -> Html:
    return _text(f"{value:,g}", scale(value), _HEIGHT - _BOTTOM + 16, "middle")


def _y_tick(scale: _Scale, value: float, y_format: Callable[[float], str]) -> Html:
    at = f"{scale(value):.1f}"
    line = element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=at, y2=at, class_="grid")
    return element("g", line, _text(y_format(value), _LEFT - 8, scale(value) + 4, "end"))


def _text(text: str, x: float, y: float, anchor: str) -> Html:
    return element("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)
