"""Scripts captured as the launcher does it, each in a process of its own."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from automap_launch.errors import CaptureError, ConfigError, ScriptError
from automap_launch.frontends.capture import capture
from automap_launch.frontends.config import FrontendConfig
from automap_launch.train_step import Entry, TrainStep

PREAMBLE = """
import sys, os, functools
import jax, jax.numpy as jnp, numpy as np

@jax.jit
def train_step(params, x):
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((x @ p) ** 2))(params)
    return params - 0.1 * grads, loss

"""


@pytest.fixture
def captured(tmp_path):
    def run(source, *args, platforms=("cpu",), **options):
        script = tmp_path / "train.py"
        script.write_text(PREAMBLE + textwrap.dedent(source))
        entry = Entry(script=str(script), args=args)
        return capture(entry, FrontendConfig(**options), platforms, tmp_path / "step", tmp_path / "logs" / "log")

    return run


def test_the_step_is_saved_and_side_effects_go_nowhere(captured, tmp_path):
    step = captured(
        """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--steps", type=int)
        params = jnp.ones((4, 2))
        with open(os.path.join(os.path.dirname(__file__), "written.txt"), "w") as file:
            file.write("by the script")
        for i in range(parser.parse_args().steps):
            params, loss = train_step(params, np.ones((8, 4), np.float32))
            print("loss", f"{loss:.2f}", jax.device_count())
        """,
        "--steps=10",
        platforms=("cpu", "cuda"),
    )
    assert TrainStep.load(tmp_path / "step") == step
    assert step.platforms == ("cpu", "cuda")
    assert step.identity.name == "train_step"
    assert step.identity.source.file == str(tmp_path / "train.py")
    assert step.entry.args == ("--steps=10",)
    assert [r.replaces for r in step.results] == [0, None]
    assert {s.file for s in step.sources if s} == {str(tmp_path / "train.py")}
    assert not (tmp_path / "written.txt").exists()
    assert "loss 0.50 1" in (tmp_path / "logs" / "log").read_text()


def test_temporary_files_go_with_the_capture(captured, tmp_path):
    """The process is ended before it could remove them."""
    captured(
        """
        import tempfile
        with tempfile.NamedTemporaryFile() as file, tempfile.TemporaryDirectory() as folder:
            print("paths", file.name, folder, tempfile.mkstemp()[1])
            params = jnp.ones((4, 2))
            for i in range(2):
                params, loss = train_step(params, np.ones((8, 4), np.float32))
        """
    )
    paths = (tmp_path / "logs" / "log").read_text().partition("paths ")[2].split()
    assert len(paths) == 3
    assert not any(Path(path).exists() for path in paths)


def test_nothing_of_the_script_runs_after_the_step_was_found(captured, tmp_path):
    marker = tmp_path / "logs" / "log"
    captured(
        """
        params = jnp.ones((4, 2))
        try:
            while True:
                try:
                    params, loss = train_step(params, np.ones((8, 4), np.float32))
                except BaseException:
                    print("swallowed")
        finally:
            print("finally")
        """
    )
    assert marker.read_text() == ""


def test_a_model_far_above_the_limit_is_captured_in_little_memory(captured, tmp_path):
    step = captured(
        """
        def peak():  # KiB; not ru_maxrss, which a process starts with from the one that made it
            return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
        before = peak()
        params = jax.random.normal(jax.random.key(0), (32768, 32768))
        momentum = jnp.zeros_like(params)
        for _ in range(8):
            params, loss = train_step(params, np.ones((8, 32768), np.float32))
            print((peak() - before) // 1024, "MiB", float(loss))
        """
    )
    assert step.arguments[0].shape == (32768, 32768)
    grown = int((tmp_path / "logs" / "log").read_text().split()[0])
    assert grown < 400  # the parameters alone would be 4 GiB


def test_a_failure_before_the_step_is_the_scripts(captured):
    with pytest.raises(ScriptError, match="ValueError: no data") as error:
        captured("def load():\n    raise ValueError('no data')\nload()")
    assert error.value.exit_code == 1
    assert error.value.line == len(PREAMBLE.splitlines()) + 2
    assert "raise ValueError('no data')" in error.value.hint
    assert "automap_launch" not in error.value.hint


def test_the_exit_code_of_the_script(captured):
    with pytest.raises(ScriptError, match=r"sys\.exit\(3\)") as error:
        captured("sys.exit(3)")
    assert error.value.exit_code == 3


def test_a_script_that_kills_its_process(captured):
    with pytest.raises(ScriptError, match="SIGSEGV") as error:
        captured("print('last words', flush=True)\nimport signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    assert error.value.exit_code == 128 + signal.SIGSEGV
    assert "last words" in error.value.message


def test_a_script_that_fails_after_its_first_step_is_captured_all_the_same(captured):
    step = captured("params, loss = train_step(jnp.ones((4, 2)), jnp.ones((8, 4)))\nraise RuntimeError('later')")
    assert step.identity.name == "train_step"


def test_it_takes_no_longer_than_allowed_and_leaves_no_process(captured, tmp_path):
    with pytest.raises(CaptureError, match="capture_timeout=5s") as error:
        captured(
            """
            import subprocess, time
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            print(child.pid, flush=True)
            time.sleep(600)
            """,
            capture_timeout="5s",
        )
    assert "capture_timeout" in error.value.hint
    child = int((tmp_path / "logs" / "log").read_text())
    with pytest.raises(ProcessLookupError):
        _wait_until_gone(child)


def test_what_is_said_of_the_one_device_is_left_out(captured):
    step = captured(
        """
        mesh = jax.make_mesh((1,), ("data",))
        rows = jax.NamedSharding(mesh, jax.P("data"))

        @functools.partial(jax.jit, in_shardings=(None, rows), out_shardings=jax.P())
        def placed_step(params, x):
            return train_step(params, jax.lax.with_sharding_constraint(x, jax.P("data")))

        with jax.set_mesh(mesh), mesh:
            params = jnp.ones((4, 2))
            for _ in range(3):
                params, loss = placed_step(params, jax.device_put(np.ones((8, 4), np.float32), rows))
        """
    )
    assert [a.role for a in step.arguments] == ["state", "batch"]
    assert "sdy" not in step.text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("jax.debug.print('{}', loss, ordered=True)", "ordered=True"),
        ("jax.config.update('jax_disable_jit', True)", "jit is turned off"),
    ],
)
def test_what_is_refused_names_the_line_and_the_way_out(captured, source, message):
    with pytest.raises(CaptureError, match=message) as error:
        captured(
            f"""
            @jax.jit
            def loud_step(params, x):
                params, loss = train_step(params, x)
                {source}
                return params, loss

            {source if "config" in source else ""}
            params = jnp.ones((4, 2))
            for _ in range(3):
                params, loss = loud_step(params, np.ones((8, 4), np.float32))
            """
        )
    assert "leave out" in error.value.hint
    assert error.value.line == len(PREAMBLE.splitlines()) + (11 if "config" in source else 5)


def test_no_step(captured):
    with pytest.raises(CaptureError, match="no jitted function") as error:
        captured("print('nothing')")
    assert error.value.exit_code == 5


def test_missing_script_and_module(tmp_path):
    for entry in (Entry(script="no/train.py"), Entry(module="no_such_module_here")):
        with pytest.raises(ConfigError, match="no"):
            capture(entry, FrontendConfig(), ["cpu"], tmp_path / "step", tmp_path / "log")


def test_the_child_ends_with_a_killed_launcher(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)")
    launcher = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from pathlib import Path; from automap_launch.frontends.capture import capture;"
            "from automap_launch.frontends.config import FrontendConfig; from automap_launch.train_step import Entry;"
            f"capture(Entry(script={str(script)!r}), FrontendConfig(), ['cpu'], Path('step'), Path('log'))",
        ],
        cwd=tmp_path,
    )
    log, deadline = tmp_path / "log", time.monotonic() + 60
    while not (log.exists() and log.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.1)
    launcher.kill()
    launcher.wait()
    with pytest.raises(ProcessLookupError):
        _wait_until_gone(int(log.read_text()))


def _wait_until_gone(pid: int) -> None:
    """Raises ProcessLookupError when the process is gone, as is expected within 20 s."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        os.kill(pid, 0)
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            raise ProcessLookupError
        time.sleep(0.1)
