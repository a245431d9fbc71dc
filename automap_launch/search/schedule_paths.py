"""Which tasks of a stage, and how many trips to the stages after it, follow on each other under a schedule.

See `critical_paths.py` for what a path is, and `plan/timeline.py` for the orders of the schedules.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from automap_launch.plan.decision import Schedule
from automap_launch.plan.timeline import TaskKind, order_of

Array = npt.NDArray[np.float64]
Places = dict[tuple[TaskKind, int], int]

# Columns of a path: trips through all stages after it, to the next one, and back to `SchedulePaths.turn`, and tasks of
# the stage itself outside of them.
COLUMNS = ("trips", "next_trips", "back_trips", "forward", "backward", "weight")
_TRIPS = 3
_KINDS: tuple[TaskKind, ...] = ("forward", "backward", "weight")
# Seconds of trips and of a stage's own tasks, of all proportions: paths that are never the longest are left out.
_SAMPLE = np.exp(
    np.random.default_rng(0).uniform(
        [0.0, 0.0, 0.0, -2.0, -2.0, -2.0], [4.0, 3.0, 4.0, 1.0, 1.0, 1.0], (150, len(COLUMNS))
    )
)


@dataclass(frozen=True)
class SchedulePaths:
    """float64[stages, paths, COLUMNS] each: how often each path has a trip or a task.

    Attributes:
      stay: from a stage's first task to its last. leave: to its last backward task. up: to its last forward task.
      late_stay, late_leave, late_up: the same, from its first backward task on. goes_up: bool[stages], whether a
        forward task follows on that.
      near: as `leave`, with trips to the next stage only, one at least.
      turn: the first stage that runs a forward task after a backward one, where trips back turn.
      left: float64[stages], the weight tasks of each stage after its last backward task.
    """

    stay: Array
    leave: Array
    up: Array
    late_stay: Array
    late_leave: Array
    late_up: Array
    goes_up: npt.NDArray[np.bool_]
    near: Array
    turn: int
    left: Array


@lru_cache(maxsize=1024)
def paths_of(schedule: Schedule, stages: int, micro_batches: int) -> SchedulePaths:
    """The paths of every stage under a schedule of a pipeline."""
    orders = order_of(schedule, stages, micro_batches)
    places: list[Places] = [{task: place for place, task in enumerate(order)} for order in orders]
    turns = [_turns(own, micro_batches) for own in places]
    found: dict[str, list[Array]] = {name: [] for name in ("stay", "leave", "up", "late_stay", "late_leave", "late_up")}
    near, goes_up = [], []
    goes_on = [place["forward", micro_batches - 1] > place["backward", 0] for place in places]
    turn = goes_on.index(True) if any(goes_on) else stages
    for stage, place in enumerate(places):
        kinds = [kind for kind, _ in orders[stage]]
        done = np.array([np.cumsum([0, *(kind == wanted for kind in kinds)]) for wanted in _KINDS]).T
        # The last stage goes from forward to backward at once, so nothing is between them.
        all_trips = _trips(place, turns[-1]) if stage < stages - 1 else []
        next_trips = _trips(place, turns[stage + 1]) if stage < stages - 2 else []
        back_trips = _back_trips(place, places[turn], micro_batches) if turn < stage < stages - 1 else []
        trips = (all_trips, next_trips, back_trips)
        late = place["backward", 0]
        ends = {
            "stay": len(kinds),
            "leave": place["backward", micro_batches - 1] + 1,
            "up": place["forward", micro_batches - 1] + 1,
        }
        for name, end in ends.items():
            found[name].append(_longest(_paths(done, trips, 0, end)))
            found[f"late_{name}"].append(_longest(_paths(done, trips, min(late, end), end)))
        goes_up.append(late < ends["up"])
        nearest = _paths(done, ([], next_trips, []), 0, ends["leave"])
        near.append(_longest(nearest[nearest[:, 1] > 0]) if next_trips else np.zeros((1, len(COLUMNS))))
    last: tuple[TaskKind, int] = ("backward", micro_batches - 1)
    left = [sum(kind == "weight" for kind, _ in own[place[last] :]) for own, place in zip(orders, places, strict=True)]
    families = {name: _padded(own) for name, own in found.items()}
    return SchedulePaths(
        **families, goes_up=np.array(goes_up), near=_padded(near), turn=turn, left=np.array(left, np.float64)
    )


def _turns(place: Places, micro_batches: int) -> list[int]:
    """For each backward task of a stage the latest forward task that it runs before it."""
    found, latest = [], 0
    for k in range(micro_batches):
        while latest + 1 < micro_batches and place["forward", latest + 1] < place["backward", k]:
            latest += 1
        found.append(latest)
    return found


def _trips(place: Places, turns: list[int]) -> list[tuple[int, int]]:
    """Trips of a stage, each as the places of its first and last task in the stage's order. Args: turns: of the stage
    where they turn."""
    return [(place["forward", i], place["backward", j]) for j, i in enumerate(turns)]


def _back_trips(place: Places, turning: Places, micro_batches: int) -> list[tuple[int, int]]:
    """Trips of a stage by the stages before it, from a backward task to the first forward one that the stage where they
    turn runs after it. Args: turning: places of that stage."""
    found, i = [], 0
    for j in range(micro_batches):
        while i < micro_batches and turning["forward", i] < turning["backward", j]:
            i += 1
        if i < micro_batches:
            found.append((place["backward", j], place["forward", i]))
    return found


def _paths(done: Array, every: tuple[list[tuple[int, int]], ...], begin: int, end: int) -> Array:
    """float64[paths, COLUMNS]: with no trip, with every single one, and with as many as there can be from each of those
    that can be the first.

    Args:
      done: [places, kinds], tasks before each place in the stage's order.
      every: for each kind of trip. begin, end: of the path in the stage's order.
    """
    found = [np.concatenate([np.zeros(_TRIPS), done[end] - done[begin]])]
    for column, of_kind in enumerate(every):
        trips = [trip for trip in of_kind if begin <= trip[0] and trip[1] < end]
        chains = [[trip] for trip in trips] + _chains(trips)
        for chain in chains:
            inside = np.sum([done[last + 1] - done[first] for first, last in chain], axis=0)
            path = np.concatenate([np.zeros(_TRIPS), done[end] - done[begin] - inside])
            path[column] = len(chain)
            found.append(path)
    return np.array(found, np.float64)


def _chains(trips: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    found = []
    for start, (first, _) in enumerate(trips):
        if first > trips[0][1]:
            break
        chain = [trips[start]]
        for trip in trips[start + 1 :]:
            if trip[0] > chain[-1][1]:
                chain.append(trip)
        found.append(chain)
    return found


def _longest(paths: Array) -> Array:
    """Those of the paths that are the longest for some seconds of the tasks, as a sample of these shows."""
    most: npt.NDArray[np.int64] = np.unique((_SAMPLE @ paths.T).argmax(axis=1))
    return np.unique(paths[most], axis=0)


def _padded(paths: list[Array]) -> Array:
    most = max(len(own) for own in paths)
    return np.stack([np.concatenate([own, np.repeat(own[-1:], most - len(own), axis=0)]) for own in paths])
