"""Writes `docs/emulated_hosts.md`: whole launches over hosts that a slow network joins, predicted and measured.

    sudo python tools/emulated_hosts.py                        # two hosts, three networks
    sudo python tools/emulated_hosts.py --mbit 100 --hosts 2   # one network; prints its rows and writes nothing

Each host is a network namespace of this machine with one core of its own and a link of limited rate both ways
(`ip netns`, `tc ... tbf`; needs root). On each of them `automap-launch` starts as a user would start it, with the
unmodified quickstart recipe: it captures the step, searches a plan for the cluster, and tries the plan, its runner-up
and pure data parallelism on the devices before it trains with the fastest.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from automap_launch.cluster.cluster import Cluster, Link  # noqa: E402
from automap_launch.cluster.file import load_cluster, save_cluster  # noqa: E402
from automap_launch.units import format_seconds  # noqa: E402

DOCUMENT = ROOT / "docs" / "emulated_hosts.md"
SCRIPT = ROOT / "recipes" / "quickstart" / "train.py"
BATCHES = (8,)  # sequences a step
MBITS = (100, 400, 2000)
NETWORK = "10.78.0"
HUB = "automap-hub"
PORT = 29500
# What a message costs besides its bytes, between two processes of gloo on one machine.
ALPHA_SECONDS = 5e-4
# tbf lets a burst pass at once: 4 ms of the rate, and at least one packet of the kernel's largest size.
BURST_SECONDS, LEAST_BURST = 4e-3, 65536
LIMIT_SECONDS = 600

HEADER = """\
# Launches over several hosts

Written by `python tools/emulated_hosts.py` (its head says how). {hosts} hosts, each a network namespace with one core
and one device of its own, joined by links of limited rate. The quickstart recipe (a language model, 1.7 million
parameters), unmodified, started on each host as a user starts it. *predicted* is the cost model's step time, with the
device's speed as `cluster=local` measures it on one core, and the link's rate as set; *measured* is the median of the
steps of the launch's own trial, to which every plan comes with the same state. *trains with* is what it decided.
"""


@dataclass(frozen=True)
class Row:
    """One launch. `predicted`, `measured`: seconds of a step by plan; `plan`: what the search found, in words."""

    mbit: int
    batch: int
    plan: str
    predicted: dict[str, float | None]
    measured: dict[str, float | None]
    chosen: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--mbit", type=int, action="append")
    parser.add_argument("--batch-size", type=int, action="append")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("network namespaces need root: sudo python tools/emulated_hosts.py")
    rows = []
    for mbit in options.mbit or MBITS:
        with network(options.hosts, mbit):
            for batch in options.batch_size or BATCHES:
                rows.append(launched(options.hosts, mbit, batch))
                print(line(rows[-1]), flush=True)
    if options.mbit is None and options.batch_size is None:
        DOCUMENT.write_text(HEADER.format(hosts=options.hosts) + table(rows))
    return 0


@contextmanager
def network(hosts: int, mbit: int) -> Iterator[None]:
    """Namespaces `automap-0`, ... on a bridge; gone at the end."""
    names = [name(host) for host in range(hosts)]
    try:
        ip("netns", "add", HUB)
        ip("link", "add", "br0", "type", "bridge", inside=HUB)
        ip("link", "set", "br0", "up", inside=HUB)
        for host, namespace in enumerate(names):
            ip("netns", "add", namespace)
            ip("link", "set", "lo", "up", inside=namespace)
            ip("link", "add", "v0", "netns", namespace, "type", "veth", "peer", "name", f"p{host}", "netns", HUB)
            ip("addr", "add", f"{address(host)}/24", "dev", "v0", inside=namespace)
            ip("link", "set", "v0", "up", inside=namespace)
            ip("link", "set", f"p{host}", "master", "br0", inside=HUB)
            ip("link", "set", f"p{host}", "up", inside=HUB)
            limit(namespace, "v0", mbit)
            limit(HUB, f"p{host}", mbit)
            # gloo connects to what the machine's own name resolves to.
            folder = Path("/etc/netns") / namespace
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{address(host)} {socket.gethostname()}\n")
        yield
    finally:
        for namespace in (*names, HUB):
            subprocess.run(["ip", "netns", "del", namespace], check=False, stderr=subprocess.DEVNULL)
            shutil.rmtree(Path("/etc/netns") / namespace, ignore_errors=True)


def name(host: int) -> str:
    return f"automap-{host}"


def address(host: int) -> str:
    return f"{NETWORK}.{host + 1}"


def ip(*arguments: str, inside: str | None = None) -> None:
    subprocess.run(["ip", *(("-n", inside) if inside else ()), *arguments], check=True)


def limit(namespace: str, device: str, mbit: int) -> None:
    burst = max(LEAST_BURST, round(mbit * 1e6 / 8 * BURST_SECONDS))
    rate = ["tbf", "rate", f"{mbit}mbit", "burst", str(burst), "latency", "100ms"]
    subprocess.run(["ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", device, "root", *rate], check=True)


def launched(hosts: int, mbit: int, batch: int) -> Row:
    """Launches the recipe on all hosts and reads what host 0 wrote down."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.yaml"
        save_cluster(cluster(hosts, mbit), file)
        arguments = ["--steps", "5", "--eval-batches", "1", "--batch-size", str(batch)]
        processes = [start(host, hosts, file, arguments, Path(folder)) for host in range(hosts)]
        outputs = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in processes]
        if any(process.returncode for process in processes):
            raise SystemExit("\n".join(f"host {k}:\n{text}" for k, text in enumerate(outputs)))
        (file,) = Path(folder).glob("0/outputs/*/*/summary.json")
        summary = json.loads(file.read_text())
        records = [json.loads(text) for text in (file.parent / "search.jsonl").read_text().splitlines()]
    search = summary["search"]
    trial = search["trial"]
    predicted = {"plan": search["predicted_step_seconds"], "data_parallel": search["baselines"]["data_parallel"]}
    found = [record["improvement"] for record in records if record["improvement"] is not None][-1]
    return Row(mbit, batch, words(found), predicted, trial["step_seconds"], trial["chosen"])


