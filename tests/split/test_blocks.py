"""The stages that a plan's blocks ask for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from automap_launch.program.program import Program
from automap_launch.split.pipeline import assigned
from automap_launch.split.stages import Assignment
from automap_launch.split.step import SplitStep, by_stage
from tests.runtime.captured_by_hand import Captured
from tests.split.models import lm, mlp
from tests.split.sections import analysed, stages_of


def assignment(program: Program, whole: SplitStep, spans: list[tuple[int, int]]) -> tuple[dict[int, int], Assignment]:
    wanted = stages_of(program, whole.line, spans)
    return wanted, assigned(whole.line, whole.analysis, whole.state, len(spans), wanted)[1]


def owners(captured: Captured, whole: SplitStep, made: Assignment) -> dict[str, int]:
    places = zip(captured.arguments, whole.line.graph.arguments, strict=True)
    return {a.path.removeprefix("0/params/"): made.owner[v] for a, v in places if a.path.startswith("0/params/")}


def test_blocks_decide_where_layers_lie_however_uneven() -> None:
    captured, program, whole = analysed(mlp(layers=6))
    weights = [i for i, a in enumerate(captured.arguments) if a.path.startswith("0/params/") and a.path.endswith("w")]
    first = [next(b for b, block in enumerate(program.blocks) if i in block.parameters) for i in weights]
    assert len(set(first)) >= 3
    for cut in sorted(set(first))[1:3]:
        spans = [(0, cut - 1), (cut, len(program.blocks) - 1)]
        _, made = assignment(program, whole, spans)
        got = owners(captured, whole, made)
        assert [got[f"{layer}/w"] for layer in range(6)] == [int(block >= cut) for block in first]


def test_iterations_of_a_loop_go_to_the_stages_of_their_blocks() -> None:
    captured, program, whole = analysed(lm(layers=4, scan=True))
    loops = {b: [span for span in block.loops if span[2] - span[1]] for b, block in enumerate(program.blocks)}
    cut = next(b for b, spans in loops.items() if any(start == 2 for _, start, _ in spans))
    spans = [(0, cut - 1), (cut, len(program.blocks) - 1)]
    chunked = by_stage(whole, captured.results, 2, lambda line: stages_of(program, line, spans))
    stacked = {a.path: n for a, n in zip(captured.arguments, chunked.chunks, strict=True)}
    assert stacked["0/params/layers/up"] == 2
    assert stacked["0/opt/0/mu/layers/up"] == 2
    assert stacked["0/params/embedding"] == 1


def test_rows_of_one_parameter_whose_gradient_is_made_as_a_whole_stay_together() -> None:
    """Two rows of a parameter are read on two stages, but are no layers of a scan: its gradient is one tensor."""
    captured, program, whole = analysed(lm(layers=2))
    last = len(program.blocks) - 1
    spans = [(0, 0), (1, last - 2), (last - 1, last - 1), (last, last)]
    found = by_stage(whole, captured.results, 4, lambda line: stages_of(program, line, spans))
    assert set(found.chunks) == {1}


@pytest.mark.parametrize("spans", [lambda n: [(0, 0), (2, n - 1)], lambda n: [(0, n)], lambda n: [(1, n - 1)]])
def test_spans_that_do_not_cover_the_blocks_are_refused(spans: Callable[[int], list[tuple[int, int]]]) -> None:
    _, program, whole = analysed(mlp(layers=4))
    with pytest.raises(ValueError, match=r"they must cover 0 to \d+ in order"):
        assignment(program, whole, spans(len(program.blocks)))
