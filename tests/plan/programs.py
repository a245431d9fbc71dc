"""Programs put together by hand: exactly the tensors and operations that a test is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from automap_launch.cluster.cluster import Cluster, Device, Link
from automap_launch.cluster.curves import Curves
from automap_launch.program.batch_analysis import BatchAnalysis, Block, Homes
from automap_launch.program.program import Group, GroupKind, Op, Program, Value
from automap_launch.train_step import Argument, Result, StepIdentity, TrainStep


def cluster(hosts: int = 1, per_host: int = 8, platform: str = "cpu", memory: int = 2**33, **curves: float) -> Cluster:
    """1e12 flops/s, 1e11 bytes/s; hosts' links 1 us and 1e10 bytes/s, the network's 10 us and 1e9."""
    device = Device("made-up", {"float32": 1e12, "bfloat16": 2e12}, memory, 1e11)
    links = (Link("host", 1e-6, 1e-10), Link("network", 1e-5, 1e-9))
    return Cluster("made-up", platform, hosts, per_host, device, links, Curves(**curves))


class Builder:
    """Adds groups, values and operations, and checks nothing: tests say what they mean."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.dim_groups: list[tuple[int | None, ...]] = []
        self.ops: list[Op] = []
        self.kinds: list[GroupKind] = []
        self.arguments: list[tuple[int, Argument]] = []
        self.results: list[tuple[int, Result]] = []
        self.parameters: list[int] = []

    def group(self, kind: GroupKind) -> int:
        self.kinds.append(kind)
        return len(self.kinds) - 1

    def value(self, shape: Sequence[int], groups: Sequence[int | None], dtype: str = "float32") -> int:
        self.values.append(Value(tuple(shape), dtype))
        self.dim_groups.append(tuple(groups))
        return len(self.values) - 1

    def argument(
        self,
        path: str,
        shape: Sequence[int],
        groups: Sequence[int | None],
        *,
        role: str = "state",
        parameter: bool = False,
        donated: bool = True,
        dtype: str = "float32",
    ) -> int:
        value = self.value(shape, groups, dtype)
        if parameter:
            self.parameters.append(len(self.arguments))
        argument = Argument(path, tuple(shape), dtype, role, donated and role == "state")  # type: ignore[arg-type]
        self.arguments.append((value, argument))
        return value

    def result(self, value: int, replaces: int | None = None) -> None:
        kind = self.values[value]
        self.results.append((value, Result(str(len(self.results)), kind.shape, kind.dtype, replaces)))

    def op(self, name: str, operands: Sequence[int], results: Sequence[int], **fields: object) -> None:
        self.ops.append(Op(name, tuple(operands), tuple(results), **fields))  # type: ignore[arg-type]

    def program(self, fingerprint: str = "0" * 16) -> Program:
        groups = []
        for number, kind in enumerate(self.kinds):
            dims = [(v, d) for v, own in enumerate(self.dim_groups) for d, g in enumerate(own) if g == number]
            sizes = tuple(sorted({self.values[v].shape[d] for v, d in dims}))
            trained = {self.arguments[i][0]: self.arguments[i][1].path for i in self.parameters}
            members = tuple(dict.fromkeys(trained[v] for v, _ in dims if v in trained))
            size = sum(self.values[v].bytes for v in {v for v, _ in dims})
            groups.append(Group(number, kind, sizes, members, tuple(dims), size))
        step = TrainStep(
            StepIdentity("step", None),
            "jax",
            tuple(a for _, a in self.arguments),
            tuple(r for _, r in self.results),
            {"cpu": b""},
            fingerprint,
        )
        batch = self.kinds.index("batch") if "batch" in self.kinds else None
        return Program(
            step,
            tuple(self.values),
            tuple(self.ops),
            tuple(v for v, _ in self.arguments),
            tuple(v for v, _ in self.results),
            tuple(self.parameters),
            tuple(groups),
            batch,
            tuple(self.dim_groups),
        )


BATCH, IN, HIDDEN, OUT = 64, 96, 256, 32


