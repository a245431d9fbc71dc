"""The pre-trained weights that come with the package (`weights/agent.safetensors`), checked against their card."""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from safetensors.torch import load

from automap_launch.errors import ConfigError
from automap_launch.search.agent import Agent
from automap_launch.search.config import AgentConfig
from automap_launch.search.features import FEATURES

FOLDER = "weights"
WEIGHTS = "agent.safetensors"
CARD = "agent.json"


def pretrained_agent(config: AgentConfig, seed: int, folder: Path | None = None) -> Agent:
    """An agent that begins with the weights of the package, or of `folder`.

    Raises:
      ConfigError: the weights are damaged, or of a network of another shape.
    """
    place = Path(str(files("automap_launch.search"))) / FOLDER if folder is None else folder
    card: dict[str, Any] = json.loads((place / CARD).read_text())
    content = (place / WEIGHTS).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != card["sha256"]:
        raise ConfigError(
            f"{place / WEIGHTS} is damaged: its SHA-256 is {digest}, its card says {card['sha256']}",
            hint="install automap-launch anew, or search with search.pretrained=false",
        )
    if card["hidden"] != config.hidden or card["features"] != list(FEATURES):
        raise ConfigError(
            f"the weights in {place} are of a network with hidden={card['hidden']} and {len(card['features'])} "
            f"features; search.agent.hidden is {config.hidden}, and this version has {len(FEATURES)} features",
            hint=f"set search.agent.hidden={card['hidden']}, or search with search.pretrained=false",
        )
    agent = Agent(config, seed)
    agent.online.load_state_dict(load(content))
    agent.target.load_state_dict(agent.online.state_dict())
    return agent
