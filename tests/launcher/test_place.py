"""Which host this is: as the user says, or as the batch system does, where it says all of it."""

from __future__ import annotations

import pytest

from automap_launch.errors import ConfigError
from automap_launch.launcher.config import LauncherConfig
from automap_launch.launcher.place import Place, find_place, first_host

SLURM = {
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[03-05,8]",
    "SLURM_NODEID": "2",
    "SLURM_JOB_ID": "31234567",
}
SKYPILOT = {"SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.9", "SKYPILOT_NODE_RANK": "1"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}


def place(environment=(), **config):
    return find_place(LauncherConfig(**config), dict(environment))


def test_a_single_host_needs_no_word():
    assert place() == Place(1, 0, "")
    assert place(coordinator="gpu0:29500") == Place(1, 0, "")


def test_the_user_says_it():
    said = place(hosts=2, host=1, coordinator="gpu0:29500")
    assert (said.hosts, said.host, said.address, said.port) == (2, 1, "gpu0", 29500)
    assert place(SLURM, hosts=1) == Place(1, 0, "")
    assert place(SLURM, hosts=4, host=0, coordinator="login:1") == Place(4, 0, "login:1")


def test_a_batch_system_says_it():
    assert place(SLURM) == Place(4, 2, f"gpu03:{20000 + 31234567 % 20000}")
    assert place(SKYPILOT) == Place(2, 1, "10.0.0.7:20000")
    assert place(OPEN_MPI, coordinator="node0:29500") == Place(2, 1, "node0:29500")


@pytest.mark.parametrize("missing", SLURM)
def test_a_part_of_slurms_variables_says_nothing(missing):
    assert place({name: value for name, value in SLURM.items() if name != missing}) == Place()


def test_a_step_on_one_node_is_a_single_host():
    assert place({**SLURM, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}) == Place()
    assert place({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"}) == Place()


@pytest.mark.parametrize(
    ("environment", "config", "message"),
    [
        ({}, {"hosts": 2}, "nothing says which of them this one is"),
        ({}, {"hosts": 2, "host": 2, "coordinator": "a:1"}, "from 0 to 1, got 2"),
        ({}, {"hosts": 2, "host": 0}, "HOST:PORT of host 0, got None"),
        ({}, {"hosts": 2, "host": 0, "coordinator": "gpu0"}, "got 'gpu0'"),
        (OPEN_MPI, {}, "HOST:PORT of host 0, got None"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, {}, "mpirun started 2 launchers on this host"),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "32"}, {}, "Slurm started 32 launchers on 4 nodes"),
    ],
)
def test_what_makes_no_place_is_refused(environment, config, message):
    with pytest.raises(ConfigError, match=message) as refused:
        place(environment, **config)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("nodes", "first"), [("gpu[03-05,8],login1", "gpu03"), ("a1", "a1"), ("a1,b[2-3]", "a1"), ("n[7,9]-ib", "n7-ib")]
)
def test_the_first_of_slurms_nodes(nodes, first):
    assert first_host(nodes) == first
