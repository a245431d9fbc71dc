"""The user's script, run as Python itself would run it, and what to show of its failures."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import runpy
import sys
import traceback
import types
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from automap_launch.errors import ConfigError
from automap_launch.frontends.source_lines import add_users_folder, is_users
from automap_launch.frontends.trax import hook as trax_hook
from automap_launch.train_step import Entry

_OURS = str(Path(__file__).resolve().parent.parent) + os.sep


@dataclass(frozen=True)
class UserFailure:
    """How a script ended itself.

    Attributes:
      message: the last line of the traceback, `ValueError: ...`, or what was given to `sys.exit`.
      file, line: innermost line of the user's own, None where there is none.
      text: the traceback without our frames; empty after `sys.exit`.
      exit_code: that Python would have ended with.
    """

    message: str
    file: str | None
    line: int | None
    text: str
    exit_code: int = 1


def run_script(entry: Entry) -> None:
    """Runs the script or module as `__main__`, with its own arguments and import path, in this process.

    Raises:
      ConfigError: there is no such file or module.
      BaseException: whatever the script raises, `SystemExit` among it.
    """
    from automap_launch.frontends.jax_settings import follow_environment  # imports JAX

    follow_environment()
    if entry.script is not None:
        path = check_script(entry.script)
        sys.argv = [entry.script, *entry.args]
        sys.path[0:0] = [str(path.resolve().parent)]
        add_users_folder(path.resolve().parent)
        _run_file(os.path.abspath(path))
    else:
        module = str(entry.module)
        sys.argv = [module, *entry.args]
        sys.path[0:0] = [os.getcwd()]
        add_users_folder(check_module(module))
        runpy.run_module(module, trax_hook.globals_of(module), run_name="__main__", alter_sys=True)


def _run_file(path: str) -> None:
    """As `python path` does; `runpy` would write over `sys.argv[0]`."""
    main = types.ModuleType("__main__")
    main.__file__ = path
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def check_script(script: str) -> Path:
    """The script's path.

    Raises:
      ConfigError: it is no file.
    """
    path = Path(script)
    if not path.is_file():
        what = "is a folder, not a script" if path.is_dir() else "does not exist"
        raise ConfigError(f"the script {script} {what} (looked in {os.getcwd()})", hint="check the path after `--`")
    return path


def check_module(module: str) -> Path:
    """The folder that holds the module.

    Raises:
      ConfigError: no module of that name can be found on the import path.
    """
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        found = None
    if found is None:
        raise ConfigError(
            f"there is no module {module!r} (looked in {os.getcwd()} and the installed packages)",
            hint="run automap-launch from the folder that holds the package, or install it",
        )
    return Path(found.origin or os.getcwd()).parent


def user_traceback(error: BaseException, entry: Entry) -> UserFailure:
    """What to show of a failure of the script: the user's frames and the libraries' below them, none of ours."""
    if isinstance(error, SystemExit):
        return _exit(error)
    summary = traceback.TracebackException.from_exception(error)
    _strip(summary)
    text = "".join(summary.format())
    file, line = _innermost(error.__traceback__)
    if isinstance(error, SyntaxError):
        file, line = error.filename or file, error.lineno or line
    summary.__notes__ = None  # JAX adds some that explain its traceback
    message = "".join(summary.format_exception_only()).strip()
    if isinstance(error, SyntaxError):
        message = message.splitlines()[-1]
    return UserFailure(message, file, line, text)


def told_by_the_scripts_hook(error: BaseException) -> bool:
    """Whether the script has a `sys.excepthook` of its own, which was called now, as Python would at its end."""
    if sys.excepthook is sys.__excepthook__ or isinstance(error, SystemExit):
        return False
    trace = error.__traceback__
    while trace is not None and not is_users(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    try:
        sys.excepthook(type(error), error, trace)
    except Exception:
        print("Error in sys.excepthook:", file=sys.stderr)
        traceback.print_exc()
        return False
    return True


def _exit(error: SystemExit) -> UserFailure:
    file, line = _innermost(error.__traceback__)
    if error.code is None or isinstance(error.code, int):
        code = int(error.code or 0)
        return UserFailure(f"the script called sys.exit({code})", file, line, "", code)
    return UserFailure(str(error.code), file, line, "", 1)


def _strip(summary: traceback.TracebackException) -> None:
    frames = list(summary.stack)
    # What started the script is ours and `runpy`'s; the script's own frames come after.
    starters = (__file__, "<frozen runpy>")
    first = max((i + 1 for i, frame in enumerate(frames) if frame.filename in starters), default=0)
    kept = [f for f in frames[first:] if not _is_ours(f.filename) and not f.filename.startswith("<frozen ")]
    summary.stack = traceback.StackSummary.from_list(kept)
    for cause in (summary.__cause__, summary.__context__):
        if cause is not None:
            _strip(cause)


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS) and not is_users(file)


def _innermost(trace: TracebackType | None) -> tuple[str | None, int | None]:
    users = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]
    users = [(file, line) for file, line in users if is_users(file)]
    return users[-1] if users else (None, None)
