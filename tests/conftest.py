"""Tests run on eight CPU devices, and neither read nor fill the user's caches: a test session has one of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Before any test imports JAX, which reads them then.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
