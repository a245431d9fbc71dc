"""What makes the script's step runnable in a worker: the launch's plan, or the fastest of those that are tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automap_launch.launcher.spec import LaunchSpec
from automap_launch.plan.execution import Execution
from automap_launch.plan.layout import Layout
from automap_launch.run_folder import FAVOURITE
from automap_launch.train_step import Runner, TrainStep

if TYPE_CHECKING:
    from automap_launch.frontends.lowering import LoweredStep

OnTrial = Callable[[Mapping[str, float | None], str], None]


class StepBuilder:
    """Makes each signature of the step runnable under the launch's plan.

    With rivals, the first signature tries them all at its first call; the fastest makes everything from then on.

    Args:
      step: the captured step.
      on_trial: is told how long a step took under each plan, and which was chosen.
    """

    def __init__(self, spec: LaunchSpec, step: TrainStep, on_trial: OnTrial) -> None:
        self._step = step
        self._platform = spec.platform
        self._on_trial = on_trial
        self._plans = {FAVOURITE: (Layout.load(Path(spec.layout)), spec.execution)}
        self._plans |= {rival.name: (Layout.load(Path(rival.layout)), rival.execution) for rival in spec.rivals}
        self._chosen: str | None = None
        if not spec.rivals:
            self._choose(FAVOURITE)

    def __call__(self, function: bytes | Callable[..., Any], lowered: LoweredStep) -> Runner:
        """Raises PlanError when the step cannot be cut as the plan says."""
        from automap_launch.launcher.trial import TrialRunner

        if self._chosen is not None:
            return self._build(self._chosen, function, lowered)
        signature, _ = self._signature(FAVOURITE, lowered)
        return TrialRunner(
            list(self._plans),
            lambda name: self._build(name, function, lowered),
            signature.arguments,
            signature.results,
            self._end_trial,
        )

    def _end_trial(self, seconds: Mapping[str, float | None], chosen: str) -> None:
        self._choose(chosen)
        self._on_trial(seconds, chosen)

    def _choose(self, name: str) -> None:
        self._chosen = name
        layout, execution = self._plans[name]
        if execution.stages > 1:
            _let_stages_meet(layout, execution)

    def _signature(self, name: str, lowered: LoweredStep) -> tuple[TrainStep, Layout]:
        from automap_launch.runtime.signatures import fit

        fitted = fit(self._step, self._plans[name][0], lowered.arguments, lowered.results)
        step = replace(
            self._step,
            arguments=fitted.arguments,
            results=fitted.results,
            modules=lowered.modules,
            fingerprint=lowered.fingerprint,
            sources=lowered.sources,
            has_callbacks=lowered.has_callbacks,
        )
        return step, fitted.layout

    def _build(self, name: str, function: bytes | Callable[..., Any], lowered: LoweredStep) -> Runner:
        from automap_launch.runtime.build import build_executable

        step, layout = self._signature(name, lowered)
        return build_executable(
            step,
            layout,
            self._plans[name][1],
            platform=self._platform,
            traced=None if isinstance(function, bytes) else function,
            materialize=self._create,
        )

    def _create(self, values: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
        """Creates deferred values; while plans are tried, each anew, so that no state is left of a trial."""
        from automap_launch.frontends.deferred import evaluate, materialize

        return evaluate(values, shardings) if self._chosen is None else materialize(values, shardings)


def _let_stages_meet(layout: Layout, execution: Execution) -> None:
    """Arrays of several stages can be combined, and read on every process."""
    import jax

    from automap_launch.frontends.stages import see_through_stages
    from automap_launch.runtime.jax_internals import on_device_mismatch
    from automap_launch.runtime.joint import JointMesh
    from automap_launch.runtime.mesh import make_mesh

    devices = jax.devices()
    stages = execution.devices_of(len(devices))
    joint = JointMesh([make_mesh(layout.mesh, [devices[i] for i in stage]) for stage in stages])
    on_device_mismatch(joint.join)
    see_through_stages(joint)
