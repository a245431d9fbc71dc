"""The environment variables of a worker."""

from __future__ import annotations

from collections.abc import Mapping

from automap_launch.launcher.spec import LaunchSpec

# A worker's own `wandb.init` must start its own service: joined to the launcher's, it would end with it.
_NOT_INHERITED = ("WANDB_SERVICE", "AUTOMAP_FEED_FD")


def worker_environment(
    inherited: Mapping[str, str],
    spec: LaunchSpec,
    rank: int,
    extra: Mapping[str, str],
    feed: int | None,
) -> dict[str, str]:
    """Environment of worker `rank`: what the launcher inherited, then the user's `extra`, then what we promise.

    The names are those that torchrun gives its workers, so that libraries which look for them find them.
    `feed` is the file descriptor of the pipe for events; None for workers without one.
    """
    host, _, port = spec.coordinator.rpartition(":")
    environment = {name: value for name, value in inherited.items() if name not in _NOT_INHERITED}
    environment.setdefault("PYTHONFAULTHANDLER", "1")  # a crash in native code leaves a stack in the log
    if spec.processes > 1:
        environment.setdefault("PYTHONHASHSEED", "0")  # or a set of strings has another order on every rank
    environment.update({name: str(value) for name, value in extra.items()})
    environment.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank - spec.ranks.start),
        WORLD_SIZE=str(spec.processes),
        LOCAL_WORLD_SIZE=str(len(spec.ranks)),
        MASTER_ADDR=host,
        MASTER_PORT=port,
        AUTOMAP_RESTART_COUNT=str(spec.attempt),
        AUTOMAP_RUN_DIR=spec.run_dir,
        PYTHONUNBUFFERED="1",  # output reaches log and terminal when it is written, and is not lost in a crash
    )
    if feed is not None:
        environment["AUTOMAP_FEED_FD"] = str(feed)
    return environment
