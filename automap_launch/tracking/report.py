"""`report.html`: one file that shows how a launch went. No script, nothing from the net, light and dark.

Every section is made from what is there; what a launch did not reach, or a caller does not know, is left out.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from automap_launch.plan.layout import Layout, Spec
from automap_launch.run_folder import RunFolder
from automap_launch.tracking.charts import Bar, Point, Series, bar_chart, legend, line_chart
from automap_launch.tracking.events import number_of
from automap_launch.tracking.markup import Html, element, join, table
from automap_launch.tracking.report_style import CSS
from automap_launch.train_step import TrainStep
from automap_launch.units import format_bytes, format_seconds

Record = Mapping[str, Any]

_BASELINES = {
    "single": "single device",
    "data_parallel": "data parallel",
    "zero_data_parallel": "data parallel, sharded state",
    "megatron": "Megatron-style",
    "pipeline": "even pipeline",
}
_MEMORY = ("parameters", "optimizer", "gradients", "activations")
_OPEN_MEMBERS = 6  # a group with more members folds them away
_LOSS_CURVES = 3


@dataclass(frozen=True)
class ParameterSharding:
    """Where one tensor of the state lies: its sharding in the computation, and as stored (ZeRO)."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    compute: Spec
    storage: Spec


def parameter_shardings(step: TrainStep, layout: Layout) -> list[ParameterSharding]:
    """The table of the state's shardings under `layout`."""
    return [
        ParameterSharding(a.path, a.shape, a.dtype, layout.compute[i], layout.storage[i])
        for i, a in enumerate(step.arguments)
        if a.role == "state"
    ]


def read_run(folder: RunFolder) -> dict[str, Any]:
    """What the run folder holds for `write_report`: `search_curve`, `steps` and `environment`.

    A line or a file that was cut by a crash or a full disk is passed over.
    """
    environments = sorted(folder.environment(0).parent.glob("rank_*.json"))
    return {
        "search_curve": list(_lines(folder.search_log)),
        "steps": [line for line in _lines(folder.metrics) if "train/step" in line],
        "environment": {path.stem: record for path in environments for record in _lines(path, whole=True)},
    }


