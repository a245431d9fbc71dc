"""Fine-tuning: episodes on distributions around the model at hand, before its own are exploited (Auto-MAP, RQ5).

The paper's agent is pre-trained on random models, and where that is not enough trained on distributions around the
real one. Here a *copy* of the model has the time, the parameter bytes and the activation bytes of each of its blocks
scaled by factors drawn around 1. The agent's episodes on copies evaluate no plan of the model itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from automap_launch.plan.block_costs import BlockCosts
from automap_launch.plan.cost import Estimate
from automap_launch.plan.decision import Decision
from automap_launch.plan.plan import Memory
from automap_launch.program.batch_analysis import Block
from automap_launch.search.agent import Agent
from automap_launch.search.bandit import arms_of, begun
from automap_launch.search.environment import Environment
from automap_launch.search.evaluator import Evaluator, Limits
from automap_launch.search.searchers import OnEpisode, event_of
from automap_launch.search.space import CostModel, Partial, PlanSpace

Array = npt.NDArray[np.float64]

# Standard deviation, in the logarithm, of a block's factors.
SPREAD = 0.25
COPIES = 8


class Copy:
    """A cost model whose blocks cost more or less than those of `model` (`search.space.CostModel`).

    Args:
      model: its own blocks are costed once for all copies.
    """

    def __init__(self, model: CostModel, rng: np.random.Generator, spread: float = SPREAD) -> None:
        self._model = model
        blocks = model.program.blocks
        self._work, self._held, self._sent = rng.lognormal(0.0, spread, (3, len(blocks)))
        factors = zip(self._work.tolist(), self._held.tolist(), self._sent.tolist(), strict=True)
        scaled = tuple(_scaled(block, *own) for block, own in zip(blocks, factors, strict=True))
        self.program = replace(model.program, blocks=scaled)
        self.cluster = model.cluster
        self.memory_limit = model.memory_limit

    def estimate_many(self, decisions: Sequence[Decision]) -> list[Estimate]:
        """Costs in the order of `decisions`; of single stages, too, from the blocks."""
        alike: dict[tuple[object, ...], list[int]] = {}
        for i, d in enumerate(decisions):
            key = (d.data, d.model, d.sharded, d.storage, d.micro_batches, d.stages, d.schedule)
            alike.setdefault(key, []).append(i)
        found: dict[int, Estimate] = {}
        for places in alike.values():
            first = decisions[places[0]]
            cuts = np.array([decisions[i].cuts for i in places], np.int64).reshape(len(places), first.stages - 1)
            costs = self.block_costs(first).pipelines(first.schedule, cuts)
            for k, place in enumerate(places):
                memory = Memory(*(int(held) for held in costs.memory[k]))
                found[place] = Estimate(
                    float(costs.step_seconds[k]),
                    float(costs.compute[k]),
                    float(costs.communication[k]),
                    memory,
                    memory.total <= self.memory_limit,
                    float(costs.bubble[k]),
                )
        return [found[i] for i in range(len(decisions))]

    def block_costs(self, decision: Decision) -> BlockCosts:
        """As the model's own, scaled."""
        costs = self._model.block_costs(decision)
        work, held, sent = self._work[:, None], self._held[:, None], self._sent[:, None]
        return replace(
            costs,
            compute=costs.compute * work,
            collectives=costs.collectives * sent,
            joined=replace(costs.joined, bytes=costs.joined.bytes * held),
            held=costs.held * held,
            residuals=costs.residuals * self._sent,
            working=costs.working * self._sent,
            boundary=costs.boundary * self._sent,
        )


class _Classroom:
    """A copy that the agent learns on, with the ways in which an episode can begin."""

    def __init__(self, copy: Copy, space: PlanSpace, limits: Limits) -> None:
        self.space = PlanSpace(copy.program, space.pins, space.pruning)
        self.start: Partial = self.space.start()
        self.environment = Environment(Evaluator(copy, self.space, limits), lambda: self.start)


def can_be_varied(space: PlanSpace) -> bool:
    """Whether plans have stages: what is varied are the costs of blocks."""
    return any(head.stages > 1 for head in space.heads)


def fine_tune(agent: Agent, evaluator: Evaluator, episodes: int, on_episode: OnEpisode) -> None:
    """Trains the agent in so many episodes on copies of the evaluator's model, each second one of a random arm.

    Raises:
      SearchEnd: a limit of the evaluator was reached meanwhile.
    """

    def stop() -> bool:
        evaluator.check_limits()
        return False

    rng = np.random.default_rng(agent.rng.integers(2**63))
    limits = Limits(exhaustion=False, stop=stop)
    copies = [Copy(evaluator.model, rng) for _ in range(min(COPIES, episodes))]
    rooms = [_Classroom(copy, evaluator.space, limits) for copy in copies]
    arms = arms_of(evaluator.space)
    agent.explore_anew()
    for episode in range(episodes):
        room = rooms[episode % len(rooms)]
        by_arm = episode // len(rooms) % 2 == 1
        room.start = begun(room.space, arms[rng.integers(len(arms))]) if by_arm else room.space.start()
        epsilon, loss = agent.epsilon, agent.run_episode(room.environment)
        evaluator.episode += 1
        on_episode(event_of(evaluator, epsilon, loss))


def _scaled(block: Block, work: float, held: float, sent: float) -> Block:
    return replace(
        block,
        flops=int(block.flops * work),
        backward_flops=int(block.backward_flops * work),
        parameter_bytes=int(block.parameter_bytes * held),
        state_bytes=int(block.state_bytes * held),
        residual_bytes=int(block.residual_bytes * sent),
        boundary_bytes=int(block.boundary_bytes * sent),
    )
