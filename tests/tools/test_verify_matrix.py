"""The matrix of models, optimizers and plans: its choice of cells, its table, and a few cells of each kind."""

from __future__ import annotations

from itertools import combinations

import pytest

from tools.matrix_cells import MODELS, OPTIMIZERS, PLANS, PRECISIONS, controls, from_name, judged, pairwise_cover
from tools.verify_matrix import document, in_a_child


def test_every_two_of_model_optimizer_and_plan_meet():
    cells = [c for c in judged() if not c.refused]
    names = [(c.model, c.optimizer, c.plan) for c in cells]
    factors = (list(MODELS), list(OPTIMIZERS), list(PLANS))
    for i, j in combinations(range(3), 2):
        met = {(name[i], name[j]) for name in names}
        assert {(a, b) for a in factors[i] for b in factors[j]} <= met
    assert len(judged()) <= 65
    assert judged() == judged()


def test_a_cover_is_smaller_than_all_rows():
    rows = pairwise_cover([["a", "b", "c"], ["x", "y", "z"], ["0", "1", "2"]])
    assert len(rows) < 15
    assert len({(row[0], row[2]) for row in rows}) == 9


def test_cells_are_found_by_their_names():
    for cell in (*judged(), *controls()):
        assert from_name(cell.name) == cell
    with pytest.raises(ValueError, match="no cell is named 'mlp/adam/DP9'"):
        from_name("mlp/adam/DP9")


def test_the_table_says_what_failed():
    cells = [from_name("mlp/adam/DP8"), from_name("cnn_batch_norm/adam/PP8"), from_name("rnn/adam/PP8/scaled")]
    fine = {"passed": True, "said": "worst 3.0e-07 (opt/0)", "by_control": ["params/bias"], "seconds": 1.0}
    text = document(cells, {c.name: dict.fromkeys(PRECISIONS, fine) for c in cells})
    assert "3 of 3 cells did what they must: 1 equal, 1 refused, 1 spoilt" in text
    assert "| mlp | adam | DP8 | 3.0e-07 (opt/0) | 3.0e-07 (opt/0) |" in text
    assert "mlp/adam/DP8, f32, equal up to its own noise: params/bias" in text
    broken = {**fine, "passed": False, "said": "12 tensors compared\nDIFFERENT w"}
    text = document(cells, {c.name: {"f32": broken, "f64": fine} for c in cells})
    assert "**3 failed.**" in text
    assert "**failed**: 12 tensors compared |" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mlp/lion/PP2xDP2xTP2", "worst"),
        ("rnn/adam/accumulate4", "worst"),
        ("cnn_batch_norm/sgd_momentum/PP8", "refused: a sum or mean over the batch at tests/"),
        ("mlp/adam/accumulate4/dropped", "noticed in"),
    ],
)
def test_a_cell_of_each_kind(name, said):
    for outcome in in_a_child(from_name(name)).values():
        assert outcome["passed"], outcome["said"]
        assert outcome["said"].startswith(said)
