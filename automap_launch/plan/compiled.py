"""What XLA made of a plan, read from the text of its compiled module: to hold estimates against. Pure text, no device.

A loop's body stands once in the module and runs as often as its trip count says, which XLA writes beside the loop; its
own `cost_analysis` counts it once.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from automap_launch.cluster.collectives import Kind
from automap_launch.plan.execution import Execution

_ITEM_BYTES = {
    "pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8,
    "u64": 8, "f64": 8, "c64": 8, "c128": 16,
}  # fmt: skip
_COLLECTIVES: dict[str, Kind] = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "collective-permute": "permute",
}
# XLA counts one operation an element for these, also where they are transcendental.
_ELEMENTWISE_NAMES = """abs add and atan2 cbrt ceil clamp compare convert cosine divide erf exponential
    exponential-minus-one floor is-finite log log-plus-one logistic maximum minimum multiply negate not or popcnt power
    reduce-precision remainder round-nearest-afz round-nearest-even rsqrt select shift-left shift-right-arithmetic
    shift-right-logical sign sine sqrt subtract tan tanh xor"""
_ELEMENTWISE = frozenset(_ELEMENTWISE_NAMES.split())
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][a-z0-9\-]*)\((.*)$")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_NAMED_GROUPS = re.compile(
    r"replica_groups=mesh\[(.*?)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))?\s*\{(.*?)\}"
)
_TENSOR = re.compile(r"(\w+)\[([\d,]*)\]")


# Exit code of `runtime/compile_plan.py` where the plan itself is what cannot be compiled.
PLAN_REFUSED = 3


@dataclass(frozen=True)
class CompileRequest:
    """What `runtime/compile_plan.py` is asked for, by path: a folder of `TrainStep.save`, a file of `Layout.save`.

    `answer`: where it writes a `CompiledPlan`.
    """

    train_step: str
    layout: str
    execution: Execution
    answer: str


@dataclass(frozen=True)
class CompiledPlan:
    """Of one device: bytes of memory at the peak of a step, and bytes of a step's collectives."""

    memory: int
    collectives: int


@dataclass(frozen=True)
class Instruction:
    """One instruction. `shape` and `rest` (operands and attributes) as XLA writes them; `times` it runs in a step."""

    name: str
    shape: str
    opcode: str
    rest: str
    times: int

    @property
    def bytes(self) -> int:
        """Of the result, all tensors of a tuple together."""
        return sum(_ITEM_BYTES.get(t, 1) * _size(dims) for t, dims in _TENSOR.findall(self.shape))


@dataclass(frozen=True)
class CompiledCollective:
    """A collective of a compiled module, its runs in loops counted.

    `size`: bytes of all its runs, as `cluster/collectives.py` defines them for the kind. `origin`: the operation of
    the user's step that it was made for, as XLA names it.
    """

    kind: Kind
    axis: str
    count: int
    size: int
    origin: str


