"""This machine, measured for real (two CPU devices), and the cache of it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from automap_launch.cluster import detect
from automap_launch.cluster.detect import calibrate, detect_local
from automap_launch.cluster.known_devices import corrected_peaks
from automap_launch.errors import ConfigError


@pytest.mark.slow
def test_measures_once_and_starts_no_backend_in_the_caller(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = (
        "import sys, json, dataclasses; from automap_launch.cluster.detect import detect_local\n"
        "c = detect_local('cpu', 2); print(json.dumps([dataclasses.asdict(c), 'jax' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    record, imported_jax = json.loads(done.stdout)
    assert not imported_jax
    assert (record["platform"], record["hosts"], record["devices_per_host"]) == ("cpu", 1, 2)
    assert 1e8 < record["device"]["peak_flops"]["float32"] < 1e13
    assert 1e7 < record["device"]["memory_bandwidth"] < 1e13
    assert record["device"]["memory_bytes"] > 2**26
    assert 1 <= record["curves"]["alone_speedup"] <= 2
    assert 0 < record["links"][0]["beta_s_per_byte"] < 1e-6

    def no_measuring(*_):
        raise AssertionError("measured again")

    monkeypatch.setattr(detect, "_measure", no_measuring)
    assert detect_local("cpu", 2).device.peak_flops == record["device"]["peak_flops"]
    with pytest.raises(AssertionError, match="measured again"):
        detect_local("cpu", 4)


def measured(devices: int = 2, **change):
    return {
        "platform": "cpu",
        "kind": "cpu",
        "devices": devices,
        "memory_bytes": 2**30,
        "matmul_flops": 1e10,
        "memory_bandwidth": 1e9,
        "op_seconds": 1e-6,
        "alone_speedup": 2.0,
        "all_reduce": {"1024": 2.0e-4 + 1024e-9, "1000000": 2.0e-4 + 1e-3},
        "curves": None,
        **change,
    }


def test_a_damaged_cache_entry_is_measured_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(detect, "_measure", lambda *_: measured())
    first = detect_local("cpu", 2)
    (entry,) = (tmp_path / "automap-launch").iterdir()
    for damage in ("", "name: [", "name: local\n"):
        entry.write_text(damage)
        assert detect_local("cpu", 2) == first
        assert entry.read_text() != damage


def test_a_calibration_is_used_from_then_on(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    curves = {"op_seconds": 2e-6, "alone_speedup": 1.5, "transcendental": 1e9}
    monkeypatch.setattr(detect, "_measure", lambda *request: measured(curves=curves if request[3] else None))
    quick = detect_local("cpu", 2)
    assert quick.curves.transcendental is None
    assert quick.source.startswith("measured on")
    calibrated = calibrate("cpu", 2)
    assert calibrated.curves.transcendental == 1e9
    assert calibrated.source.startswith("calibrated on")
    assert detect_local("cpu", 2) == calibrated
    assert detect_local("cpu", 4).curves.transcendental is None


def test_alpha_and_beta_give_back_the_all_reduces_that_were_measured():
    cluster = detect._cluster(measured(devices=4))
    (link,) = cluster.links
    # 4 devices: 2(n - 1) = 6 rounds, 2(n - 1)/n = 1.5 times the bytes; 1e-9 s a byte was measured.
    assert link.alpha_s == pytest.approx(2.0e-4 / 6)
    assert link.beta_s_per_byte == pytest.approx(1e-9 / 1.5)


def test_a_single_device_has_no_link():
    cluster = detect._cluster(measured(devices=1, all_reduce={}))
    assert cluster.links == ()


def test_a_known_accelerator_is_corrected_by_what_was_measured():
    peaks = corrected_peaks("NVIDIA A100-SXM4-80GB", 78e12)
    assert peaks["float32"] == pytest.approx(78e12)
    assert peaks["bfloat16"] == pytest.approx(156e12)
    assert corrected_peaks("Tesla V100-SXM2-32GB", 15.7e12)["float16"] == pytest.approx(125e12)
    assert corrected_peaks("another", 1e12) == {"float32": 1e12}


def test_cpu_devices_by_default(monkeypatch):
    monkeypatch.setattr(detect, "_cores", lambda: 3)
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    assert detect._cpu_devices(1) == 3
    assert detect._cpu_devices(2) == 2
    assert detect._cpu_devices(4) == 4
    monkeypatch.setattr(detect, "_cores", lambda: 64)
    assert detect._cpu_devices(1) == 8
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "16")
    assert detect._cpu_devices(1) == 16


def test_a_calibration_is_found_whatever_the_environment_says_of_what_the_caller_names(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(detect, "_measure", lambda *_: measured())
    calibrate("cpu", 2)
    monkeypatch.setattr(detect, "_measure", lambda *_: pytest.fail("measured again"))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    assert detect_local("cpu", 2).devices_per_host == 2


def test_refuses_what_cannot_be(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="6 devices cannot be shared evenly by 4 processes"):
        detect_local("cpu", 6, 4)
    with pytest.raises(ConfigError, match="one of auto, cpu, cuda, tpu"):
        detect_local("gpu")


def test_what_went_wrong_while_measuring_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with pytest.raises(ConfigError, match=r"cluster\.platform=tpu.*[Bb]ackend"):
        detect_local("tpu")
    assert not list(tmp_path.iterdir())
