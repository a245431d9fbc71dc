"""The rules of the GPU backend against partitioned modules, as they are before any backend changes them."""

from __future__ import annotations

from collections import Counter

import pytest

from automap_launch.plan.compiled import CompiledModule
from automap_launch.plan.cost import CostModel
from automap_launch.plan.sharding import mesh_of
from automap_launch.program.analyse import analyse
from tests.plan.models import transformer
from tests.plan.partitioned import CASES, decision_of, partitioned_modules, with_reduce_scatters
from tests.plan.programs import cluster

# Indices and picked labels that XLA gathers are not foreseen.
_NOISE_BYTES = 2048


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    return partitioned_modules(tmp_path_factory.mktemp("partitioned"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_bytes_of_every_kind_of_collective_on_a_gpu(modules, name):
    program = analyse(transformer())
    decision = decision_of(program, name)
    real: Counter[tuple[str, str]] = Counter()
    for collective in CompiledModule(with_reduce_scatters(modules[name])).collectives(mesh_of(decision)):
        real[collective.kind, collective.axis] += collective.size
    uses = CostModel(program, cluster(platform="cuda")).breakdown(decision).collectives
    predicted = {(use.kind, use.axis): use.bytes for use in uses}
    for key in real.keys() | predicted.keys():
        assert predicted.get(key, 0) == pytest.approx(real[key], rel=0.02, abs=_NOISE_BYTES), key
    assert (("reduce_scatter", "data") in predicted) == (decision.storage != "none")


def test_an_all_reduce_that_somebody_needs_whole_stays_one():
    text = """\
ENTRY %main (p: f32[8]) -> f32[2] {
  %p = f32[8]{0} parameter(0)
  %i = s32[] constant(2)
  %a = f32[8]{0} all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%add
  %b = f32[8]{0} all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%add
  %s = f32[2]{0} dynamic-slice(%a, %i), dynamic_slice_sizes={2}
  %t = f32[2]{0} dynamic-slice(%b, %i), dynamic_slice_sizes={2}
  %n = f32[8]{0} negate(%b)
  ROOT %u = f32[2]{0} add(%s, %t)
}
"""
    found = CompiledModule(with_reduce_scatters(text)).collectives({"data": 4})
    assert [(c.kind, c.size) for c in found] == [("reduce_scatter", 32), ("all_reduce", 32)]
