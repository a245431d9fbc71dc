"""What a cluster must hold, and what its digest depends on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from automap_launch.cluster.cluster import Cluster, Device, Link
from automap_launch.cluster.curves import Curves

DEVICE = Device("made-up", {"float32": 1e12}, 2**30, 1e11)
HOST, NETWORK = Link("host", 1e-6, 1e-11), Link("network", 1e-5, 1e-9)
CLUSTER = Cluster("made-up", "cuda", 2, 8, DEVICE, (HOST, NETWORK))


def test_digest_depends_on_what_costs_depend_on():
    assert replace(CLUSTER, name="other", source="elsewhere").digest == CLUSTER.digest
    for change in (
        {"hosts": 4},
        {"devices_per_host": 4},
        {"platform": "cpu"},
        {"device": replace(DEVICE, memory_bytes=2**31)},
        {"links": (HOST, replace(NETWORK, alpha_s=2e-5))},
        {"curves": Curves(op_seconds=1e-6)},
    ):
        assert replace(CLUSTER, **change).digest != CLUSTER.digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hosts": 0}, "at least one host"),
        ({"links": (NETWORK,)}, "needs a link of scope `host`"),
        ({"links": (HOST,)}, "needs a link of scope `network`"),
        ({"links": (HOST, HOST, NETWORK)}, "name a scope twice"),
        ({"platform": "rocm"}, "expected one of cpu, cuda, tpu"),
    ],
)
def test_refuses_incomplete_clusters(change, message):
    with pytest.raises(ValueError, match=message):
        replace(CLUSTER, **change)


def test_refuses_impossible_devices_links_and_curves():
    with pytest.raises(ValueError, match="needs float32"):
        Device("d", {"bfloat16": 1e12}, 2**30, 1e11)
    with pytest.raises(ValueError, match=r"peak_flops\.float16 of d is 0"):
        Device("d", {"float32": 1e12, "float16": 0.0}, 2**30, 1e11)
    with pytest.raises(ValueError, match="memory_bytes of d is 0"):
        Device("d", {"float32": 1e12}, 0, 1e11)
    with pytest.raises(ValueError, match="alpha_s of the link of scope host"):
        Link("host", -1e-6, 1e-9)
    with pytest.raises(ValueError, match="alone_speedup"):
        Curves(alone_speedup=0.5)


def test_describes_itself_in_words():
    assert CLUSTER.describe() == "made-up (cuda, 2 hosts x 8 devices)"
    assert replace(CLUSTER, hosts=1, devices_per_host=1).describe() == "made-up (cuda, 1 host x 1 device)"
