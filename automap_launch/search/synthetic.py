"""Made-up models and clusters: what the agent is trained on, and what the oracle is checked on.

A model is a row of blocks, each of a few products. A product has an *inner* group (heads, feed-forward, channels: its
weight is cut there without cutting the stream) and stands on the *stream* group between blocks, or on one of its own.
Work, parameter bytes and activation bytes of each are drawn from random distributions (Auto-MAP, section on
pre-training); `Distribution` holds their ranges. Blocks may be of several kinds one after the other (an encoder and a
decoder), change along the way (a convolutional network), and hold more at the ends (embeddings).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from automap_launch.cluster.cluster import Cluster, Device, Link
from automap_launch.cluster.collectives import Kind, axis_link, rounds, share_sent
from automap_launch.plan.block_bounds import BlockBounds
from automap_launch.plan.block_costs import HELD, PHASES, BlockCosts, Joined
from automap_launch.plan.decision import STORAGES, Decision, Storage
from automap_launch.plan.group_bounds import HELD_BYTES, MICRO, ROWS, WHOLE, GroupBounds
from automap_launch.plan.pins import Pins
from automap_launch.plan.plan import Memory
from automap_launch.plan.sharding import DATA, MODEL
from automap_launch.program.batch_analysis import BatchAnalysis, Block
from automap_launch.program.program import Group, Op, Program, Value
from automap_launch.train_step import Argument, StepIdentity, TrainStep

Array = npt.NDArray[np.float64]
Range = tuple[float, float]

_ITEM = 4
_BUCKET = 32e6
# Of an Adam step: two moments beside each parameter.
_STATE_PER_PARAMETER = 2.0
# Where columns of a block's totals end: compute, collectives, bytes and counts of joined ones, what is held.
_COLUMNS = np.cumsum([len(PHASES), len(PHASES), 2, 2, len(HELD)])


@dataclass(frozen=True)
class Distribution:
    """Ranges that models and clusters are drawn from; of what spans decades, uniformly in the logarithm.

    Attributes:
      blocks: number of blocks. products: in a block. inner_groups: that products are spread over.
      batch: rows of the batch, as powers of two.
      work: seconds of a block's forward pass of the whole batch on one device.
      parameter_bytes: of a block. activation_seconds: seconds in which the host's links send a block's activations.
      spread: standard deviation, in the logarithm, between blocks; one is drawn for each model.
      rare: share of products with ten times the parameters (an embedding, a last layer).
      hosts: 2 ** so many. devices_per_host: likewise. network: how much slower than within a host.
      memory: of a device, as a multiple of its share of all state.
      divisors: sizes of groups, as powers of two.
      odd: share of products that do not have the group of their place. off_stream: share that may stand on another
        group than the one between blocks.
      kinds: of blocks, one after the other. kind_spread: standard deviation, in the logarithm, between kinds.
      trend: how much smaller the last block's activations are than the first one's, and its parameters larger.
      ends: how many times the parameters of the others the first and the last block have.
      kept: how many times the bytes of its result a product keeps for the backward part.
      by_size: whether groups are numbered as an analysed program's are, those of the most bytes first.
    """

    blocks: tuple[int, int] = (4, 32)
    products: tuple[int, int] = (1, 3)
    inner_groups: tuple[int, int] = (1, 7)
    batch: tuple[int, int] = (5, 8)
    work: Range = (3e-3, 1.0)
    parameter_bytes: Range = (1e6, 2e9)
    activation_seconds: Range = (1e-4, 0.3)
    spread: Range = (0.05, 0.8)
    rare: float = 0.04
    hosts: tuple[int, int] = (0, 3)
    devices_per_host: tuple[int, int] = (1, 3)
    network: Range = (5.0, 400.0)
    memory: Range = (1.2, 30.0)
    divisors: tuple[int, int] = (1, 9)
    odd: float = 0.15
    off_stream: float = 0.2
    kinds: tuple[int, int] = (1, 1)
    kind_spread: float = 0.0
    trend: Range = (1.0, 1.0)
    ends: Range = (1.0, 1.0)
    kept: Range = (1.0, 1.0)
    by_size: bool = False


@dataclass(frozen=True)
class Cost:
    """Predicted cost of a plan; see `search.space.Estimate`."""

    step_seconds: float
    compute: float
    communication: float
    bubble: float
    memory: Memory
    fits: bool


@dataclass(frozen=True)
class Products:
    """All products of a model; arrays over products.

    Attributes:
      block: that each belongs to. inner, stream: group ids.
      seconds: of the forward pass of the whole batch on one device. weights, activations: bytes of the parameter and of
        the result (of the whole batch). kept: bytes kept for the backward part, as a multiple of the result's.
    """

    block: npt.NDArray[np.int64]
    inner: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int64]
    seconds: Array
    weights: Array
    activations: Array
    kept: float = 1.0


@dataclass
class SyntheticModel:
    """A cost model of a made-up model on a made-up cluster (`search.space.BoundedCostModel`)."""

    program: Program
    cluster: Cluster
    products: Products
    boundaries: Array
    memory_limit: float
    name: str = "synthetic"
    _cases: dict[tuple[object, ...], BlockCosts] = field(default_factory=dict, repr=False)

    def estimate_many(self, decisions: Sequence[Decision]) -> list[Cost]:
        """Costs in the order of `decisions`."""
        found: dict[int, Cost] = {}
        cases: dict[tuple[object, ...], list[int]] = {}
        for i, d in enumerate(decisions):
            cases.setdefault((*_case(d), d.schedule, d.stages), []).append(i)
        for places in cases.values():
            first = decisions[places[0]]
            cuts = np.array([decisions[i].cuts for i in places], np.int64).reshape(len(places), first.stages - 1)
            costs = self.block_costs(first).pipelines(first.schedule, cuts)
            rows = zip(
                costs.step_seconds.tolist(),
                costs.compute.tolist(),
                costs.communication.tolist(),
                costs.bubble.tolist(),
                costs.memory.astype(np.int64).tolist(),
                strict=True,
            )
            for place, (step, compute, communication, bubble, held) in zip(places, rows, strict=True):
                memory = Memory(*held)
                fits = memory.total <= self.memory_limit
                found[place] = Cost(step, compute, communication, bubble, memory, fits)
        return [found[i] for i in range(len(decisions))]

    @property
    def pins(self) -> Pins:
        """No pins: all plans over all devices."""
        return Pins(self.cluster.devices, len(self.program.blocks), self.program.groups[0].sizes[0])

    def estimate(self, decision: Decision) -> Cost:
        return self.estimate_many([decision])[0]

    def block_costs(self, decision: Decision) -> BlockCosts:
        """Costs of the blocks in the decision's case; its cuts and schedule do not matter."""
        case = _case(decision)
        if case not in self._cases:
            self._cases[case] = self._block_costs(decision)
        return self._cases[case]

    def group_bounds(self, decision: Decision) -> GroupBounds:
        """See `plan/group_bounds.py`; the decision's groups do not matter."""
        products = self.products
        by_set: dict[tuple[int, ...], list[int]] = {}
        for k, pair in enumerate(zip(products.inner.tolist(), products.stream.tolist(), strict=True)):
            by_set.setdefault(tuple(sorted(set(pair))), []).append(k)
        tables: list[Array] = [np.zeros((ROWS, 1 << len(groups))) for groups in by_set]
        for mask in range(4):
            for place, (groups, members) in enumerate(by_set.items()):
                if mask < 1 << len(groups):
                    on = frozenset(g for bit, g in enumerate(groups) if mask >> bit & 1)
                    costs = self._product_costs(replace(decision, sharded=on))
                    tables[place][WHOLE, mask] = costs.whole_step[members].sum()
                    tables[place][MICRO, mask] = costs.micro[members].sum()
                    tables[place][HELD_BYTES, mask] = costs.held[members].sum()
        return GroupBounds(tuple(by_set), tuple(tables))

    def block_bounds(self, decision: Decision) -> BlockBounds:
        """See `plan/block_bounds.py`; the decision's groups do not matter."""
        pairs = zip(self.products.inner.tolist(), self.products.stream.tolist(), strict=True)
        sets = [tuple(sorted(set(pair))) for pair in pairs]
        tables = []
        for k, groups in enumerate(sets):
            found = []
            for mask in range(1 << len(groups)):
                on = frozenset(g for bit, g in enumerate(groups) if mask >> bit & 1)
                of_one = np.zeros((len(sets), 1))
                of_one[k] = 1.0
                found.append(self._totals(self._product_costs(replace(decision, sharded=on)), of_one))
            table = np.stack(found)
            table[..., : _COLUMNS[0]] += table[..., _COLUMNS[0] : _COLUMNS[1]]
            table[..., _COLUMNS[0] : _COLUMNS[1]] = 0.0
            tables.append(table)
        return BlockBounds(tuple(sets), tuple(tables), lambda totals, *_: self._of_totals(decision, totals))

    def _block_costs(self, decision: Decision) -> BlockCosts:
        return self._of_totals(decision, self._totals(self._product_costs(decision), np.ones((1, 1))))

    def _totals(self, costs: _ProductCosts, often: Array) -> Array:
        """float64[blocks, columns]. Args: often: float64[products, 1]."""
        columns = [costs.compute, costs.collectives, costs.joined_bytes, costs.joined_counts, costs.parts_held]
        values = often * np.concatenate([*columns, costs.activations[:, None]], axis=1)
        found = np.zeros((len(self.program.blocks), values.shape[1]))
        np.add.at(found, self.products.block, values)
        return found

    def _of_totals(self, decision: Decision, totals: Array) -> BlockCosts:
        compute, collectives, joined_bytes, counts, held, activations = np.split(totals, _COLUMNS, axis=1)
        rows, costs = decision.data * decision.micro_batches, self._product_costs(decision)
        return BlockCosts(
            cluster=self.cluster,
            micro_batches=decision.micro_batches,
            devices=decision.data * decision.model,
            compute=compute,
            collectives=collectives,
            joined=Joined((True, False), joined_bytes, counts, costs.alpha, costs.beta, _BUCKET),
            held=held,
            residuals=activations[:, 0],
            working=activations[:, 0] * 0.5,
            boundary=self.boundaries / rows,
            twice=_BUCKET if decision.data > 1 else 0.0,
            sums=1.0 if decision.storage == "none" else 1 / decision.data,
        )

    def _product_costs(self, decision: Decision) -> _ProductCosts:
        products, mesh = self.products, {DATA: decision.data, MODEL: decision.model}
        sharded = np.zeros(len(self.program.groups), bool)
        sharded[sorted(decision.sharded)] = decision.model > 1
        inner, stream = sharded[products.inner], sharded[products.stream]
        divided = np.where(inner | stream, decision.model, 1)
        rows = decision.data * decision.micro_batches
        weights = products.weights / divided
        activations = products.activations / rows / np.where(inner, decision.model, 1)
        forward = products.seconds / rows / divided + weights / self.cluster.device.memory_bandwidth
        link = axis_link(self.cluster, mesh, MODEL)
        sums = rounds("all_reduce", decision.model), share_sent("all_reduce", decision.model)
        # A weight cut inside leaves a partial sum of the stream, one cut along the stream a partial sum of the inside;
        # with both cut, the stream is gathered as well.
        size = np.where(inner | stream, products.activations / rows, 0.0) * (1 + (inner & stream))
        counts = (inner | stream) * (1.0 + (inner & stream))
        reduced = counts * sums[0] * link.alpha_s + size * sums[1] * link.beta_s_per_byte
        zero = np.zeros_like(forward)
        over = [1.0 if level == 0 else float(decision.data) for level in range(len(STORAGES))]
        level = STORAGES.index(decision.storage)
        state_over = over[level]
        update = 6 * weights / state_over / self.cluster.device.memory_bandwidth
        ring = axis_link(self.cluster, mesh, DATA)
        # Gradients by all-reduce, or by reduce-scatter and a gathering of parameters of as many bytes as that saves.
        kind: Kind = "all_reduce" if level == 0 else "reduce_scatter"
        alpha = np.array([rounds(kind, decision.data), rounds("all_gather", decision.data)]) * ring.alpha_s
        beta = np.array([share_sent(kind, decision.data), share_sent("all_gather", decision.data)])
        gathered = weights * (level > 0) * (1 if level < 2 else 2)
        parameters = weights / (decision.data if level == 2 else 1)
        return _ProductCosts(
            compute=np.stack([forward, forward, forward, zero, update], axis=1),
            collectives=np.stack([reduced, reduced, zero, zero, zero], axis=1),
            joined_bytes=np.stack([weights, gathered], axis=1) * (decision.data > 1),
            joined_counts=np.ones((len(weights), 2)) * (decision.data > 1),
            alpha=alpha,
            beta=beta * ring.beta_s_per_byte,
            parts_held=np.stack(
                [
                    parameters,
                    _STATE_PER_PARAMETER * weights / state_over,
                    weights,
                    weights if level == 2 else zero,
                ],
                axis=1,
            ),
            activations=products.kept * activations,
            micro_batches=decision.micro_batches,
        )


