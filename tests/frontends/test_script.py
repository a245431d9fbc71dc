import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from automap_launch.errors import ConfigError
from automap_launch.frontends.script import check_module, check_script, told_by_the_scripts_hook, user_traceback
from automap_launch.train_step import Entry

RUN = """
import sys
from automap_launch.frontends.script import run_script, user_traceback
from automap_launch.train_step import Entry
kind = "script" if sys.argv[1].endswith(".py") else "module"
entry = Entry(**{kind: sys.argv[1]}, args=tuple(sys.argv[2:]))
try:
    run_script(entry)
except BaseException as error:
    failure = user_traceback(error, entry)
    print("MESSAGE", failure.message, "FILE", failure.file, "LINE", failure.line, "CODE", failure.exit_code)
    print(failure.text)
"""


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_runs_as_python_would_run_it(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "helper.py").write_text("NAME = 'helper'")
    (tmp_path / "sub" / "train.py").write_text(
        "import sys, os, pickle, helper\n"
        "class Config: pass\n"
        "if __name__ == '__main__':\n"
        "    folder = os.path.dirname(os.path.realpath(__file__))\n"
        "    print(sys.argv, helper.NAME, os.path.isabs(__file__), sys.path[0] == folder)\n"
        "    print(type(pickle.loads(pickle.dumps(Config()))).__name__)\n"
    )
    lines = run(tmp_path, "sub/train.py", "--lr", "0.1").splitlines()
    assert lines == ["['sub/train.py', '--lr', '0.1'] helper True True", "Config"]


def test_a_module_runs_with_dash_m(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "mod.py").write_text(
        "import sys\nprint(__name__, sys.argv[1:], __package__)\nraise KeyError('x')"
    )
    out = run(tmp_path, "pkg.mod", "-v")
    assert "__main__ ['-v'] pkg" in out
    assert f"FILE {tmp_path}/pkg/mod.py LINE 3" in out


def test_only_the_users_frames_are_shown(tmp_path):
    (tmp_path / "train.py").write_text(
        "import jax\n\ndef f(x):\n    return undefined + x\n\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    jax.jit(f)(1.0)\n"
    )
    out = run(tmp_path, "train.py")
    assert "MESSAGE NameError: name 'undefined' is not defined" in out
    assert f"FILE {tmp_path}/train.py LINE 4 CODE 1" in out
    assert "return undefined + x" in out
    assert "ZeroDivisionError" in out
    assert "automap_launch" not in out
    assert "runpy" not in out


def test_a_syntax_error_names_its_line(tmp_path):
    (tmp_path / "train.py").write_text("x = 1\nx = = 2\n")
    out = run(tmp_path, "train.py")
    assert "MESSAGE SyntaxError: invalid syntax" in out
    assert f"FILE {tmp_path}/train.py LINE 2" in out


@pytest.mark.parametrize(
    ("argument", "message", "code"),
    [("3", "the script called sys.exit(3)", 3), ("'no data'", "no data", 1), ("", "the script called sys.exit(0)", 0)],
)
def test_sys_exit(argument, message, code):
    try:
        sys.exit(*([eval(argument)] if argument else []))
    except SystemExit as error:
        failure = user_traceback(error, Entry(script="x.py"))
    assert (failure.message, failure.exit_code, failure.text) == (message, code, "")


def test_the_scripts_own_hook_is_told_of_its_failure(tmp_path, monkeypatch, capsys):
    script = tmp_path / "train.py"
    script.write_text("def fail():\n    raise KeyError('x')\nfail()")
    with pytest.raises(KeyError) as failure:
        exec(compile(script.read_text(), str(script), "exec"), {})
    # Python's own, whatever another test's libraries (W&B) have put there
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    assert not told_by_the_scripts_hook(failure.value)
    told = []
    monkeypatch.setattr(sys, "excepthook", lambda *args: told.append(args))
    assert told_by_the_scripts_hook(failure.value)
    ((kind, error, trace),) = told
    assert (kind, error) == (KeyError, failure.value)
    assert traceback.extract_tb(trace)[-1].filename == str(script)
    assert not told_by_the_scripts_hook(SystemExit(3))
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: 1 / 0)
    assert not told_by_the_scripts_hook(failure.value)
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_settings_of_jax_that_a_script_makes_in_the_environment_count(tmp_path):
    (tmp_path / "train.py").write_text(
        "import os\n"
        "os.environ |= {'JAX_ENABLE_X64': 'true', 'JAX_DEFAULT_PRNG_IMPL': 'rbg', 'JAX_PLATFORMS': 'none'}\n"
        "import jax.numpy as jnp, jax\n"
        "os.environ['JAX_NUMPY_RANK_PROMOTION'] = 'raise'  # too late, as without us\n"
        "print(jnp.ones(1).dtype, jax.random.key(0).dtype, jax.config.jax_numpy_rank_promotion)"
    )
    assert run(tmp_path, "train.py") == "float64 key<rbg> allow\n"


def test_a_missing_script_or_module_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.py does not exist"):
        check_script(str(tmp_path / "nowhere.py"))
    with pytest.raises(ConfigError, match="is a folder"):
        check_script(str(tmp_path))
    for name in ("no_such_package", "no_such_package.mod", "json.no_such"):
        with pytest.raises(ConfigError, match=f"no module '{name}'"):
            check_module(name)
