"""Peaks of known accelerators: what a machine's own measurement in one dtype says about the other dtypes.

Dense operations a second from the vendors' data sheets; the presets in `conf/cluster/` cite them one by one.
"""

from __future__ import annotations

# By the beginning of JAX's `device_kind`, vendor's prefix left out; the first match counts.
_PEAKS: tuple[tuple[str, dict[str, float]], ...] = (
    ("H200", {"float32": 494.5e12, "float64": 67e12, "float16": 989.5e12, "bfloat16": 989.5e12}),
    ("H100", {"float32": 494.5e12, "float64": 67e12, "float16": 989.5e12, "bfloat16": 989.5e12}),
    ("A100", {"float32": 156e12, "float64": 19.5e12, "float16": 312e12, "bfloat16": 312e12}),
    ("V100", {"float32": 15.7e12, "float64": 7.8e12, "float16": 125e12, "bfloat16": 15.7e12}),
    ("TPU v4", {"float32": 275e12, "bfloat16": 275e12}),
)


def corrected_peaks(kind: str, measured_float32: float) -> dict[str, float]:
    """Operations a second by dtype of a device of which `float32` was measured.

    A known kind's other dtypes are scaled by the share of its float32 peak that was reached. Of an unknown kind only
    float32 is known.
    """
    name = kind.removeprefix("NVIDIA ").removeprefix("Tesla ")
    for prefix, peaks in _PEAKS:
        if name.startswith(prefix):
            reached = measured_float32 / peaks["float32"]
            return {dtype: peak * reached for dtype, peak in peaks.items()}
    return {"float32": measured_float32}
