"""Host 0's plans arrive on the other hosts as they are, and are held against what each host captured."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from automap_launch import plan_exchange
from automap_launch.errors import CaptureError, ClusterMismatchError, WorkerError
from automap_launch.launcher.host_group import HostGroup
from automap_launch.plan.build import build_plan
from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import Decision
from automap_launch.plan.plan import Origin
from automap_launch.run_folder import FAVOURITE, RunFolder
from tests.launcher.test_host_group import meet
from tests.plan.programs import cluster, two_blocks

MODEL = CostModel(two_blocks(), cluster())
PLANS = {
    FAVOURITE: build_plan(Decision(4, 2, frozenset({2}), "optimizer"), MODEL, Origin("dqn", 0)),
    "data_parallel": build_plan(Decision(8, 1), MODEL, Origin("data_parallel", 0)),
}


@pytest.fixture
def hosts():
    groups = meet(2)
    yield groups
    for group in groups:
        group.close()


def exchange(hosts: list[HostGroup], tmp_path, fingerprint=MODEL.program.step.fingerprint, model=MODEL):
    """What host 1 gets when host 0 sends `PLANS`, and the run folders of both."""
    folders = [RunFolder(tmp_path / f"host_{number}") for number in range(2)]
    for folder in folders:
        folder.root.mkdir()
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(plan_exchange.send, PLANS, fingerprint, folders[0], hosts[0])
        received = plan_exchange.receive(model, 0.9, folders[1], hosts[1])
        sending.result()
    return received, folders


def test_all_plans_arrive_and_lie_in_both_run_folders(hosts, tmp_path):
    received, folders = exchange(hosts, tmp_path)
    assert received == PLANS
    for name in PLANS:
        assert folders[1].plan_of(name).read_text() == folders[0].plan_of(name).read_text()


def test_another_step_is_refused(hosts, tmp_path):
    with pytest.raises(CaptureError, match="on host 1 is another program than on host 0"):
        exchange(hosts, tmp_path, fingerprint="0" * 64)


def test_a_plan_for_another_cluster_is_refused(hosts, tmp_path):
    other = CostModel(two_blocks(), cluster(per_host=4))
    with pytest.raises(ClusterMismatchError):
        exchange(hosts, tmp_path, model=other)


def test_a_host_0_that_has_gone_is_named(hosts, tmp_path):
    hosts[0].close()
    with pytest.raises(WorkerError, match=r"host 0 .* has gone while it made the plan"):
        plan_exchange.receive(MODEL, 0.9, RunFolder(tmp_path), hosts[1])
