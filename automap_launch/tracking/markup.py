"""HTML that escapes by default: text becomes markup only through `Html`, which `element` makes."""

from __future__ import annotations

import html
from collections.abc import Sequence

_VOID = frozenset({"meta", "br", "line", "rect", "path", "circle", "polyline"})


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """`<name attributes>children</name>`.

    Children that are not `Html` are escaped; None is left out. In an attribute's name a trailing `_` is dropped
    (`class_`), another one becomes `-` (`stroke_width`); an attribute that is None is left out, True has no value.
    """
    opening = name + "".join(_attribute(k, v) for k, v in attributes.items() if v is not None and v is not False)
    if name in _VOID:
        return Html(f"<{opening}/>")
    return Html(f"<{opening}>{join(*children)}</{name}>")


def join(*children: object) -> Html:
    """The children one after the other, escaped where they are not `Html`."""
    return Html("".join(c if isinstance(c, Html) else html.escape(str(c)) for c in children if c is not None))


def table(heads: tuple[str, ...], rows: Sequence[tuple[object, ...]], numbers: frozenset[int] = frozenset()) -> Html:
    """A table with a header row; the columns in `numbers` are set flush right."""

    def cells(name: str, row: tuple[object, ...]) -> Html:
        return element("tr", *(element(name, c, class_="number" if i in numbers else None) for i, c in enumerate(row)))

    body = element("tbody", *(cells("td", row) for row in rows))
    return element("div", element("table", element("thead", cells("th", heads)), body), class_="wide")


def _attribute(name: str, value: object) -> str:
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
