"""Does any device hold more than its share while the state is made? Four processes of one device each, as a pipeline.

    python tools/startup_memory.py                     # 1 GiB of state a device
    python tools/startup_memory.py --width 1024        # smaller
    python tools/startup_memory.py search.pin.stages=2 search.pin.model=2

The measure is the peak of a process's resident memory over start-up and two steps, less that of the same script at
tiny size, as a multiple of the device's share of the state. The limit is 1.2. The control is the same script without
us, which holds all of the state on one device: it must fail. Needs as much memory as the state, twice.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).with_name("startup_memory_script.py")
PROCESSES, LIMIT, TINY = 4, 1.2, 32
# 9 times the parameters (their values, two moments, six averages) in 8 layers of width ** 2: 4 GiB.
WIDTH = 3908


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--width", type=int, default=WIDTH, help="of the model; a multiple of 4")
    parser.add_argument("pins", nargs="*", default=["search.pin.stages=4"], help="overrides of automap-launch")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        state, launched = launched_peaks(given.width, given.pins, Path(folder) / "full")
        _, before = launched_peaks(TINY, given.pins, Path(folder) / "tiny")
        _, alone = alone_peak(given.width)
        _, alone_before = alone_peak(TINY)
    share = state / PROCESSES
    print(f"state {state / 2**30:.2f} GiB, share of a device {share / 2**30:.2f} GiB, limit {LIMIT}")
    worst = 0.0
    for rank, (peak, base) in enumerate(zip(launched, before, strict=True)):
        worst = max(worst, (peak - base) / share)
        print(f"rank {rank}: {(peak - base) / share:.2f} x its share")
    control = (alone - alone_before) / share
    print(f"control, one device: {control:.2f} x the share")
    holds = worst <= LIMIT < control
    print("holds" if holds else "does not hold")
    return 0 if holds else 1


def launched_peaks(width: int, pins: list[str], folder: Path) -> tuple[int, list[int]]:
    """Bytes of the state, and of each rank's peak."""
    overrides = [
        "cluster=local",
        f"cluster.devices={PROCESSES}",
        f"launcher.processes={PROCESSES}",
        "tracking=none",
        f"hydra.run.dir={folder}",
        *pins,
    ]
    command = [sys.executable, "-m", "automap_launch", *overrides, "--", str(SCRIPT), str(width)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = [read(path.read_text()) for path in sorted((folder / "logs").glob("rank_?.log"))]
    return found[0][0], [peak for _, peak in found]


def alone_peak(width: int) -> tuple[int, int]:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(width)], check=True, capture_output=True, text=True, env=environment
    )
    return read(done.stdout)


def read(output: str) -> tuple[int, int]:
    """Bytes of the state, and the peak, from what the script prints."""
    found = re.search(r"state (\d+) peak (\d+)", output)
    if found is None:
        raise ValueError(f"the script printed no peak: {output[-500:]}")
    return int(found[1]), int(found[2])


if __name__ == "__main__":
    sys.exit(main())
