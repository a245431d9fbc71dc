"""What collectives cost: the alpha-beta model of ring algorithms.

On a ring of n devices whose links take `alpha + bytes * beta` for a message, a collective over tensors of S bytes:

| collective     | S                                   | rounds   | bytes each device sends |
|----------------|-------------------------------------|----------|-------------------------|
| all_reduce     | the tensor, whole on each device    | 2(n - 1) | 2(n - 1)/n * S          |
| all_gather     | the gathered result                 | n - 1    | (n - 1)/n * S           |
| reduce_scatter | the input, whole on each device     | n - 1    | (n - 1)/n * S           |
| all_to_all     | the tensor that each device holds   | n - 1    | (n - 1)/n * S           |
| permute        | the tensor that each device holds   | 1        | S                       |

seconds = rounds * alpha + bytes sent * beta. See Thakur, Rabenseifner, Gropp, "Optimization of Collective
Communication Operations in MPICH", 2005, and Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms", 2009.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from automap_launch.cluster.cluster import Cluster, Link
from automap_launch.cluster.curves import KINDS, Kind

__all__ = ["KINDS", "Kind", "all_gather", "all_reduce", "all_to_all", "alpha_beta", "axis_link", "permute"]
__all__ += ["reduce_scatter", "rounds", "seconds", "share_sent"]


def rounds(kind: Kind, devices: int) -> int:
    """How often a device waits for a message, one after the other."""
    if devices == 1:
        return 0
    if kind == "permute":
        return 1
    return (2 if kind == "all_reduce" else 1) * (devices - 1)


def share_sent(kind: Kind, devices: int) -> float:
    """Bytes that a device sends, as a multiple of the size that the table above names."""
    if devices == 1:
        return 0.0
    if kind == "permute":
        return 1.0
    return (2 if kind == "all_reduce" else 1) * (devices - 1) / devices


def seconds(kind: Kind, size: float, devices: int, link: Link) -> float:
    """Seconds of one collective over `devices` devices; `size` in bytes as the table above defines it."""
    return rounds(kind, devices) * link.alpha_s + share_sent(kind, devices) * size * link.beta_s_per_byte


def all_reduce(size: float, devices: int, link: Link) -> float:
    """2(n - 1) alpha + 2(n - 1)/n * size * beta."""
    return seconds("all_reduce", size, devices, link)


def all_gather(size: float, devices: int, link: Link) -> float:
    """(n - 1) alpha + (n - 1)/n * size * beta; `size`: of the gathered result."""
    return seconds("all_gather", size, devices, link)


def reduce_scatter(size: float, devices: int, link: Link) -> float:
    """(n - 1) alpha + (n - 1)/n * size * beta; `size`: of the whole input."""
    return seconds("reduce_scatter", size, devices, link)


def all_to_all(size: float, devices: int, link: Link) -> float:
    """(n - 1) alpha + (n - 1)/n * size * beta; `size`: of what a device holds."""
    return seconds("all_to_all", size, devices, link)


def permute(size: float, devices: int, link: Link) -> float:
    """alpha + size * beta: every device sends its tensor to one other."""
    return seconds("permute", size, devices, link)


def alpha_beta(cluster: Cluster, mesh: Mapping[str, int], axis: str, kind: Kind) -> tuple[float, float]:
    """Seconds of one collective over `axis`, and seconds for each byte of its size.

    As measured where the axis stays within a host and calibration knows the kind over so many devices; else by the
    ring model above.

    Args:
      mesh, axis: as `axis_link`.

    Raises:
      ValueError: as `axis_link`.
    """
    link = axis_link(cluster, mesh, axis)
    devices = math.prod(mesh[part] for part in axis.split("+"))
    measured = cluster.curves.collective(kind, devices) if link.scope == "host" else None
    if measured is not None:
        return measured.alpha_s, measured.beta_s_per_byte
    return rounds(kind, devices) * link.alpha_s, share_sent(kind, devices) * link.beta_s_per_byte


def axis_link(cluster: Cluster, mesh: Mapping[str, int], axis: str) -> Link:
    """The link that a ring over `axis` runs at.

    The mesh fills the devices in order, its last axis the minor one (neighbours on it are neighbours on a host). An
    axis that stays within a host uses the `host` link. One that leaves it is bound by the slower of the two: where k
    of the ring's devices share a host, the ring leaves the host once for all k, so it has k devices' shares of the
    host's card; the other shares belong to the rings beside it.

    Args:
      mesh: size by axis, major axis first.
      axis: one of `mesh`, or several joined by `+` (`data+model`) for a ring over them all.

    Raises:
      ValueError: the mesh has no such axis, or needs more devices than the cluster has.
    """
    names = list(mesh)
    parts = axis.split("+")
    if any(part not in mesh for part in parts):
        raise ValueError(f"the mesh has the axes {', '.join(names)}, not {axis}")
    if math.prod(mesh.values()) > cluster.devices:
        raise ValueError(
            f"mesh {dict(mesh)} needs {math.prod(mesh.values())} devices, the cluster has {cluster.devices}"
        )
    first = min(names.index(part) for part in parts)
    last = max(names.index(part) for part in parts)
    stride = math.prod(mesh[name] for name in names[last + 1 :])
    size = math.prod(mesh[name] for name in names[first : last + 1])
    if size == 1:
        return Link("device", 0.0, 0.0)
    per_host = cluster.devices_per_host
    if stride * size <= per_host:
        return cluster.link("host")
    network = cluster.link("network")
    on_one_host = max(1, per_host // stride)
    beta = network.beta_s_per_byte / on_one_host
    if on_one_host > 1:
        host = cluster.link("host")
        return Link("network", max(network.alpha_s, host.alpha_s), max(beta, host.beta_s_per_byte))
    return Link("network", network.alpha_s, beta)
