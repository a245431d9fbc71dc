"""With which releases of other packages their private interfaces were tested: the ranges of `pyproject.toml`.

A new release is admitted by running the tests on it and widening its range there.
"""

from __future__ import annotations

from importlib.metadata import requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from automap_launch.errors import ConfigError

_NAME = "automap-launch"


def require_tested(package: str, version: str) -> None:
    """Raises ConfigError when `version`, which is installed, lies outside the range of `package`."""
    tested = next(
        wanted.specifier
        for wanted in map(Requirement, requires(_NAME) or ())
        if canonicalize_name(wanted.name) == package and wanted.specifier
    )
    if not tested.contains(version, prereleases=True):
        raise ConfigError(
            f"{package} {version} is installed, this version of {_NAME} works with {package} {tested}",
            hint=f'pip install "{package}{tested}"',
        )
