"""JAX's settings as a script makes them, although JAX is imported, and its devices are chosen, before the script runs.

JAX reads `JAX_*` variables when it is imported. A script expects its own `import jax` to be that moment: what is in the
environment by then counts, what comes later does not. Settings that choose devices are the launcher's to make.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

# What is in the environment before the script runs.
_PREFIX = "JAX_"
_OURS = ("jax", "jaxlib", "automap_launch")
_DEVICES = frozenset(
    {
        "jax_cpu_collectives_implementation",
        "jax_cuda_visible_devices",
        "jax_num_cpu_devices",
        "jax_platform_name",
        "jax_platforms",
        "jax_rocm_visible_devices",
    }
)
_SWITCHES = {"y": True, "yes": True, "t": True, "true": True, "on": True, "1": True} | {
    "n": False, "no": False, "f": False, "false": False, "off": False, "0": False
}  # fmt: skip


def follow_environment() -> Callable[[], None]:
    """Has the script's first import of JAX take the variables that the script has set by then.

    Returns:
      A function that takes it back.
    """
    real_import = builtins.__import__
    before = dict(os.environ)

    def watching_import(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        importer = str((globals or {}).get("__name__", "")).partition(".")[0]
        if name.partition(".")[0] == "jax" and level == 0 and importer not in _OURS:
            stop()
            _take(before)
        return real_import(name, globals, locals, fromlist or (), level)

    def stop() -> None:
        if builtins.__import__ is watching_import:
            builtins.__import__ = real_import

    builtins.__import__ = watching_import
    return stop


def keep_devices() -> Callable[[], None]:
    """Makes `jax.config.update` of a setting that chooses devices do nothing, with a message.

    Returns:
      A function that takes it back.
    """
    config = type(jax.config)
    real = config.update

    def update(self: Any, name: str, value: Any) -> None:
        asker = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
        if name in _DEVICES and asker not in _OURS:
            _say_no_effect(name)
        else:
            real(self, name, value)

    config.update = update

    def take_back() -> None:
        config.update = real

    return take_back


def _take(before: Mapping[str, str]) -> None:
    """Settings from variables that are not what they were `before`."""
    changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
    for name, value in changed.items():
        setting = name.lower()
        if name == "XLA_FLAGS" or setting in _DEVICES:
            _say_no_effect(name)
        elif name.startswith(_PREFIX) and setting in jax.config.values:
            jax.config.update(setting, _parsed(value, jax.config.values[setting]))


def _parsed(text: str, now: Any) -> Any:
    """`text` as a value of the kind that the setting has `now`."""
    if isinstance(now, bool):
        return _SWITCHES.get(text.strip().lower(), text)
    for kind in (int, float):
        if isinstance(now, kind):
            return kind(text)
    return text


def _say_no_effect(name: str) -> None:
    print(
        f"automap-launch: {name}, set by the script, has no effect: the devices are those of the cluster",
        file=sys.stderr,
    )
