"""Cluster files: `conf/cluster/*.yaml`, `cluster.yaml` of a run folder, and what `calibrate` writes."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import yaml

from automap_launch.cluster.cluster import SCHEMA, Cluster
from automap_launch.cluster.config import ClusterConfig
from automap_launch.errors import ConfigError
from automap_launch.records import RecordError, read_record

FIELDS = ("schema", *(f.name for f in dataclasses.fields(Cluster)))


def cluster_from_dict(record: dict[str, Any], where: str = "cluster") -> Cluster:
    """The cluster that a parsed cluster file describes.

    Args:
      where: what messages call the record: a file name, or `cluster` for the config group.

    Raises:
      ConfigError: a key is unknown or missing, or a value is not what it must be; the message names the key.
    """
    if not isinstance(record, dict):
        raise ConfigError(f"{where}: expected the fields {', '.join(FIELDS)}, got {type(record).__name__}")
    schema = record.get("schema", SCHEMA)
    if schema != SCHEMA:
        raise ConfigError(f"{where}: schema is {schema!r}, this version reads {SCHEMA}")
    content = {k: v for k, v in record.items() if k != "schema"}
    try:
        return read_record(Cluster, content)
    except RecordError as error:
        raise ConfigError(f"{where}: {error}", hint="docs/contract.md describes a cluster file") from error


def cluster_to_dict(cluster: Cluster) -> dict[str, Any]:
    """Plain record of a cluster: what `cluster_from_dict` reads."""
    return {"schema": SCHEMA, **_plain(dataclasses.asdict(cluster))}


def _plain(value: Any) -> Any:
    """The same with lists where there are tuples: what YAML can write."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def load_cluster(path: Path) -> Cluster:
    """Reads a cluster file.

    Raises:
      ConfigError: there is no such file, it is no YAML, or its content is not a cluster's.
    """
    try:
        record = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the cluster file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"the cluster file {path} is no YAML: {str(error).splitlines()[0]}") from error
    return cluster_from_dict(record, str(path))


def save_cluster(cluster: Cluster, path: Path) -> None:
    """Writes a cluster file, all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(yaml.safe_dump(cluster_to_dict(cluster), sort_keys=False, width=120, default_flow_style=None))
    part.replace(path)


def cluster_from_config(config: ClusterConfig) -> Cluster:
    """The cluster of a composed config that describes or names one (`config.is_local` is false).

    Raises:
      ConfigError: as `load_cluster`.
    """
    if config.file is not None:
        return load_cluster(Path(config.file))
    record = {k: v for k, v in dataclasses.asdict(config).items() if k not in ("devices", "file")}
    return cluster_from_dict(record)
