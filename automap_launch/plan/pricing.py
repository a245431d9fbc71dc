"""Prices of whole steps: what the rows and arguments of a set add to a step, as a vector of columns."""

from __future__ import annotations

import numpy as np

from automap_launch.cluster.collectives import KINDS, Kind
from automap_launch.plan.block_costs import HELD
from automap_launch.plan.cases import AXES
from automap_launch.plan.patterns import PatternBook, Patterns, Site
from automap_launch.plan.quantity import Array
from automap_launch.plan.rows import PARTS

# A lane: collectives that are priced alike. (kind, axis, whether the compiler joins them)
_KINDS: tuple[Kind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
LANES = tuple((kind, axis, combinable) for kind in _KINDS for axis in AXES for combinable in (False, True))
_LANE = np.full((len(KINDS), len(AXES), 2), -1)
for _number, (_kind, _axis, _combinable) in enumerate(LANES):
    _LANE[KINDS.index(_kind), AXES.index(_axis), int(_combinable)] = _number

# Columns: seconds of each part, bytes held by use, floating-point operations, then each lane's bytes and how many
# collectives it has.
SECONDS = slice(0, len(PARTS))
PARAMETERS, OPTIMIZER, OTHER, FLOPS = (len(PARTS) + i for i in range(4))
SIZES = slice(FLOPS + 1, FLOPS + 1 + len(LANES))
COUNTS = slice(SIZES.stop, SIZES.stop + len(LANES))
WIDTH = COUNTS.stop
# Gradients of a whole step are temporaries like others.
_HELD = np.array([{"parameters": PARAMETERS, "optimizer": OPTIMIZER, "other": OTHER}.get(use, WIDTH) for use in HELD])


def price(book: PatternBook, site: Site, patterns: Patterns, speed: float) -> Array:
    """float64[sets, WIDTH]: the columns of each set of the patterns.

    Args:
      speed: how much faster devices are than when all of them are busy.
    """
    columns = np.zeros((len(patterns.lengths), WIDTH + 1))
    items, wires, holdings, sets = patterns.items, patterns.wires, patterns.holdings, patterns.sets
    count = items["count"]
    np.add.at(columns, (sets, SECONDS.start + items["part"]), count * book.seconds(site, patterns) / speed)
    np.add.at(columns, (sets, np.full(len(sets), FLOPS)), count * items["flops"] / site.divided_by[items["flops_over"]])
    of_wire, lanes = wires["item"], _LANE[wires["kind"], wires["axis"], wires["combinable"].astype(int)]
    sizes = count[of_wire] * wires["size"] / site.divided_by[wires["over"]]
    np.add.at(columns, (sets[of_wire], SIZES.start + lanes), sizes)
    waits = count[of_wire] * np.where(wires["combinable"], 1.0, wires["wait"])
    np.add.at(columns, (sets[of_wire], COUNTS.start + lanes), waits)
    of_holding = holdings["item"]
    held = count[of_holding] * holdings["bytes"] / site.divided_by[holdings["over"]]
    np.add.at(columns, (sets[of_holding], _HELD[holdings["use"]]), held)
    return columns[:, :WIDTH]
