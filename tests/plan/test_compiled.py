"""Reading compiled modules: text as XLA writes it, with its loops and its three ways to name who communicates."""

from __future__ import annotations

import pytest

from automap_launch.plan.compiled import CompiledModule

MESH = {"data": 4, "model": 2}
LOOP = """\
HloModule jit_train_step, entry_computation_layout={()->f32[]}

%body (p: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {
  %p = (s32[], f32[8,16]{1,0}) parameter(0)
  %x = f32[8,16]{1,0} get-tuple-element(%p), index=1
  %w = f32[16,16]{1,0} constant({...})
  %dot.1 = f32[8,16]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %sum = f32[8,16]{1,0} all-reduce(%dot.1), channel_id=1, replica_groups={{0,1},{2,3},{4,5},{6,7}}, \
use_global_device_ids=true, to_apply=%add, metadata={op_name="jit(train_step)/while/body/dot_general"}
  ROOT %t = (s32[], f32[8,16]{1,0}) tuple(%x, %sum)
}

%condition (q: (s32[], f32[8,16])) -> pred[] {
  %q = (s32[], f32[8,16]{1,0}) parameter(0)
  ROOT %less = pred[] constant(true)
}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

ENTRY %main (arg: f32[8,16]) -> f32[8,16] {
  %arg = f32[8,16]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,16]{1,0}) tuple(%zero, %arg)
  %loop = (s32[], f32[8,16]{1,0}) while(%start), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"12"}}
  ROOT %out = f32[8,16]{1,0} get-tuple-element(%loop), index=1
}
"""


def test_what_a_loop_holds_counts_as_often_as_it_runs():
    module = CompiledModule(LOOP)
    (found,) = module.collectives(MESH)
    assert (found.kind, found.axis, found.count, found.size) == ("all_reduce", "model", 12, 12 * 8 * 16 * 4)
    assert found.origin == "while/body/dot_general"
    assert module.repeated_flops == 11 * 2 * 8 * 16 * 16  # XLA's own analysis has the first round


@pytest.mark.parametrize(
    ("groups", "axis"),
    [
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", "model"),
        ("replica_groups={{0,2,4,6},{1,3,5,7}}", "data"),
        ("replica_groups={{0,1,2,3,4,5,6,7}}", "data+model"),
        ("replica_groups=[4,2]<=[8]", "model"),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", "data"),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=1,'axis_2'=2] {'axis_2'}", "model"),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", "data"),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4], device_ids=([4,2]T(1,0)) {'axis_1'}", "data"),
    ],
)
def test_every_way_to_name_who_communicates(groups, axis):
    text = f"""\
ENTRY %main (x: bf16[4,8]) -> (bf16[4,8], f32[2]) {{
  %x = bf16[4,8]{{1,0}} parameter(0)
  ROOT %r = (bf16[4,8]{{1,0}}, f32[2]{{0}}) all-reduce(%x, %x), channel_id=3, {groups}, to_apply=%add
}}
"""
    (found,) = CompiledModule(text).collectives(MESH)
    assert found.axis == axis
    assert found.size == 4 * 8 * 2 + 2 * 4


def test_sizes_by_kind_and_the_axis_of_a_permute():
    text = """\
ENTRY %main (x: f32[8]) -> f32[2] {
  %x = f32[8]{0} parameter(0)
  %moved = f32[8]{0} collective-permute(%x), channel_id=1, source_target_pairs={{0,2},{2,4},{4,6},{6,0}}
  %all = f32[32]{0} all-gather(%moved), channel_id=2, replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}
  ROOT %part = f32[2]{0} reduce-scatter(%x), channel_id=3, replica_groups=[2,4]<=[4,2]T(1,0), to_apply=%add
}
"""
    found = {c.kind: (c.axis, c.size) for c in CompiledModule(text).collectives(MESH)}
    assert found == {"permute": ("data", 32), "all_gather": ("data", 128), "reduce_scatter": ("data", 32)}


def test_text_that_is_no_module_is_refused():
    with pytest.raises(ValueError, match="no ENTRY"):
        CompiledModule("module @jit_train_step {}")
