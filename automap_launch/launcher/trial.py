"""The trial before training: each contender runs a few steps on the real devices, and the fastest one trains.

Estimates rank plans well, but a device is the only judge of two that are close.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from automap_launch.errors import PlanError
from automap_launch.launcher.agreement import slowest
from automap_launch.runtime.trial import try_steps
from automap_launch.train_step import Argument, Result, Runner

logger = logging.getLogger(__name__)

# By name of the contender: seconds of its step, None where it could not be run. Then the name of the fastest.
OnChoice = Callable[[Mapping[str, float | None], str], None]


class TrialRunner:
    """A `Runner` that tries its contenders before its first call and is the fastest one from then on.

    Args:
      names: of the contenders, the favourite first: it wins a draw.
      build: makes a contender runnable. Before the choice what it creates of deferred leaves stays deferred.
      arguments, results: of the step; the same for all.
      on_choice: is told the outcome before the fastest runs its first real step.
    """

    def __init__(
        self,
        names: Sequence[str],
        build: Callable[[str], Runner],
        arguments: Sequence[Argument],
        results: Sequence[Result],
        on_choice: OnChoice,
    ) -> None:
        self.arguments = arguments
        self.results = results
        self._names = tuple(names)
        self._build = build
        self._on_choice = on_choice
        self._chosen: Runner | None = None

    def place(self, leaves: Sequence[Any]) -> list[Any]:
        return self._runner(leaves).place(leaves)

    def __call__(self, leaves: Sequence[Any]) -> list[Any]:
        return self._runner(leaves)(leaves)

    def _runner(self, leaves: Sequence[Any]) -> Runner:
        if self._chosen is None:
            self.decide(leaves)
        assert self._chosen is not None
        return self._chosen

    def decide(self, leaves: Sequence[Any]) -> None:
        """Tries the contenders with the arguments of the first step, which stay as they are. A collective.

        Raises:
          PlanError, JaxRuntimeError: of the last contender, when none can be run.
        """
        seconds: dict[str, float | None] = {}
        best: tuple[float, str, Runner] | None = None
        failure: Exception | None = None
        for name in self._names:
            try:
                runner = self._build(name)
                (own,) = slowest([try_steps(runner, leaves)])
            except (PlanError, jax.errors.JaxRuntimeError) as error:
                # Of one process only: of several, one that is short of memory leaves the others in a collective.
                if jax.process_count() > 1 and not isinstance(error, PlanError):
                    raise
                logger.warning("the plan %s cannot be run: %s", name, str(error).splitlines()[0])
                seconds[name], failure = None, error
                continue
            seconds[name] = own
            if best is None or own < best[0]:
                best = (own, name, runner)
        if best is None:
            assert failure is not None
            raise failure
        self._on_choice(seconds, best[1])
        self._chosen = best[2]
