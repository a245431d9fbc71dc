"""What a launch does: capture -> search -> run, with `summary.json` and tracking kept up to date on the way."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from automap_launch import plan_exchange, verification
from automap_launch.cluster.cluster import Cluster
from automap_launch.cluster.detect import calibrate, detect_local
from automap_launch.cluster.file import cluster_from_config, load_cluster, save_cluster
from automap_launch.cluster.local_devices import local_devices
from automap_launch.config import Config, resolve_entry
from automap_launch.contest import DATA_PARALLEL
from automap_launch.errors import AutomapError, ClusterMismatchError, ConfigError, ScriptError
from automap_launch.frontends.capture import capture
from automap_launch.interruption import Interrupted, Interruption, interruptible
from automap_launch.launcher.failure import WorkerFailure
from automap_launch.launcher.host_group import HostGroup
from automap_launch.launcher.place import Place, find_place
from automap_launch.launcher.spec import LaunchSpec, Rival
from automap_launch.launcher.supervisor import launch
from automap_launch.plan.build import decision_of
from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import Decision
from automap_launch.plan.derive import derive_layout
from automap_launch.plan.execution import Execution
from automap_launch.plan.explain import blocks, explain, left_out
from automap_launch.plan.file import check_plan, load_plan, save_plan
from automap_launch.plan.layout import Layout
from automap_launch.plan.plan import Plan
from automap_launch.planning import Planner
from automap_launch.program.analyse import analyse
from automap_launch.program.program import Program
from automap_launch.run_folder import FAVOURITE, RunFolder
from automap_launch.summary import Summary
from automap_launch.terminal import Terminal
from automap_launch.tracking.events import TrialEvent, event_of
from automap_launch.tracking.report import parameter_shardings, read_run, write_report
from automap_launch.tracking.tracking import Tracking
from automap_launch.train_step import Entry, TrainStep
from automap_launch.units import format_seconds, parse_duration
from automap_launch.verification import Check


class Workflow:
    """One launch. `run` does what `mode` asks for; what it learns is in `summary.json` at any moment."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        terminal: Terminal,
        resolved_config: dict[str, Any],
        recipe_folders: list[Path],
    ) -> None:
        self.config = config
        self.folder = folder
        self.terminal = terminal
        self.resolved_config = resolved_config
        self.recipe_folders = recipe_folders
        self.summary = Summary(folder.summary, config.mode)
        self.tracking: Tracking | None = None
        self.place = Place()
        self.hosts: HostGroup | None = None
        self._layout_trained = folder.layout
        self._speedup_measured: float | None = None
        self._left_out: list[str] = []

    def run(self) -> None:
        """Runs the phases that `mode` asks for and records how it ended.

        Raises:
          AutomapError: what kept it from doing so.
          Interrupted: a signal ended it.
        """
        try:
            self._run()
            self.summary.succeed()
        except AutomapError as error:
            self.summary.fail(error)
            raise
        except Interrupted as interrupted:
            self.summary.interrupt(interrupted.name, interrupted.exit_code)
            raise
        except Exception as error:
            self.summary.fail(AutomapError(f"{type(error).__name__}: {error}"))
            raise
        finally:
            self._finish()

    def _run(self) -> None:
        mode = self.config.mode
        if mode == "calibrate":
            with interruptible():
                self._calibrate()
            return
        entry = resolve_entry(self.config.entry, self.recipe_folders)
        given = load_plan(Path(self.config.plan)) if self.config.plan is not None else None
        with interruptible() as interruption:
            if mode in ("train", "run"):
                self.place = self._find_place()
            cluster = self._find_cluster()
            self._found(cluster)
            self._meet_hosts(cluster)
            step = self._capture(entry, cluster)
            if mode == "capture":
                return
            self.tracking = self._open_tracking()
            program = self._analyse(step, given)
            model = CostModel(program, cluster, self.config.search.memory_fraction)
            if self.place.host > 0:
                plans = self._receive_plans(model)
            elif given is not None:
                plans = {FAVOURITE: self._check_plan(given, model)}
            else:
                plans = self._search(model, interruption)
            if self.hosts is not None and self.place.host == 0:
                plan_exchange.send(plans, step.fingerprint, self.folder, self.hosts)
            rivals = self._lay_out(plans, program)
            self._record_plan(plans[FAVOURITE], model)
            if mode == "plan":
                return
            self._check_machine(entry, cluster)
        self._train(entry, cluster, plans, rivals)

    # Phases

    def _calibrate(self) -> None:
        self.terminal.note("measuring this machine's devices: leave them alone for a minute or two")
        self._found(self._find_cluster(calibrate))
        self.terminal.note(
            f"wrote {self.folder.cluster}. cluster=local uses it from now on; to plan for this machine elsewhere: "
            f"automap-launch mode=plan cluster.file={self.folder.cluster} -- SCRIPT"
        )

    def _find_cluster(self, local: Callable[[str | None, int | None, int], Cluster] = detect_local) -> Cluster:
        """The cluster of the config; `local` finds this machine."""
        self.summary.update(phase="cluster")
        config, launcher = self.config.cluster, self.config.launcher
        if not config.is_local:
            return cluster_from_config(config)
        platform = None if config.platform == "auto" else config.platform
        return local(platform, config.devices, launcher.processes)

    def _found(self, cluster: Cluster) -> None:
        """Records the cluster of the launch."""
        save_cluster(cluster, self.folder.cluster)
        self.summary.update(
            cluster={
                "name": cluster.name,
                "digest": cluster.digest,
                "platform": cluster.platform,
                "hosts": cluster.hosts,
                "devices_per_host": cluster.devices_per_host,
            }
        )
        self.terminal.note(
            f"cluster {cluster.name}: {cluster.hosts} x {cluster.devices_per_host} {cluster.device.name} "
            f"({cluster.platform})" + (f", {cluster.source}" if self.config.cluster.is_local else "")
        )

    def _find_place(self) -> Place:
        place = find_place(self.config.launcher, os.environ)
        if place.hosts > 1 and self.config.cluster.is_local:
            raise ConfigError(
                f"cluster=local is this host alone, and launcher.hosts={place.hosts}",
                hint="name a cluster of so many hosts: cluster=v100_2x8, or cluster.file=FILE for one of your own",
            )
        return place

    def _meet_hosts(self, cluster: Cluster) -> None:
        """Waits for the launchers of the other hosts, where there are any."""
        hosts = self.place.hosts
        if hosts == 1:
            return
        if cluster.hosts != hosts:
            raise ClusterMismatchError(
                f"the cluster {cluster.name} has {cluster.hosts} hosts, and launcher.hosts={hosts}",
                hint=f"start automap-launch on {cluster.hosts} hosts, or name a cluster of {hosts}",
            )
        found = _fitting_devices(cluster)
        if found < cluster.devices_per_host:
            raise ClusterMismatchError(
                f"a host of {cluster.describe()} has {cluster.devices_per_host} devices, and "
                f"this machine has {found} device(s) of platform {cluster.platform}",
                hint="start automap-launch on the hosts of that cluster, or name the cluster that this one is of",
            )
        self.terminal.note(f"host {self.place.host} of {hosts}: waiting for the others at {self.place.coordinator}")
        self.hosts = HostGroup.meet(self.place, parse_duration(self.config.launcher.start_timeout))
        self.terminal.note(f"hosts: {', '.join(self.hosts.names)}")

    def _capture(self, entry: Entry, cluster: Cluster) -> TrainStep:
        self.summary.update(phase="capture")
        self.terminal.note(f"capturing the train step of {entry.script or entry.module}")
        platforms = list(dict.fromkeys(("cpu", cluster.platform)))
        step = capture(entry, self.config.frontend, platforms, self.folder.train_step, self.folder.capture_log)
        self.summary.update(fingerprint=step.fingerprint, frontend=step.frontend)
        state = sum(argument.role == "state" for argument in step.arguments)
        where = f" ({step.identity.source})" if step.identity.source else ""
        self.terminal.note(f"train step: {step.identity.name}{where}, {state} state tensors")
        return step

    def _analyse(self, step: TrainStep, given: Plan | None) -> Program:
        self.summary.update(phase="search")
        search = self.config.search
        local_statistics = search.allow_local_batch_stats or (given is not None and given.allow_local_batch_stats)
        program = analyse(
            step,
            local_statistics=local_statistics,
            max_blocks=search.max_blocks,
            tie_layers=search.prune.tied_layers,
        )
        for note in program.notes:
            self.terminal.note(note)
        return program

    def _open_tracking(self) -> Tracking:
        config = self.config.tracking
        if self.place.host > 0:
            config = dataclasses.replace(config, mode="disabled")  # the run is host 0's
        tracking = Tracking.open(config, self.folder, self.resolved_config, self.terminal.progress)
        self.summary.update(tracking=tracking.info)
        return tracking

    def _search(self, model: CostModel, interruption: Interruption) -> dict[str, Plan]:
        """The plan, and its rivals in a trial, by name."""
        assert self.tracking is not None
        outcome = Planner(self.config, model, self.folder, self.tracking, self.terminal, interruption).run()
        self.summary.update(search=outcome.search)
        return outcome.plans

    def _receive_plans(self, model: CostModel) -> dict[str, Plan]:
        assert self.hosts is not None
        self.terminal.note("host 0 makes the plan")
        return plan_exchange.receive(model, self.config.search.memory_fraction, self.folder, self.hosts)

    def _lay_out(self, plans: dict[str, Plan], program: Program) -> tuple[Rival, ...]:
        """Writes the layouts of all plans; the rivals of the favourite, as workers need them."""
        rivals = []
        for name, plan in plans.items():
            path = self.folder.layout_of(name)
            derive_layout(program, decision_of(plan, program)).save(path)
            if name != FAVOURITE:
                rivals.append(Rival(name, str(path.resolve()), Execution.of(plan, self.config.search.max_blocks)))
        return tuple(rivals)

    def _check_plan(self, given: Plan, model: CostModel) -> Plan:
        plan = check_plan(given, model.program, model.cluster, self.config.search.memory_fraction)
        save_plan(plan, self.folder.plan)
        self.summary.update(search={"predicted_step_seconds": plan.predicted.step_seconds})
        return plan

    def _summarise(self, plan: Plan) -> None:
        self.summary.update(
            plan={
                "path": self.folder.relative(self.folder.plan),
                "mesh": plan.mesh,
                "stages": len(plan.stages),
                "micro_batches": plan.micro_batches,
                "schedule": plan.schedule,
                "found_by": plan.origin.searcher,
            }
        )

    def _record_plan(self, plan: Plan, model: CostModel) -> None:
        assert self.tracking is not None
        self._summarise(plan)
        self._left_out = left_out(model.program)
        for table in explain(plan, model) if self.place.host == 0 else ():
            self.terminal.show(table)
        checks = [Check(**check) for check in self.summary.record["search"]["verified"] or ()]
        if any(check.compiled_memory_bytes is not None for check in checks):
            self.terminal.show(verification.table(checks))
        if plan.allow_local_batch_stats:
            self.terminal.note("micro-batches take batch statistics of their own: search.allow_local_batch_stats")
        if self.config.mode == "plan":
            self.terminal.show(blocks(model.program))
        alone = model.estimate(Decision(data=1, model=1))
        if alone.fits and alone.step_seconds < plan.predicted.step_seconds:
            self.terminal.note(
                f"one device alone is predicted to take {format_seconds(alone.step_seconds)} a step, less than "
                f"{model.cluster.devices} together: this step is too small to gain from them"
            )
        device = model.cluster.device
        self.tracking.plan(
            self.folder.plan,
            step_flops=float(sum(op.flops * op.times for op in model.program.ops)),
            # A CPU's peak is measured on one shape, while others use its cores, too: no peak to relate to.
            peak_flops=None if model.cluster.platform == "cpu" else device.peak_flops["float32"],
            hlo=self.folder.train_step / "step.hlo.txt",
        )

    def _check_machine(self, entry: Entry, cluster: Cluster) -> None:
        """Raises ClusterMismatchError when the plan's cluster is not the machine at hand."""
        if self.config.cluster.is_local:
            return
        found = _fitting_devices(cluster)
        if cluster.hosts == self.place.hosts and found >= cluster.devices_per_host:
            return
        wanted = f"{cluster.hosts} x {cluster.devices_per_host} {cluster.device.name} ({cluster.platform})"
        raise ClusterMismatchError(
            f"the plan is for {wanted}, and this machine has {found} device(s) of platform {cluster.platform}",
            hint=f"the plan is in {self.folder.plan}; start it there{self._on_each_host(cluster)} with:\n"
            f"    {self._command_for_plan(entry, cluster)}",
        )

    @staticmethod
    def _on_each_host(cluster: Cluster) -> str:
        if cluster.hosts == 1:
            return ""
        last = cluster.hosts - 1
        return f", on each host with its own number, launcher.host=0 to {last} (`srun` sets all launcher.host* itself),"

    def _command_for_plan(self, entry: Entry, cluster: Cluster) -> str:
        # As the user wrote it; a recipe names its script relative to its own folder.
        script = self.config.entry.script if self.config.entry.from_command_line else entry.script
        program = ["-m", entry.module] if entry.module else [script or ""]
        plan = f"plan={self.folder.plan}"
        config = self.config.cluster
        named = f"cluster={config.name}" if config.file is None else f"cluster.file={config.file}"
        several = [f"launcher.hosts={cluster.hosts}", "launcher.host=0", "launcher.coordinator=HOST_0:29500"]
        hosts = several if cluster.hosts > 1 else []
        return shlex.join(["automap-launch", "mode=run", named, plan, *hosts, "--", *program, *entry.args])

    def _train(self, entry: Entry, cluster: Cluster, plans: dict[str, Plan], rivals: tuple[Rival, ...]) -> None:
        assert self.tracking is not None
        launcher = self.config.launcher
        each = launcher.devices_per_process or cluster.devices_per_host // launcher.processes
        if each * launcher.processes != cluster.devices_per_host:
            raise ConfigError(
                f"launcher.processes={launcher.processes} x devices_per_process={each} is not the "
                f"{cluster.devices_per_host} devices of this host",
                hint="set launcher.processes to a divisor of the host's devices, or cluster.devices to their product",
            )
        self.summary.update(phase="train")
        spec = LaunchSpec(
            run_dir=str(self.folder.root.resolve()),
            entry=entry,
            frontend=dataclasses.asdict(self.config.frontend),
            platform=cluster.platform,
            processes=launcher.processes * cluster.hosts,
            hosts=cluster.hosts,
            host=self.place.host,
            devices_per_process=each,
            train_step=str(self.folder.train_step.resolve()),
            layout=str(self.folder.layout.resolve()),
            execution=Execution.of(plans[FAVOURITE], self.config.search.max_blocks),
            rivals=rivals,
            heartbeat_seconds=parse_duration(launcher.heartbeat_timeout),
            start_timeout_seconds=parse_duration(launcher.start_timeout),
        )
        tracking = self.tracking

        def on_event(record: dict[str, Any]) -> None:
            tracking.event(record)
            trial = event_of(record)
            if isinstance(trial, TrialEvent):
                self._end_trial(trial, plans[trial.chosen])

        result = launch(spec, launcher, self.folder, on_event, self.terminal.stream, group=self.hosts)
        self.summary.update(attempts=result.attempts, train=self.tracking.train_summary())
        if result.failure is not None:
            raise _failed(result.failure, result.exit_code)

    def _end_trial(self, trial: TrialEvent, plan: Plan) -> None:
        """The plan that trains is the run's plan from now on."""
        tried = {"step_seconds": trial.seconds, "chosen": trial.chosen}
        self.summary.update(search={"trial": tried, "predicted_step_seconds": plan.predicted.step_seconds})
        if trial.chosen != FAVOURITE:
            self.terminal.note(f"the plan that trains, {trial.chosen}: {_shape(plan)}")
        save_plan(plan, self.folder.plan)
        self._summarise(plan)
        self._layout_trained = self.folder.layout_of(trial.chosen)
        plain, chosen = trial.seconds.get(DATA_PARALLEL), trial.seconds[trial.chosen]
        if plain and chosen:
            self._speedup_measured = plain / chosen

    def _finish(self) -> None:
        """Writes the report and closes what is open, however the run ended."""
        if self.hosts is not None:
            self.hosts.close()
        if self.tracking is None:
            return
        try:
            self._write_report()
            self.tracking.report(self.folder.report)
        except OSError as error:
            self.terminal.note(f"cannot write {self.folder.report}: {error.strerror}")
        self.tracking.finish(
            self.summary.record,
            self.summary.record["exit_code"],
            speedup_over_dp_measured=self._speedup_measured,
        )
        self.terminal.note(f"plan, report and logs are in {self.folder.root}")

    def _write_report(self) -> None:
        """The report of what there is: tracking opens after the capture, so cluster and step are on disk."""
        layout = Layout.load(self._layout_trained) if self._layout_trained.exists() else None
        write_report(
            self.folder.report,
            summary=self.summary.record,
            plan=dataclasses.asdict(load_plan(self.folder.plan)) if self.folder.plan.exists() else None,
            parameters=parameter_shardings(TrainStep.load(self.folder.train_step), layout) if layout else (),
            left_out=self._left_out,
            device_memory_bytes=load_cluster(self.folder.cluster).device.memory_bytes,
            **read_run(self.folder),
        )


def _fitting_devices(cluster: Cluster) -> int:
    """Devices of this machine for a host of the cluster; of CPUs as many virtual ones as it wants."""
    return cluster.devices_per_host if cluster.platform == "cpu" else local_devices(cluster.platform)


def _shape(plan: Plan) -> str:
    """A plan in a few words: its stages, and the axes of their mesh."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in plan.mesh.items())
    stages = f"{len(plan.stages)} stages x " if len(plan.stages) > 1 else ""
    parts = f", {plan.micro_batches} micro-batches" if plan.micro_batches > 1 else ""
    return f"{stages}{mesh}{parts}"


def _failed(failure: WorkerFailure, exit_code: int) -> AutomapError | Interrupted:
    """What ends the launch after a failure that the supervisor has shown to the user."""
    if failure.kind == "signal":
        return Interrupted(exit_code - 128)
    error = ScriptError(
        failure.message,
        exit_code=exit_code,
        rank=failure.rank,
        host=failure.host,
        signal=failure.signal,
        traceback_path=failure.traceback_path,
        file=failure.file,
        line=failure.line,
    )
    error.kind = failure.kind
    error.reported = True
    return error
