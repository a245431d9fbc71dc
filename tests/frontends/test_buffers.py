"""NumPy reads JAX's arrays by their methods once their buffers are hidden."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from automap_launch.frontends.buffers import hide_buffers


def test_numpy_asks_the_array_once_its_buffers_are_hidden(monkeypatch):
    array, asked = jax.device_put(np.arange(4.0, dtype=np.float32)), []
    array_type, plain = type(array), type(array).__array__
    monkeypatch.setattr(array_type, "__array__", lambda self, *a, **k: asked.append(self) or plain(self, *a, **k))
    np.array(array)
    assert not asked
    assert memoryview(array).nbytes == 16
    give_back = hide_buffers(array_type)
    try:
        assert np.array(array).tolist() == np.stack([array])[0].tolist() == [0, 1, 2, 3]
        assert len(asked) == 2
        with pytest.raises(TypeError, match="bytes-like object is required"):
            memoryview(array)
        assert bytes(np.asarray(jax.device_get(array)).data) == np.arange(4, dtype=np.float32).tobytes()
    finally:
        give_back()
    assert memoryview(array).nbytes == 16


def test_a_type_without_buffers_is_refused():
    with pytest.raises(RuntimeError, match="buffers of type are not where"):
        hide_buffers(type)
