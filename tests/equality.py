"""Equality of two training runs, as the project defines it (docs/contract.md, "Equality").

A run is a mapping from path to array: the metrics of every step, and the final state. Three runs are compared:

- the *reference*: the plain script;
- the *candidate*: the same script, run another way;
- the *control*: the plain script with the rows of each batch permuted, which shows how far floating-point rounding
  alone moves each tensor.

A tensor passes when its L2 difference from the reference is at most `max(tolerance * ||reference||, 3 * the
control's difference)`. One that passes only by its control must be one whose gradient is noise: an attention key
bias, a bias before a norm. Everything else must hold the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

F32_TOLERANCE = 1e-5
F64_TOLERANCE = 1e-10
CONTROL_FACTOR = 3.0
NOISE = 1e-6  # of the global gradient norm: below it, a gradient is rounding

Run = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class TensorComparison:
    """One tensor. `norm`, `difference` and `control` are L2: of the reference, and from the reference."""

    path: str
    norm: float
    difference: float
    control: float
    tolerance: float

    @property
    def within_tolerance(self) -> bool:
        return math.isfinite(self.difference) and self.difference <= self.tolerance * self.norm

    @property
    def within_control(self) -> bool:
        return math.isfinite(self.difference) and self.difference <= CONTROL_FACTOR * self.control

    @property
    def relative(self) -> float:
        return self.difference / self.norm if self.norm else self.difference

    def __str__(self) -> str:
        return (
            f"{self.path}: difference {self.difference:.3g} ({self.relative:.3g} of its norm), "
            f"allowed {max(self.tolerance * self.norm, CONTROL_FACTOR * self.control):.3g} "
            f"(control {self.control:.3g})"
        )


@dataclass(frozen=True)
class EqualityReport:
    """The outcome.

    Attributes:
      tensors: all, by path.
      different: neither within the tolerance nor within three times the control.
      by_control: pass by the control alone.
      not_noise: those of `by_control` whose gradient is not noise, or not known, with the gradient's norm as a
        share of the global one (NaN: not known).
    """

    tensors: tuple[TensorComparison, ...]
    not_noise: tuple[tuple[str, float], ...]

    @property
    def different(self) -> tuple[TensorComparison, ...]:
        return tuple(t for t in self.tensors if not t.within_tolerance and not t.within_control)

    @property
    def by_control(self) -> tuple[str, ...]:
        return tuple(t.path for t in self.tensors if not t.within_tolerance and t.within_control)

    @property
    def equal(self) -> bool:
        return not self.different and not self.not_noise

    @property
    def worst(self) -> TensorComparison:
        """The tensor with the largest relative difference."""
        return max(self.tensors, key=lambda t: t.relative)

    def __str__(self) -> str:
        lines = [f"{len(self.tensors)} tensors compared; the worst is {self.worst}"]
        lines += [f"DIFFERENT {tensor}" for tensor in self.different]
        lines += [f"passes by its control only: {path}" for path in self.by_control]
        for path, share in self.not_noise:
            what = "is not known" if math.isnan(share) else f"is {share:.3g} of the global norm, above {NOISE:g}"
            lines.append(f"NOT NOISE {path}: it passes by its control only, but its gradient {what}")
        return "\n".join(lines)


def compare(
    reference: Run,
    candidate: Run,
    control: Run,
    gradients: Run | None = None,
    *,
    tolerance: float = F32_TOLERANCE,
    metrics: Iterable[str] = ("loss",),
) -> EqualityReport:
    """Compares a candidate run with the reference.

    Args:
      reference, candidate, control: arrays by path.
      gradients: of the reference, by the path of the parameter. The gradient at `block/key` also stands for state
        that ends with this path: `params/block/key`, `opt_state/0/mu/block/key`.
      tolerance: relative, `F32_TOLERANCE` or `F64_TOLERANCE`.
      metrics: paths of arrays with one entry a step; each step is a tensor of its own.

    Raises:
      ValueError: the runs differ in their paths or shapes, or an array has no numeric dtype.
    """
    metrics = frozenset(metrics)
    flat = [_split_metrics(run, metrics) for run in (reference, candidate, control)]
    for name, run in zip(("candidate", "control"), flat[1:], strict=True):
        _check_same_structure(name, flat[0], run)
    tensors = tuple(
        TensorComparison(
            path=path,
            norm=_norm(expected),
            difference=_distance(flat[1][path], expected),
            control=_distance(flat[2][path], expected),
            tolerance=tolerance,
        )
        for path, expected in flat[0].items()
    )
    shares = _gradient_shares(gradients or {})
    not_noise = []
    for tensor in tensors:
        if not tensor.within_tolerance and tensor.within_control:
            share = _share_of(tensor.path, shares)
            if not share <= NOISE:  # written so that an unknown gradient, NaN, is listed
                not_noise.append((tensor.path, share))
    return EqualityReport(tensors, tuple(not_noise))


def assert_equal(
    reference: Run,
    candidate: Run,
    control: Run,
    gradients: Run | None = None,
    *,
    tolerance: float = F32_TOLERANCE,
    metrics: Iterable[str] = ("loss",),
) -> EqualityReport:
    """`compare`, failing with the whole report when the runs are not equal."""
    report = compare(reference, candidate, control, gradients, tolerance=tolerance, metrics=metrics)
    assert report.equal, str(report)
    return report


def load_dump(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays that a script saved by its `--dump FILE`."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def _split_metrics(run: Run, metrics: frozenset[str]) -> dict[str, np.ndarray]:
    result = {}
    for path, array in run.items():
        values = np.asarray(array)
        if values.dtype.kind not in "biuf":
            raise ValueError(f"{path} has dtype {values.dtype}: save it as an integer or a float32 or float64 array")
        values = values.astype(np.float64)
        if path in metrics:
            result |= {f"{path}[step {step}]": value for step, value in enumerate(values, start=1)}
        else:
            result[path] = values
    return result


def _check_same_structure(name: str, reference: Run, other: Run) -> None:
    missing, extra = reference.keys() - other.keys(), other.keys() - reference.keys()
    if missing or extra:
        raise ValueError(f"the {name} lacks {sorted(missing) or 'nothing'} and has {sorted(extra) or 'nothing'} more")
    for path, expected in reference.items():
        if expected.shape != other[path].shape:
            raise ValueError(f"{path} has shape {other[path].shape} in the {name}, {expected.shape} in the reference")


def _distance(array: np.ndarray, expected: np.ndarray) -> float:
    with np.errstate(invalid="ignore"):  # of two infinities: NaN, which passes nowhere
        return _norm(array - expected)


def _norm(array: np.ndarray) -> float:
    return float(np.linalg.norm(np.ravel(array)))


def _gradient_shares(gradients: Run) -> dict[str, float]:
    norms = {path: _norm(np.asarray(gradient, np.float64)) for path, gradient in gradients.items()}
    total = math.hypot(*norms.values())
    return {path: norm / total if total else math.nan for path, norm in norms.items()}


def _share_of(path: str, shares: dict[str, float]) -> float:
    parts = path.split("/")
    for start in range(len(parts)):  # the longest suffix first
        share = shares.get("/".join(parts[start:]))
        if share is not None:
            return share
    return math.nan