def start(host: int, hosts: int, file: Path, arguments: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    """`automap-launch` on one host, on one core."""
    (folder / str(host)).mkdir()
    inside = ["ip", "netns", "exec", name(host), "taskset", "-c", str(host % (os.cpu_count() or 1))]
    where = ["launcher.hosts=" + str(hosts), f"launcher.host={host}", f"launcher.coordinator={address(0)}:{PORT}"]
    command = [sys.executable, "-m", "automap_launch", f"cluster.file={file}", *where, "tracking=none"]
    return subprocess.Popen(
        [*inside, *command, "search.cache=off", "--", str(SCRIPT), *arguments],
        cwd=folder / str(host),
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def cluster(hosts: int, mbit: int) -> Cluster:
    """One device a host, as fast as one core is."""
    code = "import sys; from automap_launch.cluster.detect import detect_local; from automap_launch.cluster.file import"
    code += " save_cluster; from pathlib import Path; save_cluster(detect_local('cpu', 1), Path(sys.argv[1]))"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "one.yaml"
        subprocess.run(["taskset", "-c", "0", sys.executable, "-c", code, str(file)], check=True)
        alone = load_cluster(file)
    link = Link("network", ALPHA_SECONDS, 8 / (mbit * 1e6))
    source = f"{alone.source}; network as set"
    return replace(alone, name=f"emulated_{hosts}x1", hosts=hosts, links=(*alone.links, link), source=source)


def words(decision: dict[str, Any]) -> str:
    """A decision of `search.jsonl` for a reader."""
    mesh = " x ".join(f"{axis} {decision[axis]}" for axis in ("data", "model") if decision[axis] > 1)
    stages, micro_batches = len(decision["cuts"]) + 1, decision["micro_batches"]
    cut = f"{stages} stages" if stages > 1 else ""
    micro = f"{micro_batches} micro-batches" if micro_batches > 1 else ""
    schedule = decision["schedule"] if stages > 1 else ""
    return ", ".join(part for part in (cut, mesh, micro, schedule) if part)


def table(rows: Sequence[Row]) -> str:
    lines = [
        "\n| network | batch | plan found | predicted | measured | data parallel: predicted | measured | trains with |",
        "|---|---|---|---|---|---|---|---|",
        *(line(row) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def line(row: Row) -> str:
    def seconds(of: dict[str, float | None], plan: str) -> str:
        found = of.get(plan)
        return "-" if found is None else format_seconds(found)

    cells = [f"{row.mbit} Mbit/s", str(row.batch), row.plan]
    cells += [seconds(of, plan) for plan in ("plan", "data_parallel") for of in (row.predicted, row.measured)]
    return f"| {' | '.join([*cells, row.chosen])} |"


if __name__ == "__main__":
    sys.exit(main())
