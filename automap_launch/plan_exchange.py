"""Plans between the hosts of a launch: host 0 makes them; the others check them against their own capture."""

from __future__ import annotations

from collections.abc import Mapping

from automap_launch.errors import CaptureError
from automap_launch.launcher.host_group import HostGroup
from automap_launch.plan.cost import CostModel
from automap_launch.plan.file import check_plan, load_plan, save_plan
from automap_launch.plan.plan import Plan
from automap_launch.run_folder import RunFolder


def send(plans: Mapping[str, Plan], fingerprint: str, folder: RunFolder, hosts: HostGroup) -> None:
    """Gives the other hosts the plans by name, and what step they are for; called on host 0.

    Raises:
      WorkerError: a host has gone.
    """
    texts = {}
    for name, plan in plans.items():
        save_plan(plan, folder.plan_of(name))
        texts[name] = folder.plan_of(name).read_text()
    hosts.exchange({"fingerprint": fingerprint, "plans": texts})
    hosts.require_all("it captured the train step")


def receive(model: CostModel, memory_fraction: float, folder: RunFolder, hosts: HostGroup) -> dict[str, Plan]:
    """The plans of host 0, which are in this host's run folder then; called on every other host.

    Raises:
      WorkerError: host 0 has gone.
      CaptureError: it captured another step.
      PlanError: a plan is none for this step and cluster.
    """
    sent = hosts.exchange(None)[0]
    hosts.require_all("it made the plan")
    if sent["fingerprint"] != model.program.step.fingerprint:
        raise CaptureError(
            f"the train step on host {hosts.place.host} is another program than on host 0",
            hint="all hosts run the same script, with the same arguments, data shapes and versions of its packages",
        )
    plans = {}
    for name, text in sent["plans"].items():
        path = folder.plan_of(name)
        path.write_text(text)
        plans[name] = check_plan(load_plan(path), model.program, model.cluster, memory_fraction)
    return plans
