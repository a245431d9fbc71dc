"""A worker's devices and its meeting with the other workers."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from automap_launch.launcher.spec import LaunchSpec

_PR_SET_PDEATHSIG = 1

# The end waits for the slowest worker, which may be writing a checkpoint: a day, where JAX would give up after minutes.
_END_SECONDS = 24 * 3600

# XLA ends a process whose CPU devices reach a collective more than 40 s apart, which is ordinary where many devices
# share few cores.
_CPU_PATIENCE = {
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds": 120,
    "--xla_cpu_collective_call_terminate_timeout_seconds": 1800,
}


def die_with_parent() -> None:
    """Has the kernel kill this process when the launcher is gone, however that ended (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it went in between
        os.kill(os.getpid(), signal.SIGKILL)


def set_up_devices(spec: LaunchSpec, rank: int) -> None:
    """Gives this process its devices, and where there are several processes, makes it one of them.

    Comes before anything starts a JAX backend.

    Raises:
      RuntimeError: the others were not met in `spec.start_timeout_seconds`, or a device is not there.
    """
    if spec.platform == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["JAX_NUM_CPU_DEVICES"] = str(spec.devices_per_process)
        given = os.environ.get("XLA_FLAGS", "")
        patience = [f"{flag}={seconds}" for flag, seconds in _CPU_PATIENCE.items() if flag not in given]
        os.environ["XLA_FLAGS"] = " ".join([given, *patience]).strip()
    else:
        os.environ["JAX_PLATFORMS"] = f"{spec.platform},cpu"
    import jax

    first = (rank - spec.ranks.start) * spec.devices_per_process
    local = list(range(first, first + spec.devices_per_process))
    if spec.platform == "cuda":
        jax.config.update("jax_cuda_visible_devices", ",".join(map(str, local)))
    if spec.processes == 1:
        return
    # It would catch SIGTERM and go on; a script is to end by it, or to handle it, as it does alone.
    jax.config.update("jax_enable_preemption_service", False)
    if spec.platform == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator_address=spec.coordinator,
        num_processes=spec.processes,
        process_id=rank,
        local_device_ids=local if spec.platform == "cuda" else None,
        initialization_timeout=max(1, round(spec.start_timeout_seconds)),
        heartbeat_timeout_seconds=max(1, round(spec.heartbeat_seconds)),
        shutdown_timeout_seconds=_END_SECONDS,
    )


def leave_together() -> None:
    """Waits for all workers, so that the one that the others lean on (rank 0) is the last to go."""
    import jax

    if jax.distributed.is_initialized():
        jax.distributed.shutdown()
