"""How processes share the GPUs of this machine: MPS, MIG, or by turns."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gear_data.kernels.cuda.nvml import NvidiaDriver

_CONTROL = "nvidia-cuda-mps-control"
#: The inode of the first PID namespace of a machine (PROC_PID_INIT_INO in Linux).
_HOST_NAMESPACE = 0xEFFFFFFC
_DEFAULT_PIPES = "/tmp/nvidia-mps"


def describe_sharing(driver: NvidiaDriver) -> tuple[str, str | None]:
    """Returns (a description, a remedy or None).

    Reads NVML, the environment and the folder of the MPS daemon. It makes no CUDA context: that would start a server
    of MPS.
    """
    mps, mps_remedy = _mps()
    mig, mig_remedy = _mig(driver)
    if not mps and not mig:
        return "neither MPS nor MIG: the processes on a GPU take turns", None
    return "; ".join([*mps, *mig]), mig_remedy or mps_remedy


def _mps() -> tuple[list[str], str | None]:
    """Describes the MPS daemon that CUDA would use in this process."""
    chosen = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    pipes = Path(chosen or _DEFAULT_PIPES)
    if not (pipes / "control").exists():
        if chosen is None:
            return [], None
        start = f"start the daemon with the same variable: {_CONTROL} -d"
        if shutil.which(_CONTROL) is None:
            start = f"the daemon {_CONTROL} is not installed here: pass its folder into the container"
        return [f"no MPS daemon in {pipes} ($CUDA_MPS_PIPE_DIRECTORY): the processes on a GPU take turns"], start
    found = [f"MPS in {pipes}"]
    percentage = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
    if percentage is not None:
        found.append(f"{percentage} % of the multiprocessors for each process ($CUDA_MPS_ACTIVE_THREAD_PERCENTAGE)")
    if _has_ended(pipes / f"{_CONTROL}.pid"):
        return [*found, "its daemon has ended"], f"start the daemon again: {_CONTROL} -d"
    return found, None


def _has_ended(pid_file: Path) -> bool:
    """Returns whether the daemon is known to have ended.

    Within a container nothing is known, because the daemon's id may be of another PID namespace.
    """
    if os.stat("/proc/self/ns/pid").st_ino != _HOST_NAMESPACE:
        return False
    try:
        process = int(pid_file.read_text())
        return not _CONTROL.startswith(Path(f"/proc/{process}/comm").read_text().strip())
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False


def _mig(driver: NvidiaDriver) -> tuple[list[str], str | None]:
    """Describes the MIG instances, and which of them CUDA uses in this process."""
    on = [instances for instances in driver.mig if instances is not None]
    if not on:
        return [], None
    instances = {uuid for each in on for uuid in each}
    found = [f"MIG on {len(on)} of {len(driver.mig)} GPUs, {len(instances)} instances"]
    if not instances:
        return found, "create an instance (nvidia-smi mig -cgi 9,9 -C), or turn MIG off: CUDA finds no device"
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    named = [name for name in visible if name.startswith("MIG-")]
    if not named:
        return found, "CUDA uses the first instance: set CUDA_VISIBLE_DEVICES to one of `nvidia-smi -L` in each process"
    found.append(f"this process uses {named[0]}")
    # MIG-GPU-UUID/GPU instance/compute instance is the form of drivers before R470, which NVML does not list.
    if not named[0].startswith("MIG-GPU-") and not any(uuid.startswith(named[0]) for uuid in instances):
        return found, f"{named[0]} is no instance of this machine: see nvidia-smi -L, and set CUDA_VISIBLE_DEVICES"
    if len(visible) > 1:
        return found, "CUDA uses only the first instance of CUDA_VISIBLE_DEVICES: give each process another one"
    return found, None
