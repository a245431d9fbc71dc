"""`TrainStep`: one training step of the user's script, captured as StableHLO. Written by `frontends/`, read by all.

A step is a function from flat arguments to flat results. An argument that a later call receives from an earlier
result is *state* (`Result.replaces` says which); the rest is *batch* (arrays) or *other* (scalars, PRNG keys).

On disk (docs/contract.md): `step.json`, one `step.<platform>.mlirbc` a platform (portable StableHLO artifact),
`step.hlo.txt` and `sources.json`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

SCHEMA = 1

Role = Literal["state", "batch", "other"]


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's own code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Argument:
    """One flat argument of the step.

    `path` is the user's own name for it, parts joined by `/`, beginning with the parameter's name in the step's
    signature: `state/params/Dense_0/kernel`, `batch/tokens`. `shape` and `dtype` are as JAX sees them: a typed
    PRNG key has dtype `key<fry>` and shape `()`, though the module takes `2xui32`.
    `weak_type`: in arithmetic it takes the other operand's dtype, as a Python number does (JAX's type promotion).
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    role: Role
    donated: bool = False
    weak_type: bool = False


@dataclass(frozen=True)
class Result:
    """One flat result of the step. `path` is its place in the returned value: `0/params/w`, `1`, `loss`.

    `replaces` is the index of the state argument whose place it takes in the next call; None for a metric.
    `weak_type`: as of an argument.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    replaces: int | None = None
    weak_type: bool = False


@dataclass(frozen=True)
class Entry:
    """How the script was started: exactly one of `script` and `module`, and its own arguments."""

    script: str | None = None
    module: str | None = None
    args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.script is None) == (self.module is None):
            raise ValueError(f"an entry names a script or a module, not {self.script!r} and {self.module!r}")


@dataclass(frozen=True)
class StepIdentity:
    """What finds the step again when the script runs anew: its function's name and definition."""

    name: str
    source: SourceLine | None


@dataclass(frozen=True)
class TrainStep:
    """The captured step.

    Args:
      identity: the step's function in the user's script.
      frontend: `jax`, `tensorflow` or `trax`.
      arguments, results: flat, in the order of the module's `main` function.
      modules: portable StableHLO artifact by platform (`cpu` always, the cluster's as well), from one trace.
      sources: source line of the k-th operation of the module, walking functions and regions in textual order;
        None where no line of the user's own is known.
      has_callbacks: the step calls back into Python (`jax.debug.print`, `io_callback`).
      fingerprint: of the `cpu` module without locations; equal across processes, folders and runs.
    """

    identity: StepIdentity
    frontend: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    modules: dict[str, bytes]
    fingerprint: str
    sources: tuple[SourceLine | None, ...] = ()
    has_callbacks: bool = False
    entry: Entry | None = None
    versions: dict[str, str] = field(default_factory=dict)
    text: str = ""

    def __post_init__(self) -> None:
        if "cpu" not in self.modules:
            raise ValueError(f"a TrainStep holds a module for cpu, got {sorted(self.modules)}")
        for result in self.results:
            if result.replaces is not None and self.arguments[result.replaces].role != "state":
                raise ValueError(f"result {result.path} replaces {self.arguments[result.replaces].path}: no state")

    @property
    def platforms(self) -> tuple[str, ...]:
        return tuple(sorted(self.modules))

    def save(self, folder: Path) -> None:
        """Writes the step as a folder that `load` reads on any machine."""
        folder.mkdir(parents=True, exist_ok=True)
        for platform, module in self.modules.items():
            (folder / f"step.{platform}.mlirbc").write_bytes(module)
        (folder / "step.hlo.txt").write_text(self.text)
        (folder / "sources.json").write_text(json.dumps([s and str(s) for s in self.sources]))
        record = {
            "schema": SCHEMA,
            "identity": dataclasses.asdict(self.identity),
            "frontend": self.frontend,
            "fingerprint": self.fingerprint,
            "platforms": list(self.platforms),
            "arguments": [dataclasses.asdict(a) for a in self.arguments],
            "results": [dataclasses.asdict(r) for r in self.results],
            "has_callbacks": self.has_callbacks,
            "entry": dataclasses.asdict(self.entry) if self.entry else None,
            "versions": self.versions,
        }
        (folder / "step.json").write_text(json.dumps(record, indent=1))

    @classmethod
    def load(cls, folder: Path) -> TrainStep:
        """Reads a folder written by `save`.

        Raises:
          FileNotFoundError: the folder holds no `step.json`, or a module is missing.
          ValueError: it was written with another schema.
        """
        record: dict[str, Any] = json.loads((folder / "step.json").read_text())
        if record["schema"] != SCHEMA:
            raise ValueError(f"{folder}/step.json has schema {record['schema']}, this version reads {SCHEMA}")
        entry = record["entry"]
        text = folder / "step.hlo.txt"
        return cls(
            identity=StepIdentity(record["identity"]["name"], _source(record["identity"]["source"])),
            frontend=record["frontend"],
            arguments=tuple(Argument(**{**a, "shape": tuple(a["shape"])}) for a in record["arguments"]),
            results=tuple(Result(**{**r, "shape": tuple(r["shape"])}) for r in record["results"]),
            modules={p: (folder / f"step.{p}.mlirbc").read_bytes() for p in record["platforms"]},
            fingerprint=record["fingerprint"],
            sources=tuple(_parse_source(s) for s in json.loads((folder / "sources.json").read_text())),
            has_callbacks=record["has_callbacks"],
            entry=Entry(**{**entry, "args": tuple(entry["args"])}) if entry else None,
            versions=record["versions"],
            text=text.read_text() if text.exists() else "",
        )


def fingerprint_of(text_without_locations: str) -> str:
    """Fingerprint of a module printed without locations: 16 hexadecimal digits."""
    return hashlib.sha256(text_without_locations.encode()).hexdigest()[:16]


def _source(record: dict[str, Any] | None) -> SourceLine | None:
    return SourceLine(**record) if record else None


def _parse_source(text: str | None) -> SourceLine | None:
    if not text:
        return None
    file, _, line = text.rpartition(":")
    return SourceLine(file, int(line))


class Runner(Protocol):
    """One signature of a step on the devices, under a plan; `runtime.Executable` is one.

    `arguments` have their roles, `results` what they replace. `place` brings flat arguments into the plan's shardings,
    creating deferred ones; a call runs one step and does so itself where need be.
    """

    @property
    def arguments(self) -> Sequence[Argument]: ...
    @property
    def results(self) -> Sequence[Result]: ...
    def place(self, leaves: Sequence[Any]) -> list[Any]: ...
    def __call__(self, leaves: Sequence[Any]) -> list[Any]: ...
