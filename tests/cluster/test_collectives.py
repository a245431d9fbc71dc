"""Alpha-beta costs against the ring simulated message by message, and which link an axis crosses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from automap_launch.cluster import collectives
from automap_launch.cluster.cluster import Cluster, Device, Link
from automap_launch.cluster.collectives import alpha_beta, axis_link
from automap_launch.cluster.curves import CollectiveCurve, Curves

LINK = Link("host", 1e-5, 1e-9)


def ring_seconds(rounds: int, chunk: float) -> float:
    """`rounds` messages of `chunk` bytes, one after the other, as every device on a ring sends them."""
    return sum(LINK.alpha_s + chunk * LINK.beta_s_per_byte for _ in range(rounds))


@pytest.mark.parametrize("devices", [2, 3, 8])
def test_costs_are_those_of_a_ring(devices):
    size = 3.0e6
    chunk = size / devices
    half = ring_seconds(devices - 1, chunk)
    assert collectives.reduce_scatter(size, devices, LINK) == pytest.approx(half)
    assert collectives.all_gather(size, devices, LINK) == pytest.approx(half)
    assert collectives.all_reduce(size, devices, LINK) == pytest.approx(2 * half)
    assert collectives.all_to_all(size, devices, LINK) == pytest.approx(half)
    assert collectives.permute(size, devices, LINK) == pytest.approx(ring_seconds(1, size))


@pytest.mark.parametrize("kind", collectives.KINDS)
def test_one_device_talks_to_nobody(kind):
    assert collectives.seconds(kind, 1e9, 1, LINK) == 0


def cluster(hosts: int = 4, per_host: int = 8) -> Cluster:
    device = Device("made-up", {"float32": 1e12}, 2**30, 1e11)
    links = (Link("host", 1e-6, 1e-11), Link("network", 1e-5, 8e-10))
    return Cluster("made-up", "cuda", hosts, per_host, device, links)


def test_an_axis_within_a_host_uses_the_hosts_link():
    mesh = {"data": 4, "model": 8}
    assert axis_link(cluster(), mesh, "model") == Link("host", 1e-6, 1e-11)
    assert axis_link(cluster(1), {"data": 4, "model": 2}, "data") == Link("host", 1e-6, 1e-11)


def test_an_axis_across_hosts_has_only_its_devices_share_of_the_card():
    # Every device of a host is on a ring of its own: each has its own share.
    assert axis_link(cluster(), {"data": 4, "model": 8}, "data") == Link("network", 1e-5, 8e-10)
    # One ring through all devices: it leaves each host once, with the whole card.
    assert axis_link(cluster(), {"data": 32, "model": 1}, "data").beta_s_per_byte == pytest.approx(1e-10)
    assert axis_link(cluster(), {"data": 4, "model": 8}, "data+model").beta_s_per_byte == pytest.approx(1e-10)
    # Four devices of each ring on a host.
    assert axis_link(cluster(), {"data": 16, "model": 2}, "data").beta_s_per_byte == pytest.approx(2e-10)
    # The minor axis is wider than a host.
    assert axis_link(cluster(), {"data": 2, "model": 16}, "model").scope == "network"


def test_a_ring_is_as_slow_as_its_slowest_link():
    fast_network = Cluster(
        "made-up", "tpu", 4, 8, cluster().device, (Link("host", 1e-6, 1e-10), Link("network", 1e-7, 1e-11))
    )
    assert axis_link(fast_network, {"data": 32, "model": 1}, "data") == Link("network", 1e-6, 1e-10)


def test_an_axis_of_one_device_costs_nothing():
    link = axis_link(cluster(), {"data": 32, "model": 1}, "model")
    assert (link.alpha_s, link.beta_s_per_byte) == (0, 0)


def test_refuses_what_is_not_there():
    with pytest.raises(ValueError, match="the axes data, model, not stage"):
        axis_link(cluster(), {"data": 4, "model": 8}, "stage")
    with pytest.raises(ValueError, match="needs 64 devices, the cluster has 32"):
        axis_link(cluster(), {"data": 8, "model": 8}, "data")


def test_a_measured_collective_goes_before_the_ring_within_a_host():
    measured = CollectiveCurve("all_reduce", 4, 7e-5, 3e-9)
    calibrated = replace(cluster(hosts=2), curves=Curves(collectives=(measured,)))
    mesh = {"data": 4, "model": 4}
    assert alpha_beta(calibrated, mesh, "model", "all_reduce") == (7e-5, 3e-9)
    link = calibrated.link("host")
    ring = (3 * link.alpha_s, 0.75 * link.beta_s_per_byte)
    assert alpha_beta(calibrated, mesh, "model", "all_gather") == pytest.approx(ring)
    network = axis_link(calibrated, mesh, "data")
    assert alpha_beta(calibrated, mesh, "data", "all_reduce")[0] == pytest.approx(6 * network.alpha_s)
    assert alpha_beta(calibrated, {"data": 8, "model": 1}, "model", "all_reduce") == (0, 0)
