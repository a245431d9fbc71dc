"""`Tracking`: where the launcher reports what happens, from the first episode of the search to the last step.

It turns what it is told into the keys of docs/contract.md, once, and hands them to every backend and to the console.
Tracking never ends a launch: a backend that fails is named in one warning and left out from then on.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from automap_launch.run_folder import RunFolder
from automap_launch.tracking.backend import Backend
from automap_launch.tracking.config import TrackingConfig
from automap_launch.tracking.console import ConsoleProgress
from automap_launch.tracking.events import CompileEvent, EndEvent, ReadyEvent, StepEvent, TrialEvent, event_of
from automap_launch.tracking.jsonl import JsonlBackend
from automap_launch.tracking.throughput import Rates, Throughput
from automap_launch.tracking.wandb_backend import Mode, WandbBackend, has_api_key, resolve_mode

# An episode takes milliseconds; a curve needs no more points than this, improvements apart.
_SEARCH_POINT_SECONDS = 0.5


class Tracking:
    """All measurements of one launch. Safe to call from several threads."""

    def __init__(self, backends: list[Backend], console: ConsoleProgress, info: dict[str, str | None]) -> None:
        """For tests and for backends of one's own; a launch uses `open`."""
        self._backends = backends
        self._console = console
        self._info = info
        self._throughput = Throughput()
        self._lock = threading.RLock()
        self._search_in_evaluations = False
        self._search_started = time.monotonic()
        self._last_search_point = -math.inf
        self._pending_search: dict[str, Any] | None = None

    @classmethod
    def open(
        cls,
        config: TrackingConfig,
        folder: RunFolder,
        resolved_config: dict[str, Any],
        terminal: TextIO | None = None,
    ) -> Tracking:
        """Starts the backends that `config` asks for.

        Args:
          folder: its root must exist.
          resolved_config: the composed config, for W&B's record.
          terminal: where the console's lines go; default stderr.
        """
        console = ConsoleProgress(terminal or sys.stderr, config.console_interval)
        backends: list[Backend] = [JsonlBackend(folder.metrics, folder.search_log, console.warn)]
        info: dict[str, str | None] = {"mode": "none", "run_dir": None}
        if config.backend == "wandb":
            mode, run = _open_wandb(config, folder.root, resolved_config, console)
            info["mode"] = mode
            if run is not None:
                info["run_dir"] = folder.relative(run.run_dir)
                backends.append(run)
        return cls(backends, console, info)

    @property
    def info(self) -> dict[str, str | None]:
        """The section `tracking` of `summary.json`: `mode`, and `run_dir` relative to the run folder."""
        return dict(self._info)

    def search_started(self, *, seconds: float, evaluations: int | None = None) -> None:
        """The search begins, and ends after so many seconds or evaluations at the latest."""
        with self._lock:
            self._search_started = time.monotonic()
            self._search_in_evaluations = evaluations is not None
            self._console.search_started(seconds if evaluations is None else evaluations)

    def search(
        self,
        *,
        episode: int,
        best_step_seconds: float | None,
        evaluations: int = 0,
        epsilon: float | None = None,
        loss: float | None = None,
        improvement: Mapping[str, Any] | None = None,
    ) -> None:
        """An episode of the search is over.

        Every improvement is recorded; of the other episodes, about two a second.

        Args:
          best_step_seconds: predicted, of the best plan so far; None while none fits.
          epsilon, loss: of the DQN; None for another searcher.
          improvement: the plan, when a new best was found: whatever describes it, for `search.jsonl`.
        """
        with self._lock:
            now = time.monotonic()
            elapsed = now - self._search_started
            record = {
                "search/episode": episode,
                "search/best_step_seconds": best_step_seconds,
                "search/epsilon": epsilon,
                "search/loss": loss,
                "seconds": elapsed,
                "evaluations": evaluations,
                "improvement": None if improvement is None else dict(improvement),
            }
            self._console.search(
                episode,
                best_step_seconds,
                evaluations if self._search_in_evaluations else elapsed,
                improved=improvement is not None,
            )
            self._pending_search = record
            if improvement is not None or now - self._last_search_point >= _SEARCH_POINT_SECONDS:
                self._last_search_point = now
                self._flush_search()

    def search_ended(self) -> None:
        """The search is over: the curve gets its last point."""
        with self._lock:
            self._flush_search()
            self._console.search_ended()

    def plan(
        self,
        path: Path,
        *,
        step_flops: float | None = None,
        peak_flops: float | None = None,
        hlo: Path | None = None,
    ) -> None:
        """The plan that training will use is in `path`.

        Args:
          step_flops: floating-point operations of one step of the whole batch.
          peak_flops: of one device, a second, in the dtype of most of the step's work. Without both there is no MFU.
          hlo: the step's program as text.
        """
        with self._lock:
            self._throughput.expect(step_flops, peak_flops)
            self._each(lambda backend: backend.artifact(path, "plan"))
            if hlo is not None:
                self._each(lambda backend: backend.artifact(hlo, "hlo"))

    def report(self, path: Path) -> None:
        """The HTML report was written to `path`."""
        with self._lock:
            self._each(lambda backend: backend.artifact(path, "report"))

    def event(self, record: dict[str, Any]) -> None:
        """One event of rank 0, decoded (`events.decode`). Kinds that tracking does not know are passed over.

        Raises:
          TypeError, ValueError: the record is of a known kind and malformed.
        """
        event = event_of(record)
        with self._lock:
            match event:
                case ReadyEvent():
                    self._throughput.ready(event)
                    self._console.ready(event)
                case TrialEvent():
                    self._console.tried(event)
                case CompileEvent():
                    self._console.compiled(event)
                case StepEvent():
                    self._step(event)
                case EndEvent() if event.dropped:
                    self._console.warn(f"{event.dropped} measurements were lost: the launcher fell behind")

    def train_summary(self) -> dict[str, Any]:
        """The section `train` of `summary.json`."""
        with self._lock:
            return self._throughput.summary()

    def finish(
        self, summary: Mapping[str, Any], exit_code: int, *, speedup_over_dp_measured: float | None = None
    ) -> None:
        """Records the outcome and closes every backend. A second call does nothing.

        Args:
          summary: `summary.json`.
          speedup_over_dp_measured: step time of pure data parallelism over that of the plan, where both were run.
        """
        with self._lock:
            self._flush_search()
            self._console.search_ended()
            self._console.ended()
            values = {
                "speedup_over_dp_predicted": _speedup_predicted(summary),
                "speedup_over_dp_measured": speedup_over_dp_measured,
                **_flat(summary),
                "result/exit_code": exit_code,
            }
            self._each(lambda backend: backend.summary(values))
            self._each(lambda backend: backend.close(exit_code))
            self._backends = []

    def _step(self, event: StepEvent) -> None:
        rates = self._throughput.step(event)
        self._each(lambda backend: backend.metrics(_step_metrics(event, rates)))
        self._console.step(event, rates)

    def _flush_search(self) -> None:
        record, self._pending_search = self._pending_search, None
        if record is None:
            return
        metrics = {key: value for key, value in record.items() if key.startswith("search/")}
        self._each(lambda backend: backend.search(record))
        self._each(lambda backend: backend.metrics(metrics))

    def _each(self, call: Callable[[Backend], None]) -> None:
        for backend in list(self._backends):
            try:
                call(backend)
            except Exception as error:
                # A tracker may fail in any way: network, disk, a defect of its own. Training is worth more.
                self._backends.remove(backend)
                self._console.warn(f"{backend.name} failed and is left out from now on: {_reason(error)}")


