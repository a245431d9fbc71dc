"""`Place`: which of how many hosts this launcher is on, as the user or the batch system says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from automap_launch.errors import ConfigError
from automap_launch.launcher.config import LauncherConfig

_PORTS = (20000, 20000)  # first port, and how many: a Slurm job has one by its number


@dataclass(frozen=True)
class Place:
    """This host among those of a launch.

    Args:
      hosts: how many there are; each runs a launcher of its own with the same command.
      host: number of this one, from 0.
      coordinator: `HOST:PORT` of host 0, where the launchers meet; empty on a single host.
    """

    hosts: int = 1
    host: int = 0
    coordinator: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.host < self.hosts:
            raise ValueError(f"launcher.host is a number from 0 to {self.hosts - 1}, got {self.host}")
        address, _, port = self.coordinator.rpartition(":")
        if self.hosts > 1 and not (address and port.isdigit()):
            raise ValueError(f"launcher.coordinator is HOST:PORT of host 0, got {self.coordinator or None!r}")

    @property
    def address(self) -> str:
        """Of host 0."""
        return self.coordinator.rpartition(":")[0]

    @property
    def port(self) -> int:
        """Where the launchers meet on host 0."""
        return int(self.coordinator.rpartition(":")[2])


def find_place(config: LauncherConfig, environment: Mapping[str, str]) -> Place:
    """The place that the config names; else that of a Slurm step, SkyPilot's or Open MPI's; else a single host.

    A batch system counts only where it says everything that is needed: in an allocation without `srun`, say, the
    launcher is alone.

    Raises:
      ConfigError: what is said does not make a place, or a batch system started several launchers on a host.
    """
    known, number, meeting = _slurm(environment) or _skypilot(environment) or _open_mpi(environment) or (1, 0, "")
    hosts = known if config.hosts is None else config.hosts
    host = config.host
    if host is None:
        if hosts > 1 and hosts != known:
            raise ConfigError(
                f"launcher.hosts={hosts}, but nothing says which of them this one is",
                hint="set launcher.host to 0 on the first host, 1 on the next, ...; under Slurm, `srun` says it",
            )
        host = number if hosts > 1 else 0
    try:
        return Place(hosts, host, (config.coordinator or meeting) if hosts > 1 else "")
    except ValueError as error:
        raise ConfigError(
            str(error),
            hint="on every host: launcher.hosts=N launcher.host=0..N-1 launcher.coordinator=HOST_0:PORT",
        ) from error


def first_host(nodes: str) -> str:
    """The first of Slurm's list of nodes: `gpu03` of `gpu[03-05,8],login1`."""
    match = re.match(r"([^,\[]+)(?:\[([^,\-\]]+)[^\]]*\]([^,\[]*))?", nodes)
    if match is None:
        raise ValueError(f"a list of nodes begins with a name, got {nodes!r}")
    return "".join(part for part in match.groups() if part is not None)


def _slurm(environment: Mapping[str, str]) -> tuple[int, int, str] | None:
    """Of a step that `srun` started; variables of the job alone, without a step, say nothing about this process."""
    names = ("SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_NODEID", "SLURM_JOB_ID")
    if not all(environment.get(name) for name in names):
        return None
    nodes, tasks, names_of_nodes, number, job = (environment[name] for name in names)
    if int(nodes) == 1:
        return None
    if tasks != nodes:
        raise ConfigError(
            f"Slurm started {tasks} launchers on {nodes} nodes; one a node is needed, which starts its own workers",
            hint="srun --ntasks-per-node=1 automap-launch ...",
        )
    first, count = _PORTS
    return int(nodes), int(number), f"{first_host(names_of_nodes)}:{first + int(job) % count}"


def _skypilot(environment: Mapping[str, str]) -> tuple[int, int, str] | None:
    addresses = environment.get("SKYPILOT_NODE_IPS", "").split()
    number = environment.get("SKYPILOT_NODE_RANK", "")
    if len(addresses) < 2 or not number.isdigit():
        return None
    return len(addresses), int(number), f"{addresses[0]}:{_PORTS[0]}"


def _open_mpi(environment: Mapping[str, str]) -> tuple[int, int, str] | None:
    """`mpirun` does not say where host 0 is: `launcher.coordinator` has to."""
    size, number, here = (environment.get(f"OMPI_COMM_WORLD_{name}", "") for name in ("SIZE", "RANK", "LOCAL_SIZE"))
    if not (size.isdigit() and number.isdigit() and here.isdigit()) or int(size) == 1:
        return None
    if here != "1":
        raise ConfigError(
            f"mpirun started {here} launchers on this host; one a host is needed, which starts its own workers",
            hint="mpirun --map-by ppr:1:node automap-launch ...",
        )
    return int(size), int(number), ""
