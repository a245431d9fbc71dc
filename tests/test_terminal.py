"""Our lines and the script's on one terminal."""

from __future__ import annotations

import io

from automap_launch.terminal import LineStream, OwnLines


def test_our_lines_never_continue_a_line_of_the_script() -> None:
    file = io.StringIO()
    stream = LineStream(file)
    ours = OwnLines(stream)
    stream.write("step 1")
    ours.write("ours\n")
    stream.write(" goes on\n")
    ours.write("ours again\n")
    assert file.getvalue() == "step 1\nours\n goes on\nours again\n"


def test_a_bar_of_ours_is_drawn_on_one_line() -> None:
    file = io.StringIO()
    ours = OwnLines(LineStream(file))
    ours.write("\r10 %")
    ours.write("\r20 %")
    assert file.getvalue() == "\r10 %\r20 %"
