"""Runs scripts under workers, without a supervisor, and plainly."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from automap_launch.launcher.environment import worker_environment
from automap_launch.launcher.spec import LaunchSpec, Rival
from automap_launch.plan.execution import Execution
from automap_launch.train_step import Entry

HERE = Path(__file__).parent
TIMEOUT = 150


@dataclass
class Worked:
    """What workers did: exit codes, outputs by rank, events of rank 0."""

    run_dir: Path
    codes: list[int]
    outputs: list[str]
    events: list[dict[str, Any]] = field(default_factory=list)


def run_plainly(script: Path, args: Sequence[str] = (), env: Mapping[str, str] | None = None) -> str:
    """The script without us, on one device; its output."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", **(env or {})}
    done = subprocess.run(
        [sys.executable, str(script), *args],
        cwd=script.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def prepare(script: Path, run_dir: Path, **options: Any) -> None:
    """Captures the step and writes a layout (see `prepare.py`) into `run_dir`."""
    run_dir.mkdir(parents=True)
    (run_dir / "options.json").write_text(json.dumps(options))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    done = subprocess.run(
        [sys.executable, str(HERE / "prepare.py"), str(script), str(run_dir), str(run_dir / "options.json")],
        cwd=script.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (run_dir / "layout.json").exists(), done.stderr


def run_workers(
    script: Path,
    run_dir: Path,
    processes: int,
    devices: int,
    *,
    args: Sequence[str] = (),
    frontend: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    execution: Execution | None = None,
    rivals: Sequence[Rival] = (),
) -> Worked:
    """Runs the script under `processes` workers of `devices` devices each, to the end of all."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spec = LaunchSpec(
        run_dir=str(run_dir),
        entry=Entry(script=str(script), args=tuple(args)),
        frontend=dict(frontend or {}),
        platform="cpu",
        processes=processes,
        devices_per_process=devices,
        train_step=str(run_dir / "train_step"),
        layout=str(run_dir / "layout.json"),
        execution=execution or Execution(),
        rivals=tuple(rivals),
        coordinator=f"127.0.0.1:{port}",
    )
    spec.save(run_dir / "spec.json")
    (run_dir / "logs").mkdir(exist_ok=True)
    read, write = os.pipe()
    workers = []
    for rank in range(processes):
        environment = worker_environment(os.environ, spec, rank, env or {}, write if rank == 0 else None)
        with open(run_dir / "logs" / f"rank_{rank}.log", "w") as log:
            workers.append(
                subprocess.Popen(
                    [sys.executable, "-m", "automap_launch.launcher.worker", str(run_dir / "spec.json")],
                    cwd=script.parent,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[write] if rank == 0 else [],
                )
            )
    os.close(write)
    with os.fdopen(read) as feed:
        lines = feed.read().splitlines()
    try:
        codes = [worker.wait(TIMEOUT) for worker in workers]
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
    outputs = [(run_dir / "logs" / f"rank_{rank}.log").read_text() for rank in range(processes)]
    return Worked(run_dir, codes, outputs, [json.loads(line) for line in lines])
