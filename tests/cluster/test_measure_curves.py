"""The long measurement: fits by hand, and a short run of all of it on two CPU devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from automap_launch.cluster.curves import KINDS, Curves
from automap_launch.cluster.measure_curves import fit_alpha_beta
from automap_launch.records import read_record

# All of `measure_curves`, with the fewest shapes and sizes.
SHORT = """
import dataclasses, json
import jax
from automap_launch.cluster import measure_curves as m

m._SIZES, m._DTYPES = {"cpu": (8, 256)}, {"cpu": ("float32",)}
m._MESSAGES, m._TRAFFIC = {"cpu": (2**10, 2**20)}, {"cpu": (2**14, 2**22)}
m._SECONDS_EACH = 0.01
print(json.dumps(m.measure_curves(jax.devices(), op_seconds=1e-6, alone_speedup=1.5)))
"""


def test_alpha_and_beta_are_given_back():
    points = [(size, 2e-4 + size * 3e-9) for size in (2**10, 2**16, 2**20, 2**22)]
    assert fit_alpha_beta(points) == pytest.approx((2e-4, 3e-9))


def test_neither_comes_out_below_zero():
    alpha, beta = fit_alpha_beta([(10, 1e-6), (1000, 2e-4)])
    assert alpha == 0
    assert beta > 0
    alpha, beta = fit_alpha_beta([(10, 2e-4), (1000, 1e-4)])
    assert beta == 0
    assert 1e-4 < alpha < 2e-4


@pytest.mark.slow
def test_every_curve_is_measured_on_the_devices_at_hand():
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
    done = subprocess.run(
        [sys.executable, "-c", SHORT], env=environment, capture_output=True, text=True, check=True, timeout=240
    )
    curves = read_record(Curves, json.loads(done.stdout))
    assert (curves.op_seconds, curves.alone_speedup) == (1e-6, 1.5)
    product = curves.product("float32")
    assert product is not None
    # 32,768 times the work.
    assert product.at(1, 256, 256, 256) > 3 * product.at(1, 8, 8, 8)
    assert curves.traffic(2**22) > 3 * curves.traffic(2**14)
    assert 1e5 < curves.transcendental < 1e11
    assert {(c.kind, c.devices) for c in curves.collectives} == {(kind, 2) for kind in KINDS}
    assert all(c.alpha_s + c.beta_s_per_byte > 0 for c in curves.collectives)
