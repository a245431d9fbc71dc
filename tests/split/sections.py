"""Sections run on one device, and analyses made by hand."""

from __future__ import annotations

from typing import Any

from automap_launch.program.batch_analysis import NONE, BatchAnalysis
from automap_launch.program.unroll import Line
from automap_launch.runtime.jax_internals import jit
from automap_launch.runtime.sections import SectionFunction
from automap_launch.split.emit import Section


def evaluate(section: Section, values: dict[int, Any]) -> list[Any]:
    """Outputs of a section for values by id."""
    made = jit(SectionFunction(section, "section"))({v: values[v] for v in section.inputs})
    return [made[v] for v in section.outputs]


def all_independent(line: Line) -> BatchAnalysis:
    """As if nothing depended on a batch."""
    return BatchAnalysis(arguments={}, states=(NONE,) * len(line.graph.values))
