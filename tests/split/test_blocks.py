"""The stages that a plan's blocks ask for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from automap_launch.program.analyse import analyse
from automap_launch.program.flatten import flatten
from automap_launch.program.mlir import read_module
from automap_launch.program.program import Program
from automap_launch.split.blocks import stages_wanted
from automap_launch.split.pipeline import assigned
from automap_launch.split.stages import Assignment
from automap_launch.split.step import SplitStep, by_stage, read
from automap_launch.train_step import StepIdentity, TrainStep
from tests.runtime.captured_by_hand import Captured
from tests.split.models import Model, lm, mlp


def analysed(model: Model) -> tuple[Captured, Program, SplitStep]:
    captured = model.capture()
    step = TrainStep(
        StepIdentity("step", None), "jax", captured.arguments, captured.results, {"cpu": captured.artifact}, ""
    )
    program = analyse(step)
    assert program.batch_analysis is not None
    whole = read(captured.artifact, captured.arguments, captured.results, program.batch_analysis.arguments)
    return captured, program, whole


def assignment(program: Program, whole: SplitStep, spans: list[tuple[int, int]]) -> tuple[dict[int, int], Assignment]:
    flat = flatten(read_module(program.step.modules["cpu"]))
    wanted = stages_wanted(whole.line, flat, program.blocks, spans)
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
    flat = flatten(read_module(program.step.modules["cpu"]))
    chunked = by_stage(whole, captured.results, 2, lambda line: stages_wanted(line, flat, program.blocks, spans))
    stacked = {a.path: n for a, n in zip(captured.arguments, chunked.chunks, strict=True)}
    assert stacked["0/params/layers/up"] == 2
    assert stacked["0/opt/0/mu/layers/up"] == 2
    assert stacked["0/params/embedding"] == 1


def test_rows_of_one_parameter_whose_gradient_is_made_as_a_whole_stay_together() -> None:
    """Two rows of a parameter are read on two stages, but are no layers of a scan: its gradient is one tensor."""
    captured, _, whole = analysed(lm(layers=2))
    found = by_stage(whole, captured.results, 4)
    assert set(found.chunks) == {1}


@pytest.mark.parametrize("spans", [lambda n: [(0, 0), (2, n - 1)], lambda n: [(0, n)], lambda n: [(1, n - 1)]])
def test_spans_that_do_not_cover_the_blocks_are_refused(spans: Callable[[int], list[tuple[int, int]]]) -> None:
    _, program, whole = analysed(mlp(layers=4))
    with pytest.raises(ValueError, match=r"they must cover 0 to \d+ in order"):
        assignment(program, whole, spans(len(program.blocks)))
