"""Does any device hold more than its share while the state is made? Four processes of one device each.

    python tools/startup_memory.py                          # a pipeline of four stages, 1 GiB of state a device
    python tools/startup_memory.py --made jitted            # the state is made by a jitted function
    python tools/startup_memory.py search.pin.stages=1 search.pin.model=4      # another plan
    python tools/startup_memory.py --width 2048 --layers 28 # as much state in smaller arrays
    python tools/startup_memory.py --width 1024             # less state; not for the document

The measure is the peak of a process's resident memory over start-up and two steps, less that of the same script at
tiny size, as a multiple of the device's share of the state: the bytes that it holds after those steps, which is not
the same for all where layers do not divide into stages. The limit is 1.2. The control is the same script without us,
which holds all of the state on one device, as a multiple of a mean share: it must fail. Needs as much memory as the
state, twice.

Runs at full size are kept in `outputs/startup_memory/results.json`, and `docs/startup_memory.md` is written from them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(__file__).with_name("startup_memory_script.py")
RESULTS = ROOT / "outputs" / "startup_memory" / "results.json"
DOCUMENT = ROOT / "docs" / "startup_memory.md"
PROCESSES, LIMIT, TINY = 4, 1.2, 32
# 9 times the parameters (their values, two moments, six averages) in layers of width ** 2: 4 GiB.
WIDTH, LAYERS = 3908, 8
GIB = 2**30


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--width", type=int, default=WIDTH, help="of the model; a multiple of 4")
    parser.add_argument("--layers", type=int, default=LAYERS, help="of the model; a multiple of 4")
    parser.add_argument("--made", choices=["eager", "jitted"], default="eager", help="how the script makes its state")
    parser.add_argument("pins", nargs="*", default=["search.pin.stages=4"], help="overrides of automap-launch")
    given = parser.parse_args()
    row = measured(given.width, given.layers, given.made, given.pins)
    print(json.dumps(row, indent=1))
    if row["state"] >= PROCESSES * GIB:
        rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        rows[f"{' '.join(given.pins)}, {given.made}, {given.layers} of {given.width}"] = row
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(rows, indent=1))
        DOCUMENT.write_text(document(list(rows.values())))
    return 0 if holds(row) else 1


def measured(width: int, layers: int, made: str, pins: Sequence[str]) -> dict[str, Any]:
    """Bytes of the state, in all and on each rank, and peaks over those at tiny size: of each rank, and of the script
    by itself."""
    with tempfile.TemporaryDirectory() as folder:
        full, tiny = [str(width), str(layers), made], [str(TINY), str(layers), made]
        launched = launched_peaks(full, pins, Path(folder) / "full")
        before = launched_peaks(tiny, pins, Path(folder) / "tiny")
        control = alone_peak(full).peak - alone_peak(tiny).peak
    return {
        "pins": list(pins),
        "made": made,
        "array": 4 * width**2,
        "layers": layers,
        "state": launched[0].state,
        "held": [rank.held for rank in launched],
        "ranks": [rank.peak - base.peak for rank, base in zip(launched, before, strict=True)],
        "control": control,
    }


def shares(row: dict[str, Any]) -> tuple[list[float], float]:
    """Peaks of the ranks as multiples of what each holds, and of the control as one of a mean share."""
    ranks = [peak / held for peak, held in zip(row["ranks"], row["held"], strict=True)]
    return ranks, row["control"] * PROCESSES / row["state"]


def holds(row: dict[str, Any]) -> bool:
    ranks, control = shares(row)
    return max(ranks) <= LIMIT < control


@dataclass(frozen=True)
class Printed:
    """What the script prints, in bytes: its whole state, what the process holds of it, the process's peak."""

    state: int
    held: int
    peak: int


def launched_peaks(arguments: Sequence[str], pins: Sequence[str], folder: Path) -> list[Printed]:
    """What each rank prints."""
    overrides = [
        "cluster=local",
        f"cluster.devices={PROCESSES}",
        f"launcher.processes={PROCESSES}",
        "tracking=none",
        "search.trial=off",  # a trial makes the state of several plans, one after the other
        f"hydra.run.dir={folder}",
        *pins,
    ]
    command = [sys.executable, "-m", "automap_launch", *overrides, "--", str(SCRIPT), *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return [read(path.read_text()) for path in sorted((folder / "logs").glob("rank_?.log"))]


def alone_peak(arguments: Sequence[str]) -> Printed:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return read(done.stdout)


def read(output: str) -> Printed:
    """From the script's output."""
    found = re.search(r"state (\d+) held (\d+) peak (\d+)", output)
    if found is None:
        raise ValueError(f"the script printed no peak: {output[-500:]}")
    return Printed(*map(int, found.groups()))


HEADER = """\
# Memory while the state is made

Written by `python tools/startup_memory.py`. A script makes its state as if for one device, and it never exists on one:
what is large is recorded instead of evaluated (`frontends/deferred.py`), and replayed at the first step, straight into
the plan's shardings.

Four processes of one CPU device each. The figures are peaks of a process's resident memory over start-up and two
steps, less that of the same script at tiny size, as multiples of the device's own share of the state: the bytes that it
holds after those steps. Shares differ where layers do not divide into stages. The limit is {limit}. The control is the
script by itself on one device, as a multiple of a mean share; it must be above the limit. Gradients are in the figures:
a ninth of the state here, which is parameters, Adam's moments and six averages.

| plan | state made by | layers | arrays of | shares of the state, GiB | ranks | control | |
|---|---|---|---|---|---|---|---|
"""


def document(rows: Sequence[dict[str, Any]]) -> str:
    """The document, a line a run."""
    lines = [HEADER.format(limit=LIMIT)]
    for row in rows:
        ranks, control = shares(row)
        plan = ", ".join(pin.removeprefix("search.pin.") for pin in row["pins"])
        found = ", ".join(f"{value:.2f}" for value in ranks)
        verdict = "holds" if holds(row) else "does not hold"
        array, own = f"{row['array'] / 2**20:.0f} MiB", ", ".join(f"{held / GIB:.2f}" for held in row["held"])
        cells = (plan, f"{row['made']} code", row["layers"], array, own, found, f"{control:.2f}", verdict)
        lines.append(f"| {' | '.join(map(str, cells))} |\n")
    return "".join(lines)


if __name__ == "__main__":
    sys.exit(main())
