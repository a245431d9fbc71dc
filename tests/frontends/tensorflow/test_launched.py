"""A TensorFlow script from the command line, as two processes of four devices, against the plain script."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.equality import F64_TOLERANCE, assert_equal
from tests.frontends.tensorflow.harness import SCRIPTS
from tests.recipes.runs import launch, plain_dump

pytest.importorskip("tensorflow", reason="TensorFlow is not installed: pip install 'automap-launch[tf]'")
pytestmark = pytest.mark.slow

SCRIPT = SCRIPTS / "custom_loop.py"
TWO_BY_FOUR = ("cluster.devices=8", "launcher.processes=2", "launcher.devices_per_process=4")
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}


def test_two_processes_do_what_the_script_does_alone(tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    plain = plain_dump(SCRIPT, [], alone, QUIET)
    overrides = ("cluster=local", "search=heuristic", *TWO_BY_FOUR, "search.pin.data=8", "search.pin.model=1")
    launched = launch(SCRIPT, [], together, overrides=overrides, env=QUIET)
    assert launched.exit_code == 0, launched.terminal
    assert launched.summary["frontend"] == "tensorflow"
    assert launched.summary["train"]["steps"] == 9
    assert launched.dump is not None
    assert_equal(plain, launched.dump, plain, tolerance=F64_TOLERANCE)
    # The checkpoint was written once, where the script says; the other rank has one of its own.
    names = {path.name for path in alone.glob("checkpoint*")}
    assert names
    assert {path.name for path in together.glob("checkpoint*")} == names
    assert {path.name for path in together.glob("outputs/**/rank_1.files/**/checkpoint*")} == names