@dataclass(frozen=True)
class _ProductCosts:
    """As `BlockCosts`, over products instead of blocks."""

    compute: Array
    collectives: Array
    joined_bytes: Array
    joined_counts: Array
    alpha: Array
    beta: Array
    parts_held: Array
    activations: Array
    micro_batches: int

    @property
    def whole_step(self) -> Array:
        """Seconds of a step that no joining of collectives saves."""
        once = (self.compute + self.collectives)[:, 3:].sum(axis=1) + self.joined_bytes @ self.beta
        whole: Array = self.micro_batches * self.micro + once
        return whole

    @property
    def micro(self) -> Array:
        """Seconds of a micro-batch."""
        found: Array = (self.compute + self.collectives)[:, :3].sum(axis=1)
        return found

    @property
    def held(self) -> Array:
        found: Array = self.parts_held.sum(axis=1)
        return found


def _case(decision: Decision) -> tuple[object, ...]:
    sharded = decision.sharded if decision.model > 1 else frozenset()
    storage: Storage = decision.storage if decision.data > 1 else "none"
    return (decision.data, decision.model, decision.micro_batches, storage, sharded)


def draw(rng: np.random.Generator, distribution: Distribution) -> SyntheticModel:
    """A random model on a random cluster; on at least two devices."""
    d = distribution
    hosts, per_host = 2 ** _integer(rng, d.hosts), 2 ** _integer(rng, d.devices_per_host)
    if hosts * per_host == 1:
        per_host = 2
    count, inner = _integer(rng, d.blocks), _integer(rng, d.inner_groups)
    per_block, batch = _integer(rng, d.products), 2 ** _integer(rng, d.batch)
    work, parameter_bytes = _decades(rng, d.work), _decades(rng, d.parameter_bytes)
    spread = rng.uniform(*d.spread)
    beta = 1e-11
    activation_bytes = _decades(rng, d.activation_seconds) / beta

    def around(mean: float, shape: int) -> Array:
        values: Array = mean * rng.lognormal(0.0, spread, shape)
        return values

    total = count * per_block
    weights = around(parameter_bytes / per_block, total)
    weights[rng.random(total) < d.rare] *= 10
    # Repeated layers: the k-th product of every block has the group of its place, but for the first and last blocks.
    place = np.tile(np.arange(per_block), count)
    groups = rng.integers(1, inner + 1, per_block)[place]
    odd = rng.random(total) < d.odd
    groups[odd] = rng.integers(1, inner + 1, int(odd.sum()))
    stream = np.where(rng.random(total) < 1 - d.off_stream, inner + 1, rng.integers(1, inner + 2, total))
    products = Products(
        block=np.repeat(np.arange(count), per_block),
        inner=groups,
        stream=stream,
        seconds=around(work / per_block, total),
        weights=weights,
        activations=around(activation_bytes / per_block, total),
    )
    sizes = [2 ** _integer(rng, d.divisors) * int(rng.choice([1, 3])) for _ in range(inner + 1)]
    boundaries = around(activation_bytes / per_block, count)
    # By a stream of its own: what it does by default, nothing, leaves what is drawn after it as it is.
    products, boundaries = _varied(rng.spawn(1)[0], d, products, boundaries)
    if d.by_size:
        products = _numbered_by_size(products, inner + 1)
    cluster = _cluster(hosts, per_host, beta, rng.uniform(*np.log(d.network)), memory=1)
    state = (2 + _STATE_PER_PARAMETER) * float(products.weights.sum())
    memory = state / cluster.devices * _decades(rng, d.memory) + 2 * products.kept * activation_bytes / batch
    cluster = replace(cluster, device=replace(cluster.device, memory_bytes=int(memory)))
    return _model(products, boundaries, sizes, batch, cluster)


