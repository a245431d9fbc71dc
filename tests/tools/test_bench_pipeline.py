"""The benchmark of pipelines: its peer trains the same model, and its document says what was measured."""

from __future__ import annotations

import jax
import numpy as np

from tools import pipeline_peer
from tools.bench_pipeline import CASES, captured_step, document


def test_the_peer_trains_the_same_model():
    captured, state, batch = captured_step(layers=4, width=8, rows=8)
    step, sharding = pipeline_peer.make(jax.devices()[:1], 4)
    weights, value = step(jax.device_put(np.stack([state[name] for name in sorted(state)]), sharding), *batch)
    *expected, loss = captured.flat(*captured.leaves)
    np.testing.assert_allclose(value, loss, rtol=1e-5)
    np.testing.assert_allclose(weights, np.stack(expected), rtol=1e-4, atol=1e-6)


def test_the_document_bounds_a_step_by_the_cores(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    row = {"stages": 4, "micro_batches": 8, "program": "1f1b", "seconds": 0.3, "schedule": 0.1, "bubble": 0.25,
           "work": 0.4, "together": 1.25, "against_peer": [1.1, 1.0, 1.2],
           "against_spectrax": [0.5, 0.4, 0.6]}  # fmt: skip
    peer = {"stages": 4, "micro_batches": 8, "program": "peer again", "seconds": 0.3, "against_peer": [1.0, 0.8, 1.3]}
    text = document(
        {
            **{f"ideal_{stages}x{micro_batches}": [] for stages, micro_batches in CASES},
            "ideal_4x8": [row, peer],
            "dispatch": {"tasks": 10, "dispatched_us": 50.0, "done_us": 60.0},
            "memory": [{"micro_batches": 4, "bytes": 2**20}],
            "compile": [{"stages": 8, "cut_seconds": 1.0, "first_step_seconds": 2.0, "compilations": 11, "loaded": 29}],
        }
    )
    assert (
        "| 4 | 8 | 1f1b | 300.0 ms | 100.0 ms | 25% | 200.0 ms | 1.50 | 1.25 | 1.10 (1.00 to 1.20) | 0.50 (0.40 to"
        in text
    )
    assert "| 4 | 8 | peer again | 300.0 ms |  |  |  |  |  | 1.00 (0.80 to 1.30) |  |" in text
    assert "the peer against itself spreads over 0.50" in text
    assert "| 8 | 40 | 11 | 29 |" in text
