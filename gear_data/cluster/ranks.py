"""Ranks of a training run: this process's rank, its node, and the shared store."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from gear_data.cluster.key_value_store import TIMEOUT_VARIABLE, join_timeout
from gear_data.common.extras import import_extra
from gear_data.errors import ClusterError


@dataclass(frozen=True)
class _Launcher:
    """Names of a launcher's environment variables.

    They hold each process's rank, the world size, and its node's number.
    """

    rank: str
    world_size: str
    node: str | None = None


#: The first launcher whose rank is set counts. Slurm comes last: within a Slurm job, mpirun passes on Slurm's variables
#: of the job's script or of mpirun's daemons. These count other processes than the ranks.
_LAUNCHERS = (
    _Launcher("RANK", "WORLD_SIZE", "GROUP_RANK"),  # torchrun
    _Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI's mpirun
    _Launcher("PMI_RANK", "PMI_SIZE"),  # MPICH's and Intel MPI's mpirun
    _Launcher("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NODEID"),  # srun
)

HOST_VARIABLE = "GEAR_DATA_NODE_HOST"
#: Any port: no packet is sent to it.
_UNUSED_PORT = 9


@dataclass(frozen=True)
class Ranks:
    """This process among the ranks of its run.

    Attributes:
        rank, world_size: as torch.distributed counts.
        node: name that all ranks of one node share: torchrun's group rank, Slurm's node id, or the host name. Numbers
            are padded, so that they sort as numbers.
        store: torch.distributed's store.
    """

    rank: int
    world_size: int
    node: str
    store: Any


def find_ranks() -> Ranks:
    """Returns this process's rank.

    It comes from torch.distributed if that is initialized, else from the launcher's variables.

    Raises:
        ClusterError: torch.distributed is not initialized, and there is no launcher; or the store cannot be reached.
        MissingExtraError: torch is not installed.
    """
    import_extra("torch", "torch")
    from torch import distributed

    if not distributed.is_available():
        raise ClusterError("this torch was built without torch.distributed", hint="install another build of torch")
    if distributed.is_initialized():
        store = distributed.distributed_c10d._get_default_store()
        return Ranks(distributed.get_rank(), distributed.get_world_size(), _node_name(), store)
    launcher = _find_launcher()
    rank, world_size = (None, None) if launcher is None else (_env_int(launcher.rank), _env_int(launcher.world_size))
    if rank is None or world_size is None or not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        raise ClusterError(
            "cluster='torchrun': torch.distributed is not initialized, and no launcher has set RANK, WORLD_SIZE, "
            "MASTER_ADDR and MASTER_PORT",
            hint="start the script with torchrun, or call torch.distributed.init_process_group first",
        )
    return Ranks(rank, world_size, _node_name(), _launcher_store(rank, world_size))


@cache  # rank 0's store may be the server of all the others
def _launcher_store(rank: int, world_size: int) -> Any:
    """Returns the store that `init_process_group` would use.

    If `init_process_group` is called later, it uses this store: the two do not compete for the port.
    """
    from torch.distributed.rendezvous import rendezvous

    try:
        return next(rendezvous("env://", rank, world_size, timeout=timedelta(seconds=join_timeout())))[0]
    except (RuntimeError, ValueError, OSError) as error:
        raise ClusterError(
            f"cannot reach torch.distributed's store at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}: "
            f"{error}",
            hint=f"check that all ranks run; ${TIMEOUT_VARIABLE} sets the timeout in seconds",
        ) from error


def _find_launcher() -> _Launcher | None:
    return next((launcher for launcher in _LAUNCHERS if _env_int(launcher.rank) is not None), None)


def _env_int(name: str | None) -> int | None:
    """Returns the number in an environment variable; None without a number."""
    text = "" if name is None else os.environ.get(name, "")
    return int(text) if text.isdecimal() else None


def _node_name() -> str:
    launcher = _find_launcher()
    number = None if launcher is None else _env_int(launcher.node)
    return socket.gethostname() if number is None else f"{number:08}"


def machine_id() -> str:
    """Returns an id of this machine.

    Processes with the same id reach each other at 127.0.0.1: they share one boot and one network namespace.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


def own_host() -> str:
    """Returns the host name or number at which other machines reach this one.

    It is $GEAR_DATA_NODE_HOST if that is set; else this machine's address on the route to MASTER_ADDR (on the master
    itself: MASTER_ADDR); else its address on the route to its own host name.

    Raises:
        ClusterError: only a loopback address was found.
    """
    configured = os.environ.get(HOST_VARIABLE)
    if configured:
        return configured
    master = os.environ.get("MASTER_ADDR")
    address = None if master is None else _address_towards(master)
    if address is not None:
        return address
    if master is not None and not _is_loopback_name(master):
        # The route to MASTER_ADDR is loopback: this machine is the master, and the others reach it by that name.
        return master
    address = _address_towards(socket.gethostname())
    if address is None:
        raise ClusterError(
            "found no address at which other machines reach this one",
            hint=f"set ${HOST_VARIABLE} on every node to its host name or number",
        )
    return address


def _address_towards(host: str) -> str | None:
    """Returns this machine's address on the route to a host.

    Returns None if it is loopback, or there is no route.
    """
    try:
        family, kind, protocol, _, remote = socket.getaddrinfo(host, _UNUSED_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(remote)  # a datagram socket sends nothing here
            address = str(probe.getsockname()[0])
    except OSError:
        return None
    return None if address.startswith("127.") or address == "::1" else address


def _is_loopback_name(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"
