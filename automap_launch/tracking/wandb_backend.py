"""Weights & Biases. wandb is imported when a run begins, not before.

The run lives in the launcher's process. The script that is trained may have a run of its own, in a worker; the two
share nothing: ours ignores what the environment says about *a* run (`WANDB_RUN_ID`, `WANDB_NAME` ...), for that is
meant for the script's, and leaves nothing behind in the environment that workers inherit.
"""

from __future__ import annotations

import contextlib
import netrc
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from automap_launch.tracking.backend import Backend, Metrics
from automap_launch.tracking.config import TrackingConfig

Mode = Literal["online", "offline", "disabled"]

# What the environment may tell our run: how to reach the server, and on whose behalf.
_SERVER_VARIABLES = frozenset(
    "WANDB_" + name
    for name in (
        "API_KEY", "BASE_URL", "APP_URL", "ENTITY", "IDENTITY_TOKEN_FILE", "CREDENTIALS_FILE", "CONFIG_DIR",
        "CACHE_DIR", "DATA_DIR", "HTTP_PROXY", "HTTPS_PROXY", "HTTP_TIMEOUT",
        "INSECURE_DISABLE_SSL", "_EXTRA_HTTP_HEADERS",
    )
)  # fmt: skip

_PUBLIC_SERVERS = frozenset({"api.wandb.ai", "api.forge.coreweave.com"})  # the older and the newer default

_MODE_WORDS: dict[str, Mode] = {"online": "online", "run": "online", "offline": "offline", "dryrun": "offline",
                                "disabled": "disabled"}  # fmt: skip

_SETTINGS: dict[str, Any] = {
    "silent": True,
    "console": "off",  # wandb would otherwise wrap stdout and stderr, which belong to rank 0's output
    "disable_git": True,
    "save_code": False,
    "init_timeout": 30.0,
    "login_timeout": 30.0,
    "finish_timeout": 120.0,  # of uploading what is left; the data stays on disk for `wandb sync`
}


def resolve_mode(mode: str, environ: Mapping[str, str] = os.environ) -> Mode:
    """What `tracking.mode` comes down to.

    `auto` follows `WANDB_MODE` and `WANDB_DISABLED`; without them it is `online` when there is an API key, else
    `offline`. A mode that the user asked for in the config wins over the environment.
    """
    if mode != "auto":
        return _MODE_WORDS[mode]
    if environ.get("WANDB_DISABLED", "").lower() in ("true", "1", "yes"):
        return "disabled"
    word = environ.get("WANDB_MODE", "").lower()
    if word in _MODE_WORDS:
        return _MODE_WORDS[word]
    return "online" if has_api_key(environ) else "offline"


def has_api_key(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether wandb could log in without asking: a key in the environment, a token file, or a line of netrc."""
    if environ.get("WANDB_API_KEY") or environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    base_url = environ.get("WANDB_BASE_URL")
    servers = {urlsplit(base_url).netloc} if base_url else _PUBLIC_SERVERS
    home = Path(environ.get("HOME", "~")).expanduser()
    candidates = [Path(environ["NETRC"])] if environ.get("NETRC") else [home / ".netrc", home / "_netrc"]
    for path in candidates:
        # A file that is missing, locked away or no netrc holds no key that wandb could use either.
        with contextlib.suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError):
            if servers & netrc.netrc(str(path)).hosts.keys():
                return True
    return False


class WandbBackend(Backend):
    """One W&B run for the whole launch: search and training.

    Attributes:
      run_dir: folder of the run's files.
      url: of the run's page; None offline.
    """

    name = "W&B"

    def __init__(
        self, config: TrackingConfig, mode: Literal["online", "offline"], folder: Path, run_config: dict[str, Any]
    ) -> None:
        """Starts the run; its files are in `folder`/wandb.

        Raises:
          Exception: whatever wandb raises: not installed, no access, no network.
        """
        with _own_environment(mode):
            import wandb

            known = wandb.Settings.model_fields
            self._run = wandb.init(
                project=config.project,
                entity=config.entity,
                name=config.name,
                tags=config.tags or None,
                id=secrets.token_hex(4),
                dir=str(folder),
                mode=mode,
                config=run_config,
                group=folder.name,
                reinit="create_new",
                settings=wandb.Settings(**{k: v for k, v in _SETTINGS.items() if k in known}),
            )
            self._artifact_type = wandb.Artifact
        self.run_dir = Path(self._run.dir).parent
        self.url: str | None = None if mode == "offline" else self._run.url
        for section, step in (("train", "train/step"), ("search", "search/episode")):
            self._run.define_metric(step)
            self._run.define_metric(f"{section}/*", step_metric=step)

    def metrics(self, values: Metrics) -> None:
        # Without `step=`: the step metrics defined above are the x axes, and wandb's own counter only counts calls.
        self._run.log(dict(values))

    def artifact(self, path: Path, kind: str) -> None:
        artifact = self._artifact_type(f"{kind}-{self._run.id}", type=kind)
        # Referred to where it lies: the run folder is kept, so a second copy in the user's home is of no use.
        artifact.add_file(str(path), name=path.name, policy="immutable", skip_cache=True)
        self._run.log_artifact(artifact)

    def summary(self, values: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(values))

    def close(self, exit_code: int) -> None:
        self._run.finish(exit_code=exit_code)


@contextlib.contextmanager
def _own_environment(mode: str) -> Iterator[None]:
    """Hides from wandb what the environment says about the script's run, and undoes what wandb adds to it."""
    saved = {k: v for k, v in os.environ.items() if k.startswith("WANDB_")}
    for name in saved:
        if name not in _SERVER_VARIABLES:
            del os.environ[name]
    os.environ["WANDB_SILENT"] = "true"  # for what wandb prints before it has read our settings
    if mode == "offline":
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # of wandb's own errors, over the network
    try:
        yield
    finally:
        for name in [k for k in os.environ if k.startswith("WANDB_")]:
            del os.environ[name]
        os.environ.update(saved)
