"""Writes `docs/pipeline.md`: what a pipeline costs beyond what its schedule says it must.

    python tools/bench_pipeline.py                    # everything (a few minutes on a silent machine)
    python tools/bench_pipeline.py --part ideal_2x4   # one part (see PARTS); kept for the document
    python tools/bench_pipeline.py --spectrax PYTHON  # with the peer SpectraX, from an environment that has it

Parts that were measured are kept in `outputs/pipeline/results.json`; the document is written from all that is there.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
if __name__ == "__main__":
    os.environ.update(
        JAX_PLATFORMS="cpu",
        JAX_NUM_CPU_DEVICES="8",
        # One thread a device: else a single device takes all cores, and stages have nothing to gain.
        XLA_FLAGS="--xla_cpu_multi_thread_eigen=false",
    )

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402

from automap_launch.plan.execution import Execution  # noqa: E402
from automap_launch.plan.layout import Layout  # noqa: E402
from automap_launch.program.batch_analysis import State  # noqa: E402
from automap_launch.runtime.accumulation import AccumulatedStep  # noqa: E402
from automap_launch.runtime.build import build_executable  # noqa: E402
from automap_launch.runtime.executable import Executable  # noqa: E402
from automap_launch.runtime.mesh import make_mesh  # noqa: E402
from automap_launch.runtime.pipeline import PipelineExecutable  # noqa: E402
from automap_launch.runtime.schedules import SCHEDULES, Edge, Order, Task, simulate  # noqa: E402
from automap_launch.split.accumulate import accumulate  # noqa: E402
from automap_launch.split.pipeline import MICRO, PartId, Pipeline  # noqa: E402
from automap_launch.split.step import read  # noqa: E402
from automap_launch.units import format_bytes  # noqa: E402
from tests.runtime.captured_by_hand import Captured, capture, step_of  # noqa: E402
from tools import pipeline_peer  # noqa: E402
from tools.paired_blocks import measure, median_interval  # noqa: E402

DOCUMENT = ROOT / "docs" / "pipeline.md"
RESULTS = ROOT / "outputs" / "pipeline" / "results.json"
LAYERS, WIDTH, ROWS = 8, 384, 1024  # of the model whose steps are timed
CASES = ((2, 4), (2, 8), (4, 8))  # stages and micro-batches
ROUNDS, STEPS = 12, 2
SPECTRAX: list[str] = []  # Pythons that have it
RESOLVED = 0.2  # the widest interval of the peer against itself with which a table of step times says something


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--spectrax", metavar="PYTHON", help="of an environment with `spectrax-lib`")
    options = parser.parse_args()
    if options.spectrax:
        SPECTRAX.append(options.spectrax)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in options.part or PARTS:
        results[name] = PARTS[name]()
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1))
        print(name, json.dumps(results[name]), flush=True)
    if results.keys() >= PARTS.keys():
        DOCUMENT.write_text(document(results))
    return 0


# The step: layers of equal width, plain gradient descent.


def captured_step(layers: int, width: int, rows: int) -> tuple[Captured, dict[str, Any], tuple[Any, Any]]:
    """The step of `pipeline_peer.loss` with one array a layer; its state and its batch."""
    rng = np.random.default_rng(0)
    state = {f"w{i:02}": (rng.normal(size=(width, width)) / np.sqrt(width)).astype("f") for i in range(layers)}
    batch = rng.normal(size=(rows, width)).astype("f"), rng.normal(size=(rows, width)).astype("f")

    def step(state: dict[str, Any], batch: tuple[Any, Any]) -> Any:
        def loss(state: dict[str, Any]) -> Any:
            x = batch[0]
            for name in sorted(state):
                x = jnp.tanh(x @ state[name])
            return ((x - batch[1]) ** 2).mean()

        value, gradients = jax.value_and_grad(loss)(state)
        return {name: state[name] - pipeline_peer.RATE * gradients[name] for name in state}, value

    return capture(step, state, batch, donated=True), state, batch


def pipeline_of(captured: Captured, stages: int, micro_batches: int, schedule: str) -> PipelineExecutable:
    execution = Execution(stages, micro_batches, schedule)
    made = build_executable(step_of(captured), _layout(captured), execution, devices=jax.devices()[:stages])
    assert isinstance(made, PipelineExecutable)
    return made


def _layout(captured: Captured) -> Layout:
    whole = tuple((None,) * len(a.shape) for a in captured.arguments)
    return Layout({"data": 1}, whole, whole, tuple((None,) * len(r.shape) for r in captured.results))


class Loop:
    """Runs steps of an executable one after the other; each gets what the one before it made."""

    def __init__(self, run: Callable[[list[Any]], list[Any]], leaves: list[Any]) -> None:
        self.run = run
        self.leaves = leaves

    def __call__(self, steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            results = self.run(self.leaves)
            self.leaves = [*results[:-1], *self.leaves[len(results) - 1 :]]
        jax.block_until_ready(results)
        return time.perf_counter() - began


# Step time against the schedule's ideal


def ideal(stages: int, micro_batches: int) -> list[dict[str, Any]]:
    captured, state, batch = captured_step(LAYERS, WIDTH, ROWS)
    programs: dict[str, Callable[[int], float]] = {}
    ideals: dict[str, dict[str, float]] = {}
    for schedule in SCHEDULES:
        executable = pipeline_of(captured, stages, micro_batches, schedule)
        loop = Loop(executable, executable.place(captured.leaves))
        loop(2)
        ideals[schedule] = ideal_seconds(executable, loop)
        programs[schedule] = loop
    peer, sharding = pipeline_peer.make(jax.devices()[:stages], micro_batches)
    weights = jax.device_put(np.stack([state[name] for name in sorted(state)]), sharding)
    programs["peer"] = programs["peer again"] = Loop(lambda leaves: list(peer(*leaves)), [weights, *batch])
    first = _same_losses(captured, peer, weights, batch, stages)
    programs["peer"](2)
    with contextlib.ExitStack() as stack:
        for python in SPECTRAX:
            for schedule in SCHEDULES:
                spectrax = stack.enter_context(Spectrax(python, stages, micro_batches, schedule))
                if abs(spectrax.loss - first) > 1e-5 * abs(first):
                    raise RuntimeError(f"SpectraX trains another model: its loss is {spectrax.loss}, ours {first}")
                spectrax(2)
                programs[f"spectrax {schedule}"] = spectrax
        seconds = measure(programs, rounds=ROUNDS, steps=STEPS)
    slowdown = together(stages)
    found = []
    for name in (*SCHEDULES, "peer again"):
        row: dict[str, Any] = {
            "stages": stages,
            "micro_batches": micro_batches,
            "program": name,
            "seconds": float(np.median(seconds[name])),
            **ideals.get(name, {}),
            "together": slowdown,
            "against_peer": _ratio(seconds[name], seconds["peer"]),
        }
        if f"spectrax {name}" in seconds:
            row["against_spectrax"] = _ratio(seconds[name], seconds[f"spectrax {name}"])
        found.append(row)
    return found


def together(stages: int) -> float:
    """How many times as long a device computes when as many as there are cores (or stages) do so at once: what they
    share, such as the memory's bandwidth. A layer's product and `tanh` over and over, without messages."""
    devices = jax.devices()[: min(stages, os.cpu_count() or 1)]
    layer = jax.jit(lambda x, w: lax.fori_loop(0, 16, lambda _, h: jnp.tanh(h @ w), x))
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(ROWS // 4, WIDTH)).astype("f"), (rng.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5).astype("f")
    inputs = [jax.device_put((x, w), device) for device in devices]

    def seconds(of: list[tuple[Any, Any]]) -> float:
        began = time.perf_counter()
        jax.block_until_ready([layer(*one) for one in of])
        return time.perf_counter() - began

    seconds(inputs)
    return statistics.median(seconds(inputs) / seconds(inputs[:1]) for _ in range(40))


def _ratio(ours: np.ndarray, theirs: np.ndarray) -> list[float]:
    ratio = median_interval(ours / theirs)
    return [ratio.middle, ratio.low, ratio.high]


class Spectrax:
    """SpectraX in a process of its own; idle while it is not asked for steps. `loss`: of its first step."""

    def __init__(self, python: str, stages: int, micro_batches: int, schedule: str) -> None:
        sizes = [stages, micro_batches, schedule, LAYERS, WIDTH, ROWS]
        self._process = subprocess.Popen(
            [python, str(ROOT / "tools" / "pipeline_spectrax.py"), *map(str, sizes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        )
        self.loss = self._read("loss")

    def __enter__(self) -> Spectrax:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def __call__(self, steps: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        return self._read("seconds")

    def _read(self, word: str) -> float:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word + " "):
                return float(line.split()[1])
        raise RuntimeError(f"SpectraX ended with {self._process.wait()} before it printed its {word}")


def _same_losses(captured: Captured, peer: Any, weights: Any, batch: tuple[Any, Any], stages: int) -> float:
    """Both train the same model: their first losses are one, which is returned."""
    copy = jax.device_put(np.asarray(weights), weights.sharding)  # the peer takes its weights' memory
    theirs = float(peer(copy, *batch)[1])
    ours = float(pipeline_of(captured, stages, stages, "gpipe")(captured.leaves)[-1])
    if abs(ours - theirs) > 1e-5 * abs(theirs):
        raise RuntimeError(f"the peer trains another model: its loss is {theirs}, ours {ours}")
    return ours


def ideal_seconds(executable: PipelineExecutable, loop: Loop) -> dict[str, float]:
    """What the schedule takes with the measured times of its tasks: with a core for each stage, and with the cores
    that are there, which bound it by the work in all. Each task is waited for by itself, three steps long."""
    samples: dict[tuple[str, int], list[float]] = defaultdict(list)
    plain_run = {}
    for number, stage in executable._stages.items():
        plain_run[number] = stage.run

        def timed(task: Task, stage: Any = stage, run: Any = stage.run) -> None:
            began = time.perf_counter()
            run(task)
            jax.block_until_ready((stage._sums, stage._flows, stage._outbox, stage.values))
            samples[task.kind, task.stage].append(time.perf_counter() - began)

        stage.run = timed  # type: ignore[method-assign]
    loop(3)
    for number, stage in executable._stages.items():
        stage.run = plain_run[number]  # type: ignore[method-assign]
    medians = {key: statistics.median(values) for key, values in samples.items()}

    def seconds(task: Task) -> float:
        return medians.get((task.kind, task.stage), 0.0)

    order: Order = executable.order
    timeline = simulate(order, seconds, _edges(executable.pipeline))
    work = sum(seconds(task) for tasks in order for task in tasks)
    return {"schedule": timeline.step_seconds, "bubble": timeline.bubble, "work": work}


def _edges(pipeline: Pipeline) -> list[Edge]:
    def task(part: PartId) -> Task:
        return Task(part.kind, part.stage, None if part.kind in MICRO else part.round)

    return [Edge(task(source), task(target)) for source, target in pipeline.edges]


# Dispatch


def dispatch() -> dict[str, float]:
    """Of a step with next to nothing to compute: microseconds a task, until the step is dispatched and until it is
    done."""
    captured, _, _ = captured_step(8, 8, 16)
    executable = pipeline_of(captured, 4, 8, "1f1b")
    loop = Loop(executable, executable.place(captured.leaves))
    loop(5)
    until_dispatched, until_done = [], []
    for _ in range(60):
        began = time.perf_counter()
        results = executable(loop.leaves)
        until_dispatched.append(time.perf_counter() - began)
        jax.block_until_ready(results)
        until_done.append(time.perf_counter() - began)
        loop.leaves = [*results[:-1], *loop.leaves[len(results) - 1 :]]
    tasks = len(executable.tasks)
    return {
        "tasks": tasks,
        "dispatched_us": statistics.median(until_dispatched) / tasks * 1e6,
        "done_us": statistics.median(until_done) / tasks * 1e6,
    }


# Memory


def memory() -> list[dict[str, Any]]:
    """Temporary memory of one device that accumulates, by XLA's own account."""
    captured, _, _ = captured_step(16, 256, 4096)
    batch = {i: State("batch", 0) for i, a in enumerate(captured.arguments) if a.role == "batch"}
    whole = read(captured.artifact, captured.arguments, captured.results, batch)
    layout, mesh = _layout(captured), make_mesh({"data": 1}, jax.devices()[:1])
    found = []
    for count in (1, 4, 16, 64):
        parts = accumulate(whole.line, whole.origin, whole.analysis, count)
        step: Any = AccumulatedStep(parts, captured.arguments, captured.results, count, mesh)
        function = step if count > 1 else captured.artifact
        executable = Executable(function, captured.arguments, captured.results, layout, mesh)
        compiled = executable.lower().compile()
        found.append({"micro_batches": count, "bytes": compiled.memory_analysis().temp_size_in_bytes})
    return found


