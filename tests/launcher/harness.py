"""Launches of small worker programs, in this process or in a launcher process of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from automap_launch.launcher.config import LauncherConfig
from automap_launch.launcher.sessions import members
from automap_launch.launcher.spec import LaunchSpec
from automap_launch.launcher.supervisor import LaunchResult, launch
from automap_launch.run_folder import RunFolder
from automap_launch.train_step import Entry

DRIVER = Path(__file__).with_name("driver.py")

# What every worker program may use. A script that catches its own exceptions stands for `launcher/worker.py`.
PREAMBLE = """
import json, os, signal, socket, subprocess, sys, time, traceback
from pathlib import Path

rank = int(os.environ["RANK"])
attempt = int(os.environ["AUTOMAP_RESTART_COUNT"])
run_dir = Path(os.environ["AUTOMAP_RUN_DIR"])

def touch(name):
    (run_dir / name).write_text(str(os.getpid()))

def wait_for(name):
    while not (run_dir / name).exists():
        time.sleep(0.01)

def event(**record):
    os.write(int(os.environ["AUTOMAP_FEED_FD"]), json.dumps(record).encode() + b"\\n")

def fail(message, exit_code=1, kind="script", trace="Traceback ...", at=None):
    from automap_launch.launcher.failure import FailureRecord
    from automap_launch.run_folder import RunFolder

    record = FailureRecord(rank, "here", at or time.time(), kind, message, exit_code, "train.py", 7, trace)
    record.save(RunFolder(run_dir).rank_failure(rank, attempt))
    os._exit(exit_code)
"""


@dataclass
class Room:
    """A run folder with a worker program in it."""

    folder: RunFolder
    processes: int
    start_timeout: float = 60.0
    terminal: io.StringIO = field(default_factory=io.StringIO)
    events: list[dict[str, Any]] = field(default_factory=list)
    given: LaunchSpec | None = None
    command: Sequence[str] = ()

    @property
    def program(self) -> Path:
        return self.folder.root / "program.py"

    @property
    def spec(self) -> LaunchSpec:
        return self.given or LaunchSpec(
            run_dir=str(self.folder.root),
            entry=Entry(script="train.py"),
            frontend={},
            platform="cpu",
            processes=self.processes,
            devices_per_process=1,
            train_step="train_step",
            layout="layout.json",
            start_timeout_seconds=self.start_timeout,
        )

    def launch(self, on_event: Callable[[dict[str, Any]], None] | None = None, **config: Any) -> LaunchResult:
        return launch(
            self.spec,
            launcher_config(**config),
            self.folder,
            on_event or self.events.append,
            self.terminal,
            command=self.command or [sys.executable, str(self.program)],
        )

    def launcher_process(self, *, prefix: tuple[str, ...] = (), **config: Any) -> subprocess.Popen[str]:
        """A launcher of its own; what it prints goes to `launcher.txt`. Ends as `launch` says."""
        spec = self.folder.root / "given.json"
        self.spec.save(spec)
        command = self.command or [sys.executable, str(self.program)]
        arguments = [str(spec), json.dumps(asdict(launcher_config(**config))), *command]
        with (self.folder.root / "launcher.txt").open("w") as output:
            return subprocess.Popen(
                [*prefix, sys.executable, str(DRIVER), *arguments],
                stdin=subprocess.PIPE,  # like a terminal, it stays open
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def printed(self) -> str:
        return (self.folder.root / "launcher.txt").read_text()

    def wait_for(self, *names: str) -> list[int]:
        """Waits until the workers have touched the files; returns the process ids in them."""
        paths = [self.folder.root / name for name in names]
        eventually(lambda: all(path.exists() and path.read_text() for path in paths), f"{names} touched")
        return [int(path.read_text()) for path in paths]

    def log(self, rank: int, attempt: int = 0) -> str:
        return self.folder.rank_log(rank, attempt).read_text()


def launcher_config(**config: Any) -> LauncherConfig:
    return LauncherConfig(**{"grace_period": "5s", **config})


def make_room(folder: Path, program: str, processes: int = 1, start_timeout: float = 60.0) -> Room:
    room = Room(RunFolder(folder), processes, start_timeout)
    room.program.write_text(PREAMBLE + textwrap.dedent(program))
    return room


def eventually(condition: Callable[[], bool], what: str, seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def nothing_left_of(sessions: list[int]) -> bool:
    return not any(members(sessions).values())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def children() -> set[int]:
    """Processes that this one has started and not yet waited for."""
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}