class CompiledModule:
    """A compiled module.

    Args:
      text: as `jax.stages.Compiled.as_text` gives it.

    Raises:
      ValueError: the text has no entry computation.
    """

    def __init__(self, text: str) -> None:
        self._computations: dict[str, list[tuple[str, str, str, str]]] = {}
        entry = None
        own: list[tuple[str, str, str, str]] = []
        for line in text.splitlines():
            start = _COMPUTATION.match(line)
            if start:
                own = self._computations.setdefault(start[1], [])
                entry = start[1] if line.startswith("ENTRY") else entry
            else:
                found = _INSTRUCTION.match(line)
                if found:
                    own.append((found[1], found[2], found[3], found[4]))
        if entry is None:
            raise ValueError("the text is no compiled module: it has no ENTRY computation")
        self._entry = entry

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """All instructions that run in a step, those inside fusions and loops included."""
        found: list[Instruction] = []
        open_ = [(self._entry, 1)]
        while open_:
            name, times = open_.pop()
            for own, shape, opcode, rest in self._computations[name]:
                found.append(Instruction(own, shape, opcode, rest, times))
                trips = _TRIPS.search(rest)
                inner = times * (int(trips[1]) if opcode == "while" and trips else 1)
                if opcode in ("while", "fusion", "call", "conditional", "async-start"):
                    branches = _BRANCHES.search(rest)
                    names = re.findall(r"[\w.\-]+", branches[1]) if branches else []
                    open_ += [(called, inner) for called in [*_CALLED.findall(rest), *names]]
        return tuple(found)

    def collectives(self, mesh: Mapping[str, int]) -> list[CompiledCollective]:
        """The collectives of a step over the devices of `mesh` (size by axis, major axis first)."""
        found = []
        for instruction in self.instructions:
            kind = _COLLECTIVES.get(instruction.opcode.removesuffix("-start"))
            if kind is None:
                continue
            axis = _ring(instruction.rest, mesh)
            size = instruction.bytes * instruction.times
            if kind == "reduce_scatter":
                size *= math.prod(mesh[name] for name in axis.split("+"))
            origin = re.search(r'op_name="([^"]*)"', instruction.rest)
            name = origin[1].rsplit("jit(train_step)/", 1)[-1] if origin else instruction.name
            found.append(CompiledCollective(kind, axis, instruction.times, size, name))
        return found

    @cached_property
    def repeated_flops(self) -> int:
        """Floating-point operations that `cost_analysis` leaves out: those of loops' rounds after the first."""
        return sum(self._flops(i) * (i.times - 1) for i in self.instructions if i.times > 1)

    @cached_property
    def _shapes(self) -> dict[str, str]:
        return {name: shape for own in self._computations.values() for name, shape, _, _ in own}

    def _flops(self, instruction: Instruction) -> int:
        size = sum(_size(dims) for _, dims in _TENSOR.findall(instruction.shape))
        if instruction.opcode in _ELEMENTWISE:
            return size
        if instruction.opcode in ("dot", "convolution"):
            return 2 * size * self._depth(instruction)
        if instruction.opcode == "reduce":
            return sum(_size(self._dims(name)) for name in _operands(instruction.rest)[:1]) - size
        if instruction.opcode == "reduce-window":
            window = re.search(r"window=\{size=([\dx]+)", instruction.rest)
            return size * (math.prod(map(int, window[1].split("x"))) - 1) if window else 0
        return 0

    def _depth(self, instruction: Instruction) -> int:
        """How many products make one element of a dot's or a convolution's result."""
        left, right = (_shape(self._dims(name)) for name in _operands(instruction.rest)[:2])
        if instruction.opcode == "dot":
            contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.rest)
            return math.prod(left[int(d)] for d in contracted[1].split(",") if d) if contracted else 1
        labels = re.search(r"dim_labels=\w+_(\w+)->", instruction.rest)
        output = labels[1].index("o") if labels else 0
        return math.prod(size for d, size in enumerate(right) if d != output)

    def _dims(self, name: str) -> str:
        found = _TENSOR.search(self._shapes[name])
        return found[2] if found else ""


def _operands(rest: str) -> list[str]:
    """Names of an instruction's operands."""
    depth, end = 1, len(rest)
    for i, character in enumerate(rest):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            end = i
            break
    return re.findall(r"%([\w.\-]+)", rest[:end])


def _shape(dims: str) -> tuple[int, ...]:
    return tuple(int(n) for n in dims.split(",") if n)


def _size(dims: str) -> int:
    return math.prod(_shape(dims))


def _ring(rest: str, mesh: Mapping[str, int]) -> str:
    """The mesh axes that a collective runs over, from its replica groups or from its pairs of devices."""
    devices = math.prod(mesh.values())
    groups = _groups(rest, devices)
    names = [axis for axis, size in mesh.items() if size > 1]
    crossed = []
    for axis in names:
        stride = math.prod(mesh[other] for other in list(mesh)[list(mesh).index(axis) + 1 :])
        if any(len({device // stride % mesh[axis] for device in group}) > 1 for group in groups):
            crossed.append(axis)
    return "+".join(crossed or names or list(mesh)[:1])


def _groups(rest: str, devices: int) -> list[list[int]]:
    """Groups of devices that communicate with each other."""
    named = _NAMED_GROUPS.search(rest)
    if named:
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", named[1])}
        over = set(re.findall(r"'(\w+)'", named[4]))
        order = _iota(_shape(named[2]), _shape(named[3] or "")) if named[2] else list(range(devices))
        by_rest: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for place, device in enumerate(order):
            left, apart = place, []
            for name in reversed(list(sizes)):
                left, digit = divmod(left, sizes[name])
                apart += [] if name in over else [digit]
            by_rest[tuple(apart)].append(device)
        return list(by_rest.values())
    iota = re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest)
    if iota:
        order = _iota(_shape(iota[3]), _shape(iota[4] or ""))
        size = int(iota[2])
        return [order[i : i + size] for i in range(0, len(order), size)]
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}", rest)
    if listed:
        return [[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", listed[1])]
    return [list(range(devices))]


def _iota(dims: tuple[int, ...], order: tuple[int, ...]) -> list[int]:
    """0, 1, 2 ... in an array of `dims`, its dims put in a new order where one is given, flat."""
    order = order or tuple(range(len(dims)))
    strides = [math.prod(dims[d + 1 :]) for d in range(len(dims))]
    flat = [0]
    for d in order:
        flat = [start + place * strides[d] for start in flat for place in range(dims[d])]
    return flat
