"""What each argument of a step is: state, batch or other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from automap_launch.train_step import Argument, Role


def assign_roles(
    arguments: Sequence[Argument],
    carried: Collection[int],
    unchanged: Collection[int] = (),
    derived: Collection[int] = (),
) -> list[Role]:
    """Roles of a step's arguments.

    Args:
      carried: arguments that an earlier result replaces, or that the step returns as they came.
      unchanged: arguments that are the very same array in two calls.
      derived: arguments that the script computes from earlier results (a target network).

    State is what is carried or derived, and frozen parameters: unchanged arrays beside carried ones in one argument,
    or a tree of unchanged float arrays of several leading sizes. Of the rest, arrays are the batch, unless they are
    unchanged while others come anew and share no leading size with those (a constant table). Scalars and PRNG keys
    are other.
    """
    state = set(carried) | set(derived)
    rest = [
        i
        for i, argument in enumerate(arguments)
        if i not in state and argument.shape and not is_key(argument) and all(argument.shape)
    ]
    # Full-batch training passes the same arrays every time: nothing comes anew, and the batch is among the unchanged.
    fresh = [i for i in rest if i not in unchanged]
    frozen = {i for i in rest if i not in fresh and _is_frozen(i, arguments, state, rest)}
    if not unchanged:
        frozen = {i for i in rest if _beside_no_batch(i, arguments, rest)}
        fresh = [i for i in fresh if i not in frozen]
    candidates = fresh or [i for i in rest if i not in frozen]
    common = _commonest_leading([arguments[i] for i in candidates])
    batch = {i for i in rest if i not in frozen and (i in fresh or arguments[i].shape[0] == common)}
    return ["state" if i in state or i in frozen else "batch" if i in batch else "other" for i in range(len(arguments))]


def is_key(argument: Argument) -> bool:
    """Whether the argument is a PRNG key, typed or raw (`uint32[2]`)."""
    return argument.dtype.startswith("key<") or (argument.dtype == "uint32" and argument.shape in ((2,), (4,)))


def _is_frozen(index: int, arguments: Sequence[Argument], state: Collection[int], rest: Sequence[int]) -> bool:
    top = _top(arguments[index])
    return any(_top(arguments[i]) == top for i in state) or _beside_no_batch(index, arguments, rest)


def _beside_no_batch(index: int, arguments: Sequence[Argument], rest: Sequence[int]) -> bool:
    """Whether the leaf belongs to a tree of float arrays that have no common leading size, as parameters do."""
    siblings = [arguments[i] for i in rest if _top(arguments[i]) == _top(arguments[index])]
    return len({s.shape[0] for s in siblings}) > 1 and all("float" in s.dtype for s in siblings)


def _commonest_leading(arguments: Sequence[Argument]) -> int | None:
    counts = Counter(argument.shape[0] for argument in arguments)
    return max(counts, key=lambda size: (counts[size], size)) if counts else None


def _top(argument: Argument) -> str:
    return argument.path.split("/", 1)[0]