def write_report(
    path: Path,
    *,
    summary: Record,
    plan: Record | None = None,
    parameters: Sequence[ParameterSharding] = (),
    left_out: Sequence[str] = (),
    search_curve: Sequence[Record] = (),
    steps: Sequence[Record] = (),
    environment: Record | None = None,
    device_memory_bytes: int | None = None,
) -> None:
    """Writes the report, atomically.

    Args:
      summary: `summary.json`.
      plan: `plan.yaml`, or a `Plan` as a dict.
      left_out: plans that the search left out, each with the reason.
      search_curve, steps, environment: see `read_run`.
      device_memory_bytes: of one device.

    Raises:
      OSError: the file cannot be written.
    """
    sections = [
        _outcome(summary),
        _plan(plan, parameters) if plan else None,
        _candidates(summary, left_out),
        _search(search_curve),
        _predicted(plan, summary) if plan else None,
        _memory(plan, device_memory_bytes) if plan else None,
        _training(steps),
        _environment(plan, environment),
    ]
    status = str(summary.get("status") or "running")
    name = summary.get("run_id") or path.parent.name
    started, ended = summary.get("started"), summary.get("ended")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"automap-launch {name}"),
        element("style", Html(CSS)),
    )
    body = element(
        "main",
        element("h1", name, element("span", status, class_=f"badge {status}")),
        element("p", " · ".join(_subtitle(summary, started, ended)), class_="soft"),
        *sections,
    )
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(f"<!doctype html>\n{element('html', head, element('body', body), lang='en')}\n", "utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _section(title: str, *children: object) -> Html:
    return element("section", element("h2", title), *children)


def _subtitle(summary: Record, started: object, ended: object) -> list[str]:
    cluster = summary.get("cluster") or {}
    parts = [f"mode {summary['mode']}" if summary.get("mode") else None]
    if cluster.get("name"):
        parts.append(f"cluster {cluster['name']} ({cluster.get('hosts')} × {cluster.get('devices_per_host')})")
    parts.append(f"fingerprint {summary['fingerprint']}" if summary.get("fingerprint") else None)
    parts.append(
        f"{_moment(started)} to {_moment(ended)}" if ended else f"from {_moment(started)}" if started else None
    )
    return [p for p in parts if p]


def _moment(text: object) -> str:
    """An ISO time to the second; what is none stays as it is."""
    try:
        return f"{datetime.fromisoformat(str(text)):%Y-%m-%d %H:%M:%S %Z}".strip()
    except ValueError:
        return str(text)


def _outcome(summary: Record) -> Html:
    search, train = summary.get("search") or {}, summary.get("train") or {}
    chosen = search.get("predicted_step_seconds")
    parallel = (search.get("baselines") or {}).get("data_parallel")
    values: list[tuple[str, object, Callable[[Any], str]]] = [
        ("step time, measured", train.get("step_seconds_median"), format_seconds),
        ("step time, predicted", chosen, format_seconds),
        ("as fast as data parallel, predicted", parallel / chosen if parallel and chosen else None, "{:.2f} ×".format),
        ("examples a second", train.get("examples_per_second"), _number),
        ("tokens a second", train.get("tokens_per_second"), _number),
        ("model flops utilisation", train.get("mfu"), "{:.1%}".format),
        ("steps", train.get("steps"), "{:,}".format),
        ("devices", train.get("devices"), str),
        ("processes", train.get("processes"), str),
        ("search time", search.get("seconds"), format_seconds),
        ("plans evaluated", search.get("evaluations"), "{:,}".format),
        ("exit code", summary.get("exit_code"), str),
    ]
    tiles = [
        element("div", element("b", form(value)), element("span", label), class_="tile")
        for label, value, form in values
        if value is not None
    ]
    return _section("Outcome", element("div", *tiles, class_="tiles"), _error(summary.get("error")))


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _error(error: Record | None) -> Html | None:
    if not error:
        return None
    where = [f"rank {error['rank']}" if error.get("rank") is not None else None]
    where.append(f"{error['file']}:{error.get('line')}" if error.get("file") else None)
    where.append(f"log in {error['traceback_path']}" if error.get("traceback_path") else None)
    title = " · ".join(str(w) for w in (error.get("kind"), *where) if w)
    return element("div", element("b", title), "\n", error.get("message") or "", class_="error")


def _plan(plan: Record, parameters: Sequence[ParameterSharding]) -> Html:
    stages = plan.get("stages") or ()
    facts: list[tuple[object, ...]] = [("mesh", _mesh(plan.get("mesh") or {}))]
    if len(stages) > 1:
        facts.append(("stages", len(stages)))
        facts.append(("micro-batches", plan.get("micro_batches")))
        facts.append(("schedule", plan.get("schedule")))
    origin = plan.get("origin") or {}
    if origin.get("searcher"):
        facts.append(("found by", origin["searcher"]))
    groups = [
        (group.get("id"), _axis(group.get("axis")), _members(group.get("members") or ()), group.get("reason") or "")
        for group in plan.get("groups") or ()
    ]
    children: list[object] = [table(("decision", "value"), facts)]
    if groups:
        children += [element("h3", "Linkage groups"), table(("id", "axis", "members", "reason"), groups)]
    if parameters:
        rows = [
            (element("code", p.path), f"{p.dtype}[{','.join(map(str, p.shape))}]", _spec(p.compute), _spec(p.storage))
            for p in parameters
        ]
        shardings = table(("tensor", "shape", "in the computation", "as stored"), rows)
        label = f"Sharding of each tensor of the state ({len(rows)})"
        children.append(element("details", element("summary", label), shardings, open=len(rows) <= 40))
    return _section("Plan", *children)


def _mesh(mesh: Record) -> str:
    return " × ".join(f"{axis} {size}" for axis, size in mesh.items()) or "one device"


def _axis(axis: str | None) -> object:
    return element("span", axis, class_="axis") if axis else "none"


def _members(paths: Sequence[str]) -> Html:
    items = [join(element("code", path), element("br")) for path in paths]
    if len(paths) <= _OPEN_MEMBERS:
        return join(*items)
    return element("details", element("summary", f"{len(paths)} parameters"), *items)


def _spec(spec: Spec) -> object:
    if not any(spec):
        return "replicated"
    return element("code", "(" + ", ".join(axis or "·" for axis in spec) + ")")


def _candidates(summary: Record, left_out: Sequence[str]) -> Html | None:
    search = summary.get("search") or {}
    chosen = search.get("predicted_step_seconds")
    if not chosen:
        return None
    candidates: dict[str, float | None] = dict(search.get("baselines") or {})
    bars = [
        Bar(
            _BASELINES.get(name) or name, [] if seconds is None else [("step time", seconds)], _against(seconds, chosen)
        )
        for name, seconds in candidates.items()
    ]
    found_by = (summary.get("plan") or {}).get("found_by")
    label = f"chosen plan ({found_by})" if found_by else "chosen plan"
    bars.append(Bar(label, [("step time", chosen)], format_seconds(chosen), colour=2, strong=True))
    optimum = search.get("optimum_step_seconds")
    if optimum:
        bars.append(Bar("exact optimum", [("step time", optimum)], _against(optimum, chosen)))
    note = element("p", "Predicted time of one step; in brackets, as a multiple of the chosen plan's.", class_="soft")
    return _section("Candidates", note, bar_chart(bars), *(element("p", reason) for reason in left_out))


def _against(seconds: float | None, chosen: float) -> str:
    return "does not fit" if seconds is None else f"{format_seconds(seconds)} ({seconds / chosen:.2f} ×)"


def _search(curve: Sequence[Record]) -> Html | None:
    points = [
        (float(r["seconds"]), number_of(r["search/best_step_seconds"]))
        for r in curve
        if r.get("search/best_step_seconds") is not None and r.get("seconds") is not None
    ]
    chart = line_chart(
        [Series("best plan", points)], x_label="seconds of search", y_format=format_seconds, log=True, steps=True
    )
    if chart is None:
        return None
    last = curve[-1]
    caption = f"Predicted step time of the best plan so far: episode {last.get('search/episode')}"
    caption += f", {last['evaluations']:,} plans evaluated." if last.get("evaluations") else "."
    return _section("Search", element("p", caption, class_="soft"), chart)


def _predicted(plan: Record, summary: Record) -> Html | None:
    predicted = plan.get("predicted") or {}
    measured = (summary.get("train") or {}).get("step_seconds_median")
    names = ("compute", "communication", "bubble")
    parts = [(name, float(predicted[name])) for name in names if predicted.get(name)]
    total = predicted.get("step_seconds")
    if not parts or not total:
        return None
    bars = [Bar("predicted", parts, format_seconds(total))]
    note = "Of one step: " + ", ".join(f"{name} {format_seconds(value)}" for name, value in parts) + "."
    if measured:
        bars.append(Bar("measured", [("measured median", measured)], format_seconds(measured), colour=2))
        note += f" Measured is {measured / total:.2f} × predicted."
    return _section(
        "Predicted against measured" if measured else "Predicted step time",
        element("p", note, class_="soft"),
        legend([name for name, _ in parts]),
        bar_chart(bars),
    )


def _memory(plan: Record, device_memory_bytes: int | None) -> Html | None:
    memory = (plan.get("predicted") or {}).get("memory_bytes_per_device") or {}
    parts = [(name, float(memory[name])) for name in _MEMORY if memory.get(name)]
    if not parts:
        return None
    total = sum(value for _, value in parts)
    bars = [Bar("together", parts, format_bytes(total), strong=True)]
    rows: list[tuple[object, ...]] = [(name, format_bytes(value), f"{value / total:.0%}") for name, value in parts]
    note = "Predicted, at the peak of a step."
    if device_memory_bytes:
        share = f"{100 * total / device_memory_bytes:.2g}%"
        note += f" A device has {format_bytes(device_memory_bytes)}: {share} of it is used."
    return _section(
        "Memory of a device",
        element("p", note, class_="soft"),
        legend([name for name, _ in parts]),
        bar_chart(bars),
        table(("what", "bytes", "share"), rows, frozenset({1, 2})),
    )


def _training(steps: Sequence[Record]) -> Html | None:
    paths = {key for step in steps for key in step if key.startswith("train/out/")}
    ranked = sorted(paths, key=lambda path: ("loss" not in path.lower(), path))
    losses = [path for path in ranked if "loss" in path.lower()] or ranked[:1]
    series = [Series(_output_name(path), _points(steps, path)) for path in losses[:_LOSS_CURVES]]
    children: list[object] = []
    for one in series:
        broken = next((x for x, y in one.points if not math.isfinite(y)), None)
        if broken is not None:
            children.append(element("p", f"{one.name} is not finite at step {broken:g}.", class_="failed"))
    loss_chart = line_chart(series, x_label="step", y_format="{:.4g}".format)
    if loss_chart is not None:
        children += [element("h3", ", ".join(s.name for s in series)), loss_chart]
    for key, title in (
        ("train/tokens_per_second", "tokens a second"),
        ("train/examples_per_second", "examples a second"),
        ("train/step_seconds", "step time"),
    ):
        y_format = format_seconds if key == "train/step_seconds" else _number
        # The first step's time is its compilation and would flatten all that follows.
        chart = line_chart([Series(title, _points(steps[1:], key))], x_label="step", y_format=y_format, from_zero=True)
        if chart is not None:
            children += [element("h3", title), chart]
            break
    return _section("Training", *children) if children else None


def _output_name(key: str) -> str:
    """An output that is known only by its place in the step's result is called by it."""
    path = key.removeprefix("train/out/")
    return f"output {path}" if path.isdecimal() else path


def _points(steps: Sequence[Record], key: str) -> list[Point]:
    return [(float(s["train/step"]), number_of(s[key])) for s in steps if s.get(key) is not None]


def _environment(plan: Record | None, environment: Record | None) -> Html | None:
    rows: list[tuple[object, ...]] = [(name, version) for name, version in ((plan or {}).get("versions") or {}).items()]
    children: list[object] = [table(("package", "version"), rows)] if rows else []
    for rank, record in (environment or {}).items():
        text = json.dumps(record, indent=1, sort_keys=True, default=str)
        children.append(
            element("details", element("summary", rank.replace("_", " ")), element("pre", element("code", text)))
        )
    return _section("Environment", *children) if children else None


def _lines(path: Path, whole: bool = False) -> Iterable[dict[str, Any]]:
    """The records of a file that holds one a line, or one in all (`whole`)."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in [file.read()] if whole else file:
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(record, dict):
                yield record
