"""Messages that cross between four processes, and arrays of several processes that meet in eager code."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from automap_launch.launcher.ports import free_port
from tests.runtime.channel_traffic import MICRO_BATCHES, PROCESSES, STEPS
from tests.runtime.device_checks import ROOT


@pytest.mark.slow
def test_crossed_traffic_between_four_processes_arrives_as_it_was_sent() -> None:
    port = str(free_port())
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.runtime.channel_traffic", str(rank), port],
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(PROCESSES)
    ]
    try:
        outputs = [worker.communicate(timeout=120)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [0] * PROCESSES, "\n".join(outputs)
    # Of four stages in a row the inner two hear from both sides, in two schedules; with two stages over two processes
    # each hears from the other; with two stages on all processes each process has both.
    each = STEPS * MICRO_BATCHES
    inner, outer = 2 * 2 * each + each + 2 * each, 2 * each + each + 2 * each
    assert [int(output.split("taken ")[1].split()[0]) for output in outputs] == [outer, inner, inner, outer]
