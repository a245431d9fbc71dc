"""An agent on disk: `agent.safetensors` (all arrays) and `agent.json` (counters, generator, config). No pickle."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from automap_launch.search.agent import Agent
from automap_launch.search.config import AgentConfig
from automap_launch.search.environment import Observation
from automap_launch.search.replay import Transition

SCHEMA = 1
ARRAYS = "agent.safetensors"
RECORD = "agent.json"


def save_agent(agent: Agent, folder: Path) -> None:
    """Writes the agent's whole state, as it is between two episodes.

    An episode that is under way is not part of it: the loaded agent begins a new one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights, following, highest = agent.replay.state()
    arrays = {
        **{f"online.{k}": v for k, v in agent.online.state_dict().items()},
        **{f"target.{k}": v for k, v in agent.target.state_dict().items()},
        **{
            f"adam.{index}.{name}": value
            for index, slots in agent.optimizer.state_dict()["state"].items()
            for name, value in slots.items()
        },
        **{f"replay.{k}": torch.from_numpy(v) for k, v in _pack(agent.replay.transitions).items()},
        "replay.weights": torch.from_numpy(weights),
    }
    save_file({k: v.contiguous() for k, v in arrays.items()}, folder / ARRAYS)
    record = {
        "schema": SCHEMA,
        "config": dataclasses.asdict(agent.config),
        "features": agent.online.body[0].in_features,
        "episodes": agent.episodes,
        "round_start": agent.round_start,
        "learning_steps": agent.learning_steps,
        "replay_next": following,
        "replay_highest": highest,
        "generator": agent.rng.bit_generator.state,
    }
    (folder / RECORD).write_text(json.dumps(record, indent=1))


def load_agent(folder: Path) -> Agent:
    """The agent that `save_agent` wrote; it goes on as the saved one would have.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: it was written with another schema.
    """
    record = json.loads((folder / RECORD).read_text())
    if record["schema"] != SCHEMA:
        raise ValueError(f"{folder / RECORD} has schema {record['schema']}, this version reads {SCHEMA}")
    with safe_open(folder / ARRAYS, framework="pt") as file:
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    agent = Agent(AgentConfig(**record["config"]), features=record["features"])
    agent.online.load_state_dict(_below(arrays, "online."))
    agent.target.load_state_dict(_below(arrays, "target."))
    slots: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in _below(arrays, "adam.").items():
        index, name = key.split(".")
        slots.setdefault(int(index), {})[name] = value
    agent.optimizer.load_state_dict({**agent.optimizer.state_dict(), "state": slots})
    replay = {key: value.numpy() for key, value in _below(arrays, "replay.").items()}
    agent.replay.restore(_unpack(replay), replay["weights"], record["replay_next"], record["replay_highest"])
    agent.rng.bit_generator.state = record["generator"]
    agent.episodes = record["episodes"]
    agent.round_start = record["round_start"]
    agent.learning_steps = record["learning_steps"]
    return agent


def _below(arrays: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}


def _pack(transitions: list[Transition]) -> dict[str, np.ndarray]:
    """The transitions as arrays: each observation once, its actions' rows one below the other."""
    observations: dict[int, Observation] = {}
    for transition in transitions:
        for observation in (transition.state, transition.following):
            if observation is not None:
                observations[id(observation)] = observation
    place = {key: i for i, key in enumerate(observations)}
    seen = list(observations.values())
    return {
        "features": np.concatenate([o.features for o in seen]) if seen else np.zeros((0, 0), np.float32),
        "mask": np.concatenate([o.mask for o in seen]) if seen else np.zeros(0, bool),
        "actions_of": np.array([len(o.mask) for o in seen], np.int64),
        "state": np.array([place[id(t.state)] for t in transitions], np.int64),
        "following": np.array([-1 if t.following is None else place[id(t.following)] for t in transitions], np.int64),
        "action": np.array([t.action for t in transitions], np.int64),
        "reward": np.array([t.reward for t in transitions], np.float64),
        "discount": np.array([t.discount for t in transitions], np.float64),
        "outcome": np.array([t.outcome for t in transitions], np.float64),
    }


def _unpack(arrays: dict[str, np.ndarray]) -> list[Transition]:
    ends = np.cumsum(arrays["actions_of"])
    seen = [
        Observation(arrays["features"][end - count : end], arrays["mask"][end - count : end])
        for end, count in zip(ends, arrays["actions_of"], strict=True)
    ]
    columns = (arrays[name].tolist() for name in ("state", "action", "reward", "discount", "following", "outcome"))
    return [
        Transition(seen[state], action, reward, discount, None if following < 0 else seen[following], outcome)
        for state, action, reward, discount, following, outcome in zip(*columns, strict=True)
    ]
