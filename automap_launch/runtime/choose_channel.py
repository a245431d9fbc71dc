"""Which channel the stages of a pipeline talk through."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from automap_launch.runtime.channel import Channel, LocalChannel, Message
from automap_launch.runtime.cross_host_channel import CrossHostChannel
from automap_launch.runtime.process_channel import ProcessChannel


def choose_channel(processes: int, platform: str) -> Callable[[Sequence[Message]], Channel]:
    """What makes the channel for a step's messages, by how many processes the stages lie in and on what devices."""
    if processes == 1:
        return lambda _: LocalChannel()
    return ProcessChannel if platform == "cpu" else CrossHostChannel
