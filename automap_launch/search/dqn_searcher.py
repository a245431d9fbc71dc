"""The agent's search: rollouts from every arm, episodes of learning, and hill-climbing on what they find."""

from __future__ import annotations

from typing import ClassVar

from automap_launch.plan.decision import Decision
from automap_launch.search.agent import Agent
from automap_launch.search.bandit import Arm, Bandit, arms_of, begun
from automap_launch.search.environment import Environment
from automap_launch.search.evaluator import Evaluator, log_cost
from automap_launch.search.fine_tuning import can_be_varied, fine_tune
from automap_launch.search.local_search import climb
from automap_launch.search.searchers import OnEpisode, event_of, one_thread
from automap_launch.search.space import Partial

# What `auto` means, and the gap to the best plan known from which on it means anything.
AUTO_EPISODES = 64
AUTO_GAP = 0.01
# So many episodes in a row without a plan that was not known end the search.
_STALE_EPISODES = 30
# Plans of an arm are improved by hill-climbing when they cost at most so much more than the best (log seconds).
_WORTH_CLIMBING = 0.25


class DQNSearcher:
    """An agent in an environment.

    Args:
      explore: by upper confidence bounds over (stages, micro-batches); without, the agent decides these as well.
      hill_climbing: on the best of each arm, on every new best plan, and in the end by longer steps.
      fine_tuning: episodes on copies of the model (`fine_tuning.py`) before those on the model; None: `AUTO_EPISODES`
        where the agent's rollouts end more than `AUTO_GAP` above the best plan known.
    """

    name: ClassVar[str] = "dqn"

    def __init__(
        self,
        agent: Agent,
        *,
        explore: bool = True,
        hill_climbing: bool = True,
        fine_tuning: int | None = 0,
    ) -> None:
        self.agent = agent
        self._fine_tuning = fine_tuning
        self._explore = explore
        self._climb = hill_climbing
        self._bandit: Bandit
        self._start: Partial
        self._climbed: set[Decision] = set()

    def run(self, evaluator: Evaluator, on_episode: OnEpisode) -> None:
        with one_thread():
            self._bandit = Bandit(arms_of(evaluator.space), self.agent.config.exploration)
            self._start = evaluator.space.start()
            environment = Environment(evaluator, lambda: self._start)
            self._rollouts(environment, evaluator, on_episode)
            if self._fine_tune(evaluator, on_episode):
                self._rollouts(environment, evaluator, on_episode)
            self._episodes(environment, evaluator, on_episode)
            if self._climb and evaluator.best is not None:
                climb(evaluator, evaluator.best.decision, far=True)

    def _rollouts(self, environment: Environment, evaluator: Evaluator, on_episode: OnEpisode) -> None:
        """The agent as it is: one greedy plan, and one for every arm."""
        self._start = evaluator.space.start()
        self._greedy(environment, evaluator, on_episode)
        for arm in self._bandit.arms if self._explore else ():
            self._start = begun(evaluator.space, arm)
            self._greedy(environment, evaluator, on_episode)

    def _fine_tune(self, evaluator: Evaluator, on_episode: OnEpisode) -> bool:
        """Whether there was any."""
        episodes = self._fine_tuning
        if episodes is None:
            own, best = evaluator.best_by.get(self.name), evaluator.best
            behind = best is not None and (
                own is None or own.estimate.step_seconds > (1 + AUTO_GAP) * best.estimate.step_seconds
            )
            episodes = AUTO_EPISODES if behind else 0
        if not episodes or not can_be_varied(evaluator.space):
            return False
        evaluator.fine_tuned = episodes
        fine_tune(self.agent, evaluator, episodes, on_episode)
        return True

    def _greedy(self, environment: Environment, evaluator: Evaluator, on_episode: OnEpisode) -> None:
        evaluator.episode += 1
        self.agent.roll_out(environment)
        self._finished(environment.decision, evaluator)
        on_episode(event_of(evaluator, 0.0, None))

    def _episodes(self, environment: Environment, evaluator: Evaluator, on_episode: OnEpisode) -> None:
        config = self.agent.config
        self.agent.explore_anew()
        explored = last_gain = self.agent.episodes + config.epsilon_episodes
        stale = 0
        while self.agent.episodes - max(last_gain, explored) < config.round_episodes and stale < _STALE_EPISODES:
            evaluator.episode += 1
            best, known, epsilon = evaluator.best, evaluator.evaluations, self.agent.epsilon
            explores = self._explore and self.agent.episodes % 2 == 0
            self._start = begun(evaluator.space, self._bandit.choose()) if explores else evaluator.space.start()
            loss = self.agent.run_episode(environment)
            self._finished(environment.decision, evaluator)
            on_episode(event_of(evaluator, epsilon, loss))
            if evaluator.best is not best:
                last_gain = self.agent.episodes
            stale = stale + 1 if evaluator.evaluations == known else 0

    def _finished(self, decision: Decision, evaluator: Evaluator) -> None:
        """Notes what an episode found, and climbs on from where it pays."""
        cost = log_cost(evaluator.estimate(decision), evaluator.model.memory_limit)
        arm: Arm = (decision.stages, decision.micro_batches)
        better = self._bandit.saw(arm, cost)
        best = evaluator.best
        lowest = log_cost(best.estimate, evaluator.model.memory_limit) if best is not None else cost
        if better and cost <= lowest + _WORTH_CLIMBING:
            self._climb_from(decision, evaluator)
        if best is not None and best.found_by == self.name:
            self._climb_from(best.decision, evaluator)

    def _climb_from(self, decision: Decision, evaluator: Evaluator) -> None:
        if self._climb and decision not in self._climbed:
            self._climbed.add(decision)
            self._climbed.add(climb(evaluator, decision))