def _open_wandb(
    config: TrackingConfig, root: Path, resolved_config: dict[str, Any], console: ConsoleProgress
) -> tuple[Mode, WandbBackend | None]:
    mode = resolve_mode(config.mode)
    if mode == "online" and not has_api_key():
        console.warn("W&B has no API key, so the run is kept offline: set WANDB_API_KEY, or run `wandb login`")
        mode = "offline"
    while mode != "disabled":
        try:
            run = WandbBackend(config, mode, root, resolved_config)
        except Exception as error:
            # wandb may be missing, broken or cut off, and raises classes of its own for each.
            cut_off = mode == "online" and not isinstance(error, ImportError)
            mode = "offline" if cut_off else "disabled"
            left = "the run is kept offline" if cut_off else "it is left out; tracking=none silences this"
            console.warn(f"W&B cannot start, {left}: {_reason(error)}")
        else:
            console.note(f"W&B: {run.url or f'offline; upload with: wandb sync {run.run_dir}'}")
            return mode, run
    return mode, None


def _step_metrics(event: StepEvent, rates: Rates) -> dict[str, float | int | None]:
    values: dict[str, float | int | None] = {
        "train/step": event.step,
        "train/step_seconds": event.seconds,
        "train/examples_per_second": rates.examples_per_second,
        "train/mfu": rates.mfu,
    }
    if event.tokens is not None:
        values["train/tokens_per_second"] = rates.tokens_per_second
    return values | {f"train/out/{path}": value for path, value in event.outputs.items()}


def _speedup_predicted(summary: Mapping[str, Any]) -> float | None:
    search = summary.get("search") or {}
    baseline = (search.get("baselines") or {}).get("data_parallel")
    chosen = search.get("predicted_step_seconds")
    return baseline / chosen if baseline and chosen else None


def _flat(record: Mapping[str, Any], prefix: str = "result") -> dict[str, Any]:
    """Every value of `summary.json` by its path, `result/train/steps`; null ones are left out."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}/{key}")
        elif value is not None:
            flat[f"{prefix}/{key}"] = value
    return flat


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