def _varied(rng: np.random.Generator, d: Distribution, products: Products, boundaries: Array) -> tuple[Products, Array]:
    """Products and boundaries with the differences between kinds of blocks, along the way and at the ends."""
    count = len(boundaries)
    borders = np.sort(rng.integers(0, count, _integer(rng, d.kinds) - 1))
    kind = np.searchsorted(borders, np.arange(count), side="right")
    work, held, sent = rng.lognormal(0.0, d.kind_spread, (3, len(borders) + 1))[:, kind]
    along = _decades(rng, d.trend) ** np.linspace(-0.5, 0.5, count)
    held, sent = held * along, sent / along
    held[[0, -1]] *= _decades(rng, d.ends)
    at = products.block
    varied = replace(
        products,
        seconds=products.seconds * work[at],
        weights=products.weights * held[at],
        activations=products.activations * sent[at],
        kept=_decades(rng, d.kept),
    )
    return varied, boundaries * sent


def _numbered_by_size(products: Products, count: int) -> Products:
    """The same products, groups numbered by bytes of weights, by dims: one with both dims in a group counts twice."""
    size = np.bincount(products.inner, products.weights, count + 1)
    size += np.bincount(products.stream, products.weights, count + 1)
    number = np.zeros(count + 1, np.int64)
    number[1 + np.argsort(-size[1:], kind="stable")] = np.arange(1, count + 1)
    return replace(products, inner=number[products.inner], stream=number[products.stream])


