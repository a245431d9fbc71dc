"""Steps as they are planned and cut, sections run on one device, and analyses made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from automap_launch.program.analyse import analyse
from automap_launch.program.batch_analysis import NONE, BatchAnalysis
from automap_launch.program.flatten import flatten
from automap_launch.program.mlir import read_module
from automap_launch.program.program import Program
from automap_launch.program.unroll import Line
from automap_launch.runtime.jax_internals import jit
from automap_launch.runtime.sections import SectionFunction
from automap_launch.split.blocks import stages_wanted
from automap_launch.split.emit import Section
from automap_launch.split.step import SplitStep, read
from tests.runtime.captured_by_hand import Captured, step_of
from tests.split.models import Model


def evaluate(section: Section, values: dict[int, Any]) -> list[Any]:
    """Outputs of a section for values by id."""
    made = jit(SectionFunction(section, "section"))({v: values[v] for v in section.inputs})
    return [made[v] for v in section.outputs]


def all_independent(line: Line) -> BatchAnalysis:
    """As if nothing depended on a batch."""
    return BatchAnalysis(arguments={}, states=(NONE,) * len(line.graph.values))


def analysed(model: Model) -> tuple[Captured, Program, SplitStep]:
    """A model's step as it is planned, and as it is cut."""
    captured = model.capture()
    program = analyse(step_of(captured))
    assert program.batch_analysis is not None
    whole = read(captured.artifact, captured.arguments, captured.results, program.batch_analysis.arguments)
    return captured, program, whole


def stages_of(program: Program, line: Line, spans: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Stages of a line's operations, of stages with the blocks `spans`."""
    return stages_wanted(line, flatten(read_module(program.step.modules["cpu"])), program.blocks, spans)
