"""Plans of earlier launches: found again by what they depend on, and by nothing less."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from automap_launch import plan_cache
from automap_launch.plan.build import build_plan
from automap_launch.plan.cost import CostModel
from automap_launch.plan.decision import Decision
from automap_launch.plan.plan import Origin
from automap_launch.plan_cache import Outcome, UnusableEntryError, entry_file, keep, load
from automap_launch.program.program import Program
from automap_launch.search.config import PinConfig, SearchConfig
from tests.plan.programs import cluster, two_blocks, two_layers

CONFIG = SearchConfig()
MODEL = CostModel(two_blocks(), cluster())


def outcome() -> Outcome:
    plans = {
        name: build_plan(decision, MODEL, Origin(name, 0))
        for name, decision in (("plan", Decision(4, 2, frozenset({2}), "optimizer")), ("data_parallel", Decision(8, 1)))
    }
    return Outcome(plans, {"seconds": 1.5, "verified": None}, ("found by dqn",), "2026-01-02 03:04")


def another_step() -> CostModel:
    program = two_layers()
    return CostModel(replace(program, step=replace(program.step, fingerprint="1" * 16)), cluster())


def renamed(program: Program) -> Program:
    """The same computation with a parameter of another name."""
    first, *rest = program.step.arguments
    return replace(program, step=replace(program.step, arguments=(replace(first, path="other"), *rest)))


def test_what_is_kept_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "entry.json"
    assert load(path, MODEL, CONFIG) is None
    keep(outcome(), path)
    assert load(path, MODEL, CONFIG) == outcome()
    assert [p.name for p in path.parent.iterdir()] == ["entry.json"]


def test_entries_lie_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert entry_file(MODEL, CONFIG).parent == tmp_path / "automap-launch" / "plans"


def test_the_key_is_all_that_a_plan_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    same = entry_file(MODEL, CONFIG)
    assert entry_file(MODEL, replace(CONFIG, cache="refresh", verify_timeout="5m")) == same
    others = [
        entry_file(another_step(), CONFIG),
        entry_file(CostModel(renamed(two_blocks()), cluster()), CONFIG),
        entry_file(CostModel(two_blocks(), replace(cluster(), name="another")), CONFIG),
        entry_file(CostModel(two_blocks(), replace(cluster(), hosts=2)), CONFIG),
        entry_file(MODEL, replace(CONFIG, seed=1)),
        entry_file(MODEL, replace(CONFIG, pin=PinConfig(data=4))),
        entry_file(MODEL, replace(CONFIG, budget="1m")),
    ]
    monkeypatch.setattr(plan_cache, "versions", lambda: {"jax": "0.0"})
    others.append(entry_file(MODEL, CONFIG))
    assert len({same, *others}) == 1 + len(others)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"plans": {}, "search": {}, "notes": [], "made": ""}'])
def test_a_damaged_entry_says_which_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "entry.json"
    path.write_text(text)
    with pytest.raises(UnusableEntryError, match=r"entry\.json"):
        load(path, MODEL, CONFIG)


def test_an_entry_that_the_cost_model_no_longer_agrees_with_is_stale(tmp_path: Path) -> None:
    path = tmp_path / "entry.json"
    keep(outcome(), path)
    record = json.loads(path.read_text())
    record["plans"]["plan"]["predicted"]["step_seconds"] *= 1.01
    path.write_text(json.dumps(record))
    with pytest.raises(UnusableEntryError, match="stale"):
        load(path, MODEL, CONFIG)


def test_an_entry_for_another_step_is_refused(tmp_path: Path) -> None:
    keep(outcome(), tmp_path / "entry.json")
    with pytest.raises(UnusableEntryError, match="another train step"):
        load(tmp_path / "entry.json", another_step(), CONFIG)
