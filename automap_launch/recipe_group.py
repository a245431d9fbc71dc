"""The Hydra group `recipe`: `+recipe=NAME` reads `NAME.yaml` of the packaged `recipes/` folder.

Hydra looks for a group in a folder of the group's name. The recipes lie in `recipes/`, beside the scripts they run,
so a config source maps the group onto that folder; it is the same in a wheel, an editable install and a source
tree. The user's own recipes need none of this: `--config-dir DIR` with `DIR/recipe/NAME.yaml`.
"""

from __future__ import annotations

from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from automap_launch.resources import recipes_folder

GROUP = "recipe"
PROVIDER = "automap-launch"


class RecipeSource(ConfigSource):
    """Presents the folder `recipes/` as the config group `recipe`."""

    @staticmethod
    def scheme() -> str:
        return "recipes"

    def available(self) -> bool:
        return Path(self.path).is_dir()

    def is_group(self, config_path: str) -> bool:
        return config_path.strip("/") in ("", GROUP)

    def is_config(self, config_path: str) -> bool:
        file = self._file(config_path)
        return file is not None and file.is_file()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if not config_path.strip("/"):
            return [GROUP] if results_filter in (None, ObjectType.GROUP) else []
        if config_path.strip("/") != GROUP or results_filter == ObjectType.GROUP:
            return []
        return sorted(file.stem for file in Path(self.path).glob("*.yaml"))

    def load_config(self, config_path: str) -> ConfigResult:
        file = self._file(config_path)
        if file is None or not file.is_file():
            raise ConfigLoadError(f"Config not found : {config_path}")
        text = file.read_text(encoding="utf-8")
        return ConfigResult(
            provider=self.provider,
            path=self.full_path(),
            config=OmegaConf.create(text),
            header=ConfigSource._get_header_dict(text[:512]),
        )

    def _file(self, config_path: str) -> Path | None:
        group, _, name = self._normalize_file_name(config_path).strip("/").rpartition("/")
        return Path(self.path) / name if group == GROUP else None


class RecipeSearchPath(SearchPathPlugin):
    """Adds the packaged recipes to Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(provider=PROVIDER, path=f"{RecipeSource.scheme()}://{recipes_folder()}")


def register() -> None:
    """Makes the group known to Hydra in this process. Call before `hydra.main` or `compose`."""
    plugins = Plugins.instance()
    plugins.register(RecipeSource)
    plugins.register(RecipeSearchPath)