# Compiling


def compile_time() -> list[dict[str, Any]]:
    """The first step of 16 layers on more and more stages."""
    captured, _, _ = captured_step(16, 32, 64)
    found = []
    for stages in (2, 4, 8):
        began = time.perf_counter()
        executable = pipeline_of(captured, stages, 8, "1f1b")
        built = time.perf_counter()
        jax.block_until_ready(executable(executable.place(captured.leaves)))
        once = executable.compile_once
        found.append(
            {
                "stages": stages,
                "cut_seconds": built - began,
                "first_step_seconds": time.perf_counter() - built,
                "compilations": once.compilations,
                "loaded": once.loaded,
            }
        )
    return found


PARTS: dict[str, Callable[[], Any]] = {
    **{f"ideal_{stages}x{micro}": functools.partial(ideal, stages, micro) for stages, micro in CASES},
    "dispatch": dispatch,
    "memory": memory,
    "compile": compile_time,
}


# The document

HEADER = """\
# What a pipeline costs

Written by `python tools/bench_pipeline.py` on a machine with {cores} cores, on which the stages are virtual CPU
devices. Each device computes with one thread: a device that takes all cores leaves nothing for a second stage to
gain. Two stages have a core each here. More stages share the cores, so that no step can take less than all its work
divided by the cores: "least" below is the larger of that and of what the schedule takes with a core for each stage.

## Step time against the schedule

Eight layers of 384 x 384 and 1,024 rows, plain gradient descent. *Schedule* is the step simulated
(`runtime/schedules.py`) with the times that its tasks take by themselves, with a core for each stage; *bubble* its
share of idle time. *Together* is how many times as long a device computes while the others compute as well, measured
apart from any pipeline: what they share slows them down, the memory's bandwidth most of all. *Step / least* is to be
seen against it; what is left is dispatch and messages.

*Peer* is the step time divided by that of a GPipe written by hand with `shard_map` for this one model
(`tools/pipeline_peer.py`, one program for all stages), by paired blocks in random order, with its 95 % interval; *peer
again* is the peer against itself, the noise. *SpectraX* is the same against the library `spectrax-lib` 0.1.4 with the
same schedule, in a process of its own (`tools/pipeline_spectrax.py`).

| stages | micro-batches | program | step | schedule | bubble | least | step / least | together | peer | SpectraX |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def document(results: dict[str, Any]) -> str:
    """The document from the results of all parts."""
    cores = os.cpu_count() or 1
    lines = [HEADER.format(cores=cores).rstrip("\n")]
    rows = [row for stages, micro in CASES for row in results[f"ideal_{stages}x{micro}"]]
    for row in rows:
        cells = [row["stages"], row["micro_batches"], row["program"], f"{row['seconds'] * 1e3:.1f} ms"]
        if "schedule" in row:
            least = _least(row, cores)
            cells += [f"{row['schedule'] * 1e3:.1f} ms", f"{row['bubble']:.0%}", f"{least * 1e3:.1f} ms"]
            cells += [f"{row['seconds'] / least:.2f}", f"{row['together']:.2f}"]
        else:
            cells += ["", "", "", "", ""]
        for ratio in (row["against_peer"], row.get("against_spectrax")):
            cells.append("" if ratio is None else "{:.2f} ({:.2f} to {:.2f})".format(*ratio))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    if all(row["seconds"] <= _least(row, cores) * row["together"] for row in rows if "schedule" in row):
        lines.append(
            "\nNo step takes longer than its schedule on devices that slow each other down like this. A delay that is "
            "smaller than what they do to each other cannot be told from it on so few cores."
        )
    noise = max(row["against_peer"][2] - row["against_peer"][1] for row in rows if "schedule" not in row)
    if noise > RESOLVED:
        lines.append(
            f"\nThe machine was not silent: the peer against itself spreads over {noise:.2f}. Differences from it "
            "below that, and *step / least*, are not resolvable here."
        )
    once = results["dispatch"]
    lines += [
        "\n## Dispatch\n",
        f"Four stages, eight micro-batches, next to nothing to compute: {once['tasks']} tasks a step. "
        f"{once['dispatched_us']:.0f} µs a task until the step is dispatched, "
        f"{once['done_us']:.0f} µs until it is done.",
        "\n## Memory of gradient accumulation\n",
        "Temporary memory of one device, 16 layers of 256 x 256, 4,096 rows, by XLA's memory analysis.\n",
        "| micro-batches | temporary memory |",
        "|---|---|",
        *(f"| {row['micro_batches']} | {format_bytes(row['bytes'])} |" for row in results["memory"]),
        "\n## Compiling\n",
        "The first step of 16 equal layers. Parts of several stages that are the same program are compiled once and",
        "loaded for the devices of the others (`runtime/compile_once.py`); each is traced and lowered for its stage,",
        "which is how they are found to be the same. Without this every function would be compiled.\n",
        "| stages | functions | compiled | loaded | cutting the step | first step |",
        "|---|---|---|---|---|---|",
    ]
    for row in results["compile"]:
        lines.append(
            f"| {row['stages']} | {row['compilations'] + row['loaded']} | {row['compilations']} | {row['loaded']} | "
            f"{row['cut_seconds']:.1f} s | {row['first_step_seconds']:.1f} s |"
        )
    lines += [
        "\n## Limits\n",
        "- `lax.cond` and `lax.switch` in a step that is split: all branches are computed and one result is chosen,",
        "  because branches may lie on different stages. The result is exact; the cost is that of all branches. A",
        "  branch that must not run where it is not chosen (a loop of unknown length, a call for its effect) is",
        "  refused.",
        "- Stacked layers (`lax.scan` over layers) lie in equal chunks, each on the first stage that reads it, in as",
        "  many as the stages allow: a JAX array has equal shards. Six layers on four stages lie on three of them,",
        "  two each. A prime number of layers on fewer stages cannot be cut and stays whole on the first stage. A",
        "  stage that runs layers of another's chunk is sent them before the first micro-batch, and sends their",
        "  gradients back after the last; a plan's predicted time and memory count that (`plan/lending.py`).",
        "- On GPUs, messages between stages of several processes are JAX's own copies from host to host",
        "  (`runtime/cross_host_channel.py`). This was not run on GPUs: its order of calls is tested with a transport",
        "  that counts them as JAX does.",
    ]
    return "\n".join(lines) + "\n"


def _least(row: dict[str, Any], cores: int) -> float:
    """Seconds that a step takes at least, with the times of its tasks by themselves."""
    found: float = max(row["schedule"], row["work"] / min(cores, row["stages"]))
    return found


if __name__ == "__main__":
    sys.exit(main())
