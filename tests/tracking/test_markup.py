from automap_launch.tracking.markup import Html, element, join, table


def test_text_is_escaped_and_markup_is_not() -> None:
    assert element("p", "a < b & c", element("b", "<i>")) == "<p>a &lt; b &amp; c<b>&lt;i&gt;</b></p>"


def test_attributes_are_escaped() -> None:
    assert element("i", title='"><script>') == '<i title="&quot;&gt;&lt;script&gt;"></i>'


def test_attribute_names() -> None:
    assert element("line", class_="grid", text_anchor="end") == '<line class="grid" text-anchor="end"/>'
    assert element("details", open=True, id=None, hidden=False) == "<details open></details>"


def test_none_is_left_out_but_zero_is_not() -> None:
    assert join("a", None, 0) == "a0"


def test_cells_are_escaped_and_numbers_flush_right() -> None:
    html = table(("name", "n"), [("<x>", 1)], frozenset({1}))
    assert "<td>&lt;x&gt;</td>" in html
    assert '<td class="number">1</td>' in html
    assert isinstance(html, Html)