def _model(products: Products, boundaries: Array, sizes: Sequence[int], batch: int, cluster: Cluster) -> SyntheticModel:
    program = _program(products, boundaries, sizes, batch)
    return SyntheticModel(program, cluster, products, boundaries, 0.9 * cluster.device.memory_bytes)


def _cluster(hosts: int, per_host: int, beta: float, log_ratio: float, memory: int) -> Cluster:
    links = [Link("host", 5e-6, beta)] if per_host > 1 else []
    links += [Link("network", 3e-5, beta * math.exp(log_ratio))] if hosts > 1 else []
    device = Device("synthetic", {"float32": 1e13}, memory, 1e12)
    return Cluster(f"synthetic_{hosts}x{per_host}", "cuda", hosts, per_host, device, tuple(links))


def _program(products: Products, boundaries: Array, sizes: Sequence[int], batch: int) -> Program:
    """A program of as many groups and blocks: what the search reads of one."""
    count = int(products.block.max()) + 1
    flops = np.bincount(products.block, products.seconds, count) * 1e13
    weights = np.bincount(products.block, products.weights, count)
    residuals = products.kept * np.bincount(products.block, products.activations, count)
    blocks = tuple(
        Block(
            ops=(),
            loops=(),
            flops=int(flops[b]),
            backward_flops=int(2 * flops[b]),
            parameters=(),
            parameter_bytes=int(weights[b]),
            state_bytes=int(_STATE_PER_PARAMETER * weights[b]),
            residual_bytes=int(residuals[b]),
            boundary_bytes=int(boundaries[b]) if b + 1 < count else 0,
        )
        for b in range(count)
    )
    pairs = sorted(set(zip(products.inner.tolist(), products.stream.tolist(), strict=True)))
    values = [Value((batch,), "float32")]
    dims: list[tuple[int, ...]] = [(0,)]
    held = [0.0] * (len(sizes) + 1)
    ops = []
    for inner, stream in pairs:
        members = (products.inner == inner) & (products.stream == stream)
        of_pair = (inner,) if inner == stream else (min(inner, stream), max(inner, stream))
        values.append(Value(tuple(sizes[g - 1] for g in of_pair), "float32"))
        dims.append(of_pair)
        for g in of_pair:
            held[g] += float(products.weights[members].sum())
        flops_here = int(products.seconds[members].sum() * 1e13)
        ops.append(Op("dot_general", (0, len(values) - 1), (len(values) - 1,), flops=flops_here))
    groups = [Group(0, "batch", (batch,), (), ((0, 0),), _ITEM * batch)]
    groups += [
        Group(g, "parameter", (size,), (f"params/{g}",), (), int(held[g]), tied=_tied(products, g))
        for g, size in enumerate(sizes, 1)
    ]
    arguments = tuple(range(len(values)))
    roles = [Argument("batch", values[0].shape, "float32", "batch")]
    roles += [Argument(f"params/{k}", values[k].shape, "float32", "state") for k in arguments[1:]]
    step = TrainStep(StepIdentity("step", None), "jax", tuple(roles), (), {"cpu": b""}, "0" * 16)
    analysis = BatchAnalysis({}, (), max_micro_batches=batch)
    return Program(
        step,
        tuple(values),
        tuple(ops),
        arguments,
        (),
        arguments[1:],
        tuple(groups),
        0,
        tuple(dims),
        (),
        analysis,
        blocks,
    )


def _tied(products: Products, group: int) -> int:
    """In how many blocks it is an inner group of the block's own; the stream is one for all."""
    return max(len(np.unique(products.block[products.inner == group])), 1)


def _integer(rng: np.random.Generator, bounds: tuple[int, int]) -> int:
    return int(rng.integers(bounds[0], bounds[1] + 1))


def _decades(rng: np.random.Generator, bounds: Range) -> float:
    return float(math.exp(rng.uniform(math.log(bounds[0]), math.log(bounds[1]))))
