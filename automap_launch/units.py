"""Human durations and sizes: `2h`, `90s`, `16MiB`. Used by the config and by messages."""

from __future__ import annotations

import re

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


def parse_duration(text: str | float, what: str = "a duration") -> float:
    """Seconds of `2h`, `1h30m`, `90s`, `500ms`, or of a plain number of seconds.

    Raises:
      ValueError: `text` is no duration; `what` names it, `search.budget`.
    """
    if isinstance(text, (int, float)):
        return float(text)
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(ms|min|s|m|h|d)", text)
    if not parts or re.sub(r"(\d+(?:\.\d+)?)\s*(ms|min|s|m|h|d)\s*", "", text):
        raise ValueError(f"{what} is written like 90s, 20m, 2h or 1h30m, got {text!r}")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def parse_bytes(text: str | int, what: str = "a size") -> int:
    """Bytes of `16MiB`, `1.5GB`, or of a plain number of bytes.

    Raises:
      ValueError: `text` is no size; `what` names it, `frontend.materialize_limit`.
    """
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)?", text.strip())
    if not match:
        raise ValueError(f"{what} is written like 16MiB, 1.5GB or 1048576, got {text!r}")
    return int(float(match[1]) * _BYTES[match[2] or "B"])


def format_seconds(seconds: float) -> str:
    """`1.23 ms`, `4.5 s`, `2.1 min`: three significant digits, the unit that reads best."""
    for limit, scale, unit in [(1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s"), (7200.0, 1 / 60, "min")]:
        if seconds < limit:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds / 3600:.3g} h"


def format_bytes(count: float) -> str:
    """`812 MiB`, `1.5 GiB`: three significant digits."""
    for scale, unit in [(2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")]:
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{int(count)} B"
