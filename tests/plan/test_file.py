"""`plan.yaml`: exact round trip, readable, and refused by name when it is wrong or for something else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from automap_launch.errors import ClusterMismatchError, NoPlanFitsError, PlanError
from automap_launch.plan.build import build_plan, decision_of
from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import STORAGES, Decision
from automap_launch.plan.file import check_plan, load_plan, save_plan
from automap_launch.plan.plan import Origin
from tests.plan.programs import cluster, two_blocks, two_layers

PROGRAM, CLUSTER = two_blocks(), cluster()
CHOSEN = Decision(4, 2, frozenset({2}), "optimizer")


def plan_of(decision=CHOSEN):
    return build_plan(decision, CostModel(PROGRAM, CLUSTER), Origin("dqn", 3, 120, 1.5))


def edited(tmp_path, change):
    """A saved plan, its record changed by `change`, loaded again."""
    path = tmp_path / "plan.yaml"
    save_plan(plan_of(), path)
    record = yaml.safe_load(path.read_text())
    change(record)
    path.write_text(yaml.safe_dump(record))
    return load_plan(path)


@pytest.mark.parametrize("storage", STORAGES)
def test_round_trip_is_exact(tmp_path, storage):
    plan = plan_of(replace(CHOSEN, storage=storage))
    save_plan(plan, tmp_path / "plan.yaml")
    assert load_plan(tmp_path / "plan.yaml") == plan
    assert decision_of(plan, PROGRAM) == replace(CHOSEN, storage=storage)
    assert check_plan(plan, PROGRAM, CLUSTER) == plan


def test_the_file_is_what_the_contract_says_and_reads_well(tmp_path):
    path = tmp_path / "plan.yaml"
    save_plan(plan_of(), path)
    text = path.read_text()
    record = yaml.safe_load(text)
    assert list(record) == [
        "schema", "fingerprint", "cluster", "mesh", "groups", "storage", "stages", "micro_batches", "schedule",
        "allow_local_batch_stats", "predicted", "origin", "versions",
    ]  # fmt: skip
    assert record["mesh"] == {"data": 4, "model": 2}
    assert record["groups"][2]["axis"] == "model"
    assert record["groups"][2]["members"] == ["params/w1", "params/w2"]
    assert record["storage"] == {"momentum/w1": "data", "momentum/w2": "data"}
    assert set(record["predicted"]["memory_bytes_per_device"]) == {
        "parameters", "optimizer", "gradients", "activations",
    }  # fmt: skip
    assert {"automap_launch", "jax", "jaxlib"} <= set(record["versions"])
    assert text.startswith("# A parallel plan")
    assert "&id" not in text
    assert "devices: [0, 1, 2, 3, 4, 5, 6, 7]" in text


def test_nothing_half_written_is_left_behind(tmp_path):
    save_plan(plan_of(), tmp_path / "deep" / "plan.yaml")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["plan.yaml"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(mehs={}), "unknown field `mehs`: did you mean `mesh`"),
        (lambda r: r["groups"][1].update(axes="model"), r"unknown field `groups\[1\]\.axes`: did you mean `axis`"),
        (lambda r: r.pop("mesh"), "`mesh` is missing"),
        (lambda r: r["mesh"].update(data="four"), r"`mesh\.data` is 'four': expected a whole number"),
        (lambda r: r["mesh"].update(data=0), r"mesh\.data is 0"),
        (lambda r: r["groups"][1].update(axis="rows"), "group 1 is on the axis 'rows': the mesh has data, model"),
        (lambda r: r["groups"].append(r["groups"][1]), "group 1 is there twice"),
        (lambda r: r.update(schedule="zigzag"), "schedule is 'zigzag': expected one of none, gpipe, 1f1b"),
        (lambda r: r.update(micro_batches=0), "micro_batches is 0"),
        (lambda r: r.update(schema=9), "has schema 9, this version reads 1"),
        (lambda r: r["storage"].update({"momentum/w1": "rows"}), "storage of momentum/w1 is on the axis 'rows'"),
        (lambda r: r.update(stages=[]), "stages is empty"),
        (lambda r: r["predicted"].update(bubble=None), r"`predicted\.bubble` is null: expected a number"),
    ],
)
def test_errors_name_the_key(tmp_path, change, message):
    with pytest.raises(PlanError, match=message):
        edited(tmp_path, change)


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(PlanError, match=r"gone\.yaml: No such file"):
        load_plan(tmp_path / "gone.yaml")
    path = tmp_path / "plan.yaml"
    for content, message in ((b"mesh: [", "is no YAML"), (b"\xff\xfe\xfa", "is no YAML"), (b"", "holds no fields")):
        path.write_bytes(content)
        with pytest.raises(PlanError, match=message):
            load_plan(path)


def test_an_edited_plan_is_costed_anew(tmp_path):
    def change(record):
        record["groups"][2]["axis"] = None
        record["predicted"]["step_seconds"] = 1e-9

    plan = edited(tmp_path, change)
    checked = check_plan(plan, PROGRAM, CLUSTER)
    expected = CostModel(PROGRAM, CLUSTER).estimate(Decision(4, 2, frozenset(), "optimizer"))
    assert checked.predicted.step_seconds == expected.step_seconds
    assert checked.predicted.memory_bytes_per_device == expected.memory
    assert checked.origin == plan.origin
    assert decision_of(checked, PROGRAM).sharded == frozenset()


def test_an_edited_mesh(tmp_path):
    def change(record):
        record["mesh"] = record["stages"][0]["mesh"] = {"data": 2, "model": 4}

    checked = check_plan(edited(tmp_path, change), PROGRAM, CLUSTER)
    assert decision_of(checked, PROGRAM) == Decision(2, 4, frozenset({2}), "optimizer")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda r: r.update(micro_batches=48),
            "micro_batches=48: the batch would be cut into 192 equal",
        ),
        (lambda r: r.update(schedule="1f1b"), "a pipeline has a schedule, one stage has none; got 1f1b"),
        (lambda r: r["stages"][0].update(blocks=[0, 0]), "the stages end with block 0: the step has the blocks 0 to 1"),
        (lambda r: r["stages"][0].update(blocks=[1, 1]), r"stages\[0\]\.blocks begins with block 1: expected 0"),
        (lambda r: r["groups"].pop(), r"missing \[3\]"),
        (lambda r: r["groups"][2].update(members=["params/w1"]), "group 2 .* other members .* without params/w2"),
        (lambda r: r["groups"][0].update(axis="model"), "group 0 is on the axis model: it can be on data or null"),
        (lambda r: r["groups"][0].update(axis=None), r"group 0 is the batch: with mesh\.data: 4 its axis is data"),
        (lambda r: r["groups"][3].update(axis="data"), "group 3 is on the axis data: it can be on model or null"),
        (lambda r: r["storage"].pop("momentum/w1"), "nearest to the plan's is `optimizer`: add momentum/w1"),
        (lambda r: r["storage"].update({"batch/x": "data"}), "remove batch/x"),
        (lambda r: r["stages"][0].update(mesh={"data": 8}), r"stages\[0\] has the mesh"),
    ],
)
def test_plans_that_cannot_be_carried_out_say_why(tmp_path, change, message):
    with pytest.raises(PlanError, match=message):
        check_plan(edited(tmp_path, change), PROGRAM, CLUSTER)


PIPELINE = Decision(2, 2, frozenset({2}), "optimizer", micro_batches=4, cuts=(1,), schedule="1f1b")


@pytest.mark.parametrize(
    "decision", [PIPELINE, replace(PIPELINE, storage="none", schedule="zero_bubble"), Decision(8, 1, micro_batches=2)]
)
def test_round_trip_of_pipelines_and_accumulation(tmp_path, decision):
    plan = plan_of(decision)
    save_plan(plan, tmp_path / "plan.yaml")
    assert load_plan(tmp_path / "plan.yaml") == plan
    assert decision_of(plan, PROGRAM) == decision
    assert check_plan(plan, PROGRAM, CLUSTER) == plan
    estimate = CostModel(PROGRAM, CLUSTER).estimate(decision)
    assert plan.predicted.bubble == estimate.bubble
    assert plan.predicted.memory_bytes_per_device == estimate.memory


def test_stages_have_their_blocks_and_consecutive_devices():
    first, last = plan_of(PIPELINE).stages
    assert (first.blocks, first.devices) == ((0, 0), (0, 1, 2, 3))
    assert (last.blocks, last.devices) == ((1, 1), (4, 5, 6, 7))
    assert first.mesh == last.mesh == {"data": 2, "model": 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["stages"][1].update(devices=[3, 5, 6, 7]), r"stages\[1\] has .* devices \[3, 5, 6, 7\]"),
        (lambda r: r["stages"][0].update(mesh={"data": 4, "model": 1}), r"stages\[0\] has the mesh"),
        (lambda r: r["stages"][1].update(blocks=[0, 1]), r"stages\[1\]\.blocks begins with block 0: expected 1"),
        (lambda r: r.update(schedule="none"), "a pipeline has a schedule"),
        (lambda r: r.update(micro_batches=5), "the batch would be cut into 10 equal parts"),
        (lambda r: r["stages"].pop(), "2 stages of|4 devices"),
    ],
)
def test_edited_pipelines_that_cannot_be_carried_out_say_why(tmp_path, change, message):
    path = tmp_path / "plan.yaml"
    save_plan(plan_of(PIPELINE), path)
    record = yaml.safe_load(path.read_text())
    change(record)
    path.write_text(yaml.safe_dump(record))
    with pytest.raises((PlanError, ClusterMismatchError), match=message):
        check_plan(load_plan(path), PROGRAM, CLUSTER)


def test_statistics_of_micro_batches_are_named_in_the_plan_and_must_be_allowed():
    program = two_blocks(local_values=(5,))
    plan = build_plan(Decision(4, 2, frozenset({2}), micro_batches=2), CostModel(program, CLUSTER), Origin("dqn"))
    assert plan.allow_local_batch_stats
    assert not build_plan(CHOSEN, CostModel(program, CLUSTER), Origin("dqn")).allow_local_batch_stats
    with pytest.raises(PlanError, match="allow_local_batch_stats: false"):
        decision_of(replace(plan, allow_local_batch_stats=False), program)


def test_an_axis_that_does_not_divide_is_refused(tmp_path):
    def change(record):
        record["mesh"] = record["stages"][0]["mesh"] = {"data": 1, "model": 8}
        record["groups"][0]["axis"] = None
        record["storage"] = {}

    narrow = replace(PROGRAM, groups=tuple(replace(g, sizes=(*g.sizes, 12)) for g in PROGRAM.groups))
    with pytest.raises(PlanError, match="model=8 does not divide group 2"):
        check_plan(edited(tmp_path, change), narrow, CLUSTER)


def test_another_cluster_is_refused_with_both():
    with pytest.raises(
        ClusterMismatchError, match=r"8 devices \(data 4 x model 2\).*2 hosts x 8 devices\), 16 devices"
    ):
        check_plan(plan_of(), PROGRAM, cluster(hosts=2))
    with pytest.raises(ClusterMismatchError, match=r"the plan is for made-up .*this is v100_1x8 \(cuda"):
        check_plan(plan_of(), PROGRAM, replace(CLUSTER, name="v100_1x8", platform="cuda"))


def test_the_same_cluster_measured_again_is_no_other():
    faster = cluster(op_seconds=1e-3)
    checked = check_plan(plan_of(), PROGRAM, faster)
    assert checked.cluster.digest == faster.digest
    assert checked.predicted.step_seconds > plan_of().predicted.step_seconds


def test_another_step_is_refused_with_the_difference():
    other = two_layers(fingerprint="f" * 16)
    with pytest.raises(PlanError, match="fingerprint is 0000000000000000, the script's is ffffffffffffffff"):
        check_plan(plan_of(), other, CLUSTER)
    plan = plan_of()
    renamed = replace(plan, groups=tuple(replace(g, members=(*g.members, "params/old")) for g in plan.groups))
    with pytest.raises(PlanError, match="parameters only in the plan: params/old"):
        check_plan(renamed, other, CLUSTER)


def test_a_plan_that_needs_too_much_memory_is_refused():
    with pytest.raises(NoPlanFitsError, match=r"the plan needs .* a device, and may use"):
        check_plan(plan_of(), PROGRAM, cluster(memory=2**15))
