"""What each platform's XLA does with a partitioned step, as far as the cost depends on it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PlatformRules:
    """Rules of one backend.

    Attributes:
      reduce_scatter: a partial sum whose result is stored sharded becomes a reduce-scatter; without it, an all-reduce
        followed by a slice.
      wire_bytes: bytes of an item in a collective, by dtype, where they differ from the item's own.
      breadth_first: what can run early does. In a straight line of operations nothing holds recomputation back until
        its layer's gradient is there, as the rounds of a loop do.
      copies_work: cheap work is done in every fused loop that reads it (`fusing.py`).
      window_indices: the gradient of a max-pooling is computed with the index of every element of its input.
      combine_bytes: gradients' collectives are joined into buckets of this size.
    """

    reduce_scatter: bool
    window_indices: bool
    breadth_first: bool = False
    copies_work: bool = False
    wire_bytes: dict[str, int] = field(default_factory=dict)
    combine_bytes: float = math.inf


# CPU: XLA widens 16-bit floats before it reduces, and joins all that can be joined. It schedules for concurrency
# (xla_cpu_enable_concurrency_optimized_scheduler), others for little memory.
# CPU and GPU have no instruction for the gradient of a max-pooling: XLA's select-and-scatter expander rewrites it.
# GPU: xla_gpu_all_reduce_combine_threshold_bytes is 30 MiB by default.
_RULES = {
    "cpu": PlatformRules(
        reduce_scatter=False,
        window_indices=True,
        breadth_first=True,
        copies_work=True,
        wire_bytes={"bfloat16": 4, "float16": 4},
    ),
    "cuda": PlatformRules(reduce_scatter=True, window_indices=True, combine_bytes=30 * 2**20),
    "tpu": PlatformRules(reduce_scatter=True, window_indices=False, combine_bytes=30 * 2**20),
}


def rules_of(platform: str) -> PlatformRules:
    """The rules of a platform of `cluster.PLATFORMS`."""
    return _RULES[platform]
