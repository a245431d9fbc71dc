"""Private interfaces of other packages are used only in the releases that `pyproject.toml` allows."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys

import pytest

from automap_launch.errors import ConfigError
from automap_launch.tested_versions import require_tested


@pytest.mark.parametrize(("package", "below", "above"), [
    ("jax", "0.10.1", "0.11.0"),
    ("jaxlib", "0.10.1", "0.11.0"),
    ("hydra-core", "1.3.1", "1.4.0"),
    ("tensorflow", "2.20.0", "2.22.0"),
    ("keras", "3.12.0", "4.0.0"),
    ("trax", "1.4.0", "1.5.0"),
])  # fmt: skip
def test_releases_outside_the_tested_range_are_refused(package, below, above):
    require_tested(package, importlib.metadata.version(package))
    for version in (below, above):
        with pytest.raises(ConfigError, match=f"{package} {version} is installed") as error:
            require_tested(package, version)
        assert str(error.value.hint).startswith(f'pip install "{package}')


def test_a_release_candidate_counts_as_its_release():
    require_tested("jax", "0.10.3rc1")


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("automap_launch.frontends.jax_internals", "jax"),
        ("automap_launch.runtime.jax_internals", "jax"),
        ("automap_launch.hydra_internals", "hydra"),
    ],
)
def test_the_module_that_holds_them_asks_first(monkeypatch, module, package):
    monkeypatch.setattr(f"{package}.__version__", "99.0")
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ConfigError, match=r"99\.0 is installed"):
        importlib.import_module(module)
