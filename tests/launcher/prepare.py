"""Makes a run folder for a script without capture and search: `prepare.py SCRIPT RUN_DIR OPTIONS.json`.

The step is taken from the first call of the function named in the options; what it carries is given by path prefixes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

OPTIONS = json.loads(Path(sys.argv[3]).read_text())
CARRIED = OPTIONS["carried"]  # result prefix -> argument prefix


class StepFoundError(Exception):
    pass


def main(script: str, run_dir: Path) -> None:
    from automap_launch.frontends import jit_hook
    from automap_launch.frontends.lowering import lower_step
    from automap_launch.frontends.script import run_script
    from automap_launch.train_step import Entry

    found: dict[str, Any] = {}

    def handler(function: Any, args: Any, kwargs: Any) -> Any:
        if function.identity.name != OPTIONS["step"]:
            return function.jitted(*args, **kwargs)
        found.update(lowered=lower_step(function, args, kwargs, ["cpu"]), identity=function.identity)
        raise StepFoundError

    jit_hook.install(handler)
    try:
        run_script(Entry(script=script, args=tuple(OPTIONS.get("args", ()))))
    except StepFoundError:
        save(found["lowered"], found["identity"], run_dir)


def save(lowered: Any, identity: Any, run_dir: Path) -> None:
    from dataclasses import replace

    from automap_launch.plan.layout import Layout
    from automap_launch.run_folder import RunFolder
    from automap_launch.train_step import TrainStep

    places = {a.path: i for i, a in enumerate(lowered.arguments)}
    results = []
    for result in lowered.results:
        prefix = next((p for p in CARRIED if result.path == p or result.path.startswith(p + "/")), None)
        target = None if prefix is None else places.get(CARRIED[prefix] + result.path[len(prefix) :])
        results.append(replace(result, replaces=target))
    carried = {r.replaces for r in results}
    arguments = [
        replace(a, role="state" if i in carried else "batch" if a.shape else "other")
        for i, a in enumerate(lowered.arguments)
    ]
    step = TrainStep(
        identity=identity,
        frontend="jax",
        arguments=tuple(arguments),
        results=tuple(results),
        modules=lowered.modules,
        fingerprint=lowered.fingerprint,
        text=lowered.text,
        has_callbacks=lowered.has_callbacks,
    )
    mesh = OPTIONS["mesh"]

    def spec(argument: Any, rules: Any) -> tuple[str | None, ...]:
        if argument.role == "batch":
            return ("data", *[None] * (len(argument.shape) - 1))
        rule = next((r for suffix, r in rules.items() if argument.path.endswith(suffix)), None)
        return () if rule is None or len(rule) != len(argument.shape) else tuple(rule)

    compute = tuple(spec(a, OPTIONS.get("compute", {})) for a in arguments)
    storage = tuple(spec(a, OPTIONS.get("storage", OPTIONS.get("compute", {}))) for a in arguments)
    out = tuple(() if r.replaces is None else storage[r.replaces] for r in results)
    folder = RunFolder(run_dir)
    step.save(folder.train_step)
    Layout(mesh, compute, storage, out).save(folder.layout)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