def two_layers(fingerprint: str = "0" * 16) -> Program:
    """`y = relu(x @ w1) @ w2`, its gradient, and SGD with momentum. Groups: 0 batch, 1 in, 2 hidden, 3 out."""
    b = Builder()
    batch, inner, hidden, outer = (b.group(k) for k in ("batch", "parameter", "parameter", "parameter"))
    w1 = b.argument("params/w1", (IN, HIDDEN), (inner, hidden), parameter=True)
    w2 = b.argument("params/w2", (HIDDEN, OUT), (hidden, outer), parameter=True)
    m1 = b.argument("momentum/w1", (IN, HIDDEN), (inner, hidden))
    m2 = b.argument("momentum/w2", (HIDDEN, OUT), (hidden, outer))
    x = b.argument("batch/x", (BATCH, IN), (batch, inner), role="batch")
    h0 = b.value((BATCH, HIDDEN), (batch, hidden))
    h = b.value((BATCH, HIDDEN), (batch, hidden))
    y = b.value((BATCH, OUT), (batch, outer))
    dy = b.value((BATCH, OUT), (batch, outer))
    dh = b.value((BATCH, HIDDEN), (batch, hidden))
    g1 = b.value((IN, HIDDEN), (inner, hidden))
    g2 = b.value((HIDDEN, OUT), (hidden, outer))
    flops1, flops2 = 2 * BATCH * IN * HIDDEN, 2 * BATCH * HIDDEN * OUT
    b.op("dot_general", (x, w1), (h0,), flops=flops1, contracted=((0, 1), (1, 0)))
    b.op("maximum", (h0,), (h,), flops=BATCH * HIDDEN, fusable=True)
    b.op("dot_general", (h, w2), (y,), flops=flops2, contracted=((0, 1), (1, 0)))
    b.op("multiply", (y, y), (dy,), flops=BATCH * OUT, fusable=True, part="backward")
    b.op("dot_general", (h, dy), (g2,), flops=flops2, contracted=((0, 0), (1, 0)), part="backward")
    b.op("dot_general", (dy, w2), (dh,), flops=flops2, contracted=((0, 1), (1, 1)), part="backward")
    b.op("dot_general", (x, dh), (g1,), flops=flops1, contracted=((0, 0), (1, 0)), part="backward")
    for index, (w, m, g) in enumerate(((w1, m1, g1), (w2, m2, g2))):
        shape, groups = b.values[w].shape, b.dim_groups[w]
        new_m, new_w = b.value(shape, groups), b.value(shape, groups)
        size = b.values[w].size
        b.op("add", (m, g), (new_m,), flops=size, fusable=True, part="update")
        b.op("subtract", (w, new_m), (new_w,), flops=size, fusable=True, part="update")
        b.result(new_w, replaces=index)
        b.result(new_m, replaces=2 + index)
    return b.program(fingerprint)


def two_blocks(**analysis: object) -> Program:
    """`two_layers`, each layer a block. `analysis`: fields of `BatchAnalysis`; by default every cut of the batch."""
    program = two_layers()
    flops1, flops2 = 2 * BATCH * IN * HIDDEN, 2 * BATCH * HIDDEN * OUT
    hidden = 4 * BATCH * HIDDEN
    first = Block((0, 1), (), flops1 + BATCH * HIDDEN, flops1, (0,), 4 * IN * HIDDEN, 4 * IN * HIDDEN, hidden, hidden)
    last = Block((2,), (), flops2, 2 * flops2 + BATCH * OUT, (1,), 4 * HIDDEN * OUT, 4 * HIDDEN * OUT, 0, 0)
    of_ops = (0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1)
    of_arguments = (0, 1, 0, 1, 0)
    homes = Homes(tuple(((b, 1.0),) for b in of_ops), tuple(((b, 1.0),) for b in of_arguments))
    found = BatchAnalysis({}, (), **{"max_micro_batches": BATCH, **analysis})  # type: ignore[arg-type]
    return replace(program, batch_analysis=found, blocks=(first, last), homes=homes)
