"""Cluster files: presets, round trip, and messages that name the key."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from automap_launch.cluster.config import ClusterConfig
from automap_launch.cluster.curves import CollectiveCurve, Curves, ProductCurve
from automap_launch.cluster.file import (
    cluster_from_config,
    cluster_from_dict,
    cluster_to_dict,
    load_cluster,
    save_cluster,
)
from automap_launch.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "conf" / "cluster"
PRESETS = sorted(path for path in FOLDER.glob("*.yaml") if path.stem != "local")
PRESET = FOLDER / "v100_4x8.yaml"


def test_the_clusters_of_the_paper_and_others_are_there():
    names = {path.stem for path in PRESETS}
    assert {"v100_1x8", "v100_2x8", "v100_4x8", "v100_8x8", "v100_16gb_8x8", "a100_4x8", "h100_4x8"} <= names


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_presets_are_complete_and_named_after_their_size(path, tmp_path):
    cluster = load_cluster(path)
    assert cluster.name == path.stem
    assert path.stem.endswith(f"_{cluster.hosts}x{cluster.devices_per_host}")
    save_cluster(cluster, tmp_path / "copy.yaml")
    assert load_cluster(tmp_path / "copy.yaml") == cluster
    composed = OmegaConf.merge(OmegaConf.structured(ClusterConfig), OmegaConf.load(path))
    assert cluster_from_config(OmegaConf.to_object(composed)) == cluster


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_every_number_of_a_preset_says_where_it_is_from(path):
    """A number below `device` or `links` has a comment on its line or on the line that opens its block."""
    covered = False
    for line in path.read_text().split("\ndevice:\n")[1].splitlines():
        content, _, comment = line.partition("#")
        key, _, value = content.strip().removeprefix("- ").partition(":")
        if not value.strip() or key == "scope":
            covered = bool(comment)
        elif value.strip()[0].isdigit():
            assert covered or comment, f"{path.name}: {line}"


def test_the_memory_of_the_two_v100_presets_differs():
    assert load_cluster(FOLDER / "v100_8x8.yaml").device.memory_bytes == 2 * (
        load_cluster(FOLDER / "v100_16gb_8x8.yaml").device.memory_bytes
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hots": 3}, "unknown field `hots`: did you mean `hosts`"),
        ({"hosts": "three"}, "`hosts` is 'three': expected a whole number"),
        ({"hosts": 0}, "at least one host"),
        ({"device": {"name": "x"}}, r"`device\.peak_flops` is missing"),
        ({"links": [{"scope": "rack", "alpha_s": 1, "beta_s_per_byte": 1}]}, r"`links\[0\]\.scope` is 'rack'"),
        ({"schema": 2}, "schema is 2, this version reads 1"),
    ],
)
def test_errors_name_the_key(change, message):
    record = {**cluster_to_dict(load_cluster(PRESET)), **change}
    with pytest.raises(ConfigError, match=message):
        cluster_from_dict(record)


def test_a_missing_field_is_named():
    record = cluster_to_dict(load_cluster(PRESET))
    del record["device"]
    with pytest.raises(ConfigError, match="`device` is missing"):
        cluster_from_dict(record)


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"gone\.yaml: No such file"):
        load_cluster(tmp_path / "gone.yaml")
    damaged = tmp_path / "damaged.yaml"
    damaged.write_text("name: [")
    with pytest.raises(ConfigError, match=r"damaged\.yaml is no YAML"):
        load_cluster(damaged)
    damaged.write_bytes(b"name: \xff\xfe")
    with pytest.raises(ConfigError, match=r"damaged\.yaml is no YAML"):
        load_cluster(damaged)
    damaged.write_text("- 1")
    with pytest.raises(ConfigError, match=r"damaged\.yaml: expected the fields"):
        load_cluster(damaged)


def test_local_is_to_be_detected():
    config = ClusterConfig(**yaml.safe_load((FOLDER / "local.yaml").read_text()))
    assert config.is_local
    assert (config.platform, config.devices) == ("auto", None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"platform": "gpu"}, r"cluster\.platform is one of auto, cpu, cuda, tpu, got 'gpu'"),
        ({"devices": 0}, r"cluster\.devices is at least 1"),
        ({"hosts": 2}, "names hosts but not devices_per_host, device, links"),
    ],
)
def test_config_is_checked(change, message):
    with pytest.raises(ValueError, match=message):
        ClusterConfig(**change)


def test_a_described_cluster_takes_neither_auto_nor_a_number_of_devices():
    record = asdict(load_cluster(PRESET)) | {"schema": 1}
    record["links"] = list(record["links"])
    assert not ClusterConfig(**record).is_local
    with pytest.raises(ValueError, match="auto is for cluster=local"):
        ClusterConfig(**{**record, "platform": "auto"})
    with pytest.raises(ValueError, match=r"cluster\.devices=4 goes with cluster=local alone"):
        ClusterConfig(**{**record, "devices": 4})


def test_a_calibrated_cluster_is_written_and_named(tmp_path):
    product = ProductCurve("float32", (1,), (8, 16), tuple(1e-6 * n for n in range(1, 9)))
    ring = CollectiveCurve("all_reduce", 8, 1e-5, 1e-9)
    curves = Curves(1e-6, 2.0, (product,), (10, 20), (1e-6, 2e-6), 1e9, (ring,))
    cluster = replace(load_cluster(PRESET), curves=curves)
    save_cluster(cluster, tmp_path / "mine.yaml")
    assert load_cluster(tmp_path / "mine.yaml") == cluster
    config = ClusterConfig(file=str(tmp_path / "mine.yaml"))
    assert not config.is_local
    assert cluster_from_config(config) == cluster
    with pytest.raises(ValueError, match=r"add cluster\.devices=null"):
        ClusterConfig(file="mine.yaml", devices=8)
    with pytest.raises(ConfigError, match=r"gone\.yaml: No such file"):
        cluster_from_config(ClusterConfig(file="gone.yaml"))
