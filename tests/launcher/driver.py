"""A launcher process for tests: `driver.py SPEC.json CONFIG_JSON WORKER_COMMAND...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from automap_launch.launcher.config import LauncherConfig
from automap_launch.launcher.host_group import HostGroup
from automap_launch.launcher.place import Place
from automap_launch.launcher.spec import LaunchSpec
from automap_launch.launcher.supervisor import launch


def main() -> int:
    spec = LaunchSpec.load(Path(sys.argv[1]))
    config = LauncherConfig(**json.loads(sys.argv[2]))

    def ignore(_event: dict[str, Any]) -> None:
        pass

    place = Place(spec.hosts, spec.host, spec.coordinator)
    group = HostGroup.meet(place, 20.0) if spec.hosts > 1 else None
    result = launch(spec, config, spec.folder, ignore, sys.stdout, group=group, command=sys.argv[3:])
    if group is not None:
        group.close()
    failure = None if result.failure is None else result.failure.error()
    (spec.folder.root / "result.json").write_text(json.dumps({"failure": failure, "attempts": result.attempts}))
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main())
