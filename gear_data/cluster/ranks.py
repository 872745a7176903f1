"""The processes of a training run: which of them this is, on which node, and the store through which they talk."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from gear_data.cluster.addresses import env_seconds
from gear_data.errors import ClusterError


@dataclass(frozen=True)
class _Launcher:
    """Names of the variables in which a launcher tells each process its rank, how many there are, and its node."""

    rank: str
    world_size: str
    node: str | None = None


#: The first that tells a rank counts. What Slurm tells comes last: mpirun within a job hands on what was told to the
#: job's own script, or to mpirun's daemons, which are counted in another way.
_LAUNCHERS = (
    _Launcher("RANK", "WORLD_SIZE", "GROUP_RANK"),  # torchrun
    _Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI's mpirun
    _Launcher("PMI_RANK", "PMI_SIZE"),  # MPICH's and Intel MPI's mpirun
    _Launcher("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NODEID"),  # srun
)

TIMEOUT_VARIABLE, HOST_VARIABLE = "GEAR_DATA_JOIN_TIMEOUT", "GEAR_DATA_NODE_HOST"
_TIMEOUT = 1800.0
#: Any port: nothing is sent to it.
_SOME_PORT = 9


class KeyValueStore:
    """Notes that the processes of a run leave for each other in torch.distributed's store, each JSON under a key.

    Args:
        store: torch.distributed's, or one like it.
        prefix: of all keys.
        timeout: seconds that a note is waited for.
    """

    def __init__(self, store: Any, prefix: str, timeout: float) -> None:
        self._store = store
        self._prefix = prefix
        self._timeout = timedelta(seconds=timeout)

    def put(self, key: str, note: Mapping[str, Any]) -> None:
        """Raises ClusterError if the store does not take it."""
        try:
            self._store.set(self._prefix + key, json.dumps(note))
        except RuntimeError as error:
            raise ClusterError(
                f"the run's store cannot be reached: {error}", hint="did rank 0, which holds it, end? see its log"
            ) from error

    def take(self, key: str, whose: str) -> Any:
        """Waits for a note. Raises ClusterError if it does not come; `whose` says there who should have left it."""
        try:
            self._store.wait([self._prefix + key], self._timeout)
            return json.loads(self._store.get(self._prefix + key))
        except (RuntimeError, ValueError) as error:
            raise ClusterError(
                f"{whose} has left no word within {self._timeout.total_seconds():g} s",
                hint=f"see its log; ${TIMEOUT_VARIABLE} is how many seconds are waited",
            ) from error


@dataclass(frozen=True)
class Ranks:
    """This process among those of its run.

    Attributes:
        rank, world_size: as torch.distributed counts.
        node: what all processes of one node call it: torchrun's group rank, Slurm's node id, or the host's name.
            Numbers sort as they are counted.
        store: torch.distributed's.
    """

    rank: int
    world_size: int
    node: str
    store: Any


def find_ranks() -> Ranks:
    """This process, from torch.distributed where it is initialised, else from what the launcher told it.

    Raises:
        ClusterError: torch.distributed is not initialised, and there is no launcher; or its store cannot be reached.
    """
    from torch import distributed

    if not distributed.is_available():
        raise ClusterError("this torch was built without torch.distributed", hint="install another build of torch")
    if distributed.is_initialized():
        store = distributed.distributed_c10d._get_default_store()
        return Ranks(distributed.get_rank(), distributed.get_world_size(), _node(), store)
    launcher = _launcher()
    rank, world_size = (None, None) if launcher is None else (_told(launcher.rank), _told(launcher.world_size))
    if rank is None or world_size is None or not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        raise ClusterError(
            "cluster='torchrun': torch.distributed is not initialised, and no launcher has set RANK, WORLD_SIZE, "
            "MASTER_ADDR and MASTER_PORT",
            hint="start the script with torchrun, or call torch.distributed.init_process_group first",
        )
    return Ranks(rank, world_size, _node(), _launchers_store(rank, world_size))


@cache  # rank 0's may be the server of all others
def _launchers_store(rank: int, world_size: int) -> Any:
    """The very store that `init_process_group` will use, if it is called later: neither takes the port from the
    other."""
    from torch.distributed.rendezvous import rendezvous

    try:
        return next(rendezvous("env://", rank, world_size, timeout=timedelta(seconds=join_timeout())))[0]
    except (RuntimeError, ValueError, OSError) as error:
        raise ClusterError(
            f"torch.distributed's store at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}: {error}",
            hint=f"see that all ranks run; ${TIMEOUT_VARIABLE} is how many seconds are waited",
        ) from error


def _launcher() -> _Launcher | None:
    """What told this process its rank."""
    return next((launcher for launcher in _LAUNCHERS if _told(launcher.rank) is not None), None)


def _told(name: str | None) -> int | None:
    """The number in a variable; None where there is none."""
    text = "" if name is None else os.environ.get(name, "")
    return int(text) if text.isdecimal() else None


def _node() -> str:
    launcher = _launcher()
    number = None if launcher is None else _told(launcher.node)
    return socket.gethostname() if number is None else f"{number:08}"


def join_timeout() -> float:
    """Seconds that processes wait for each other, $GEAR_DATA_JOIN_TIMEOUT: shards may be loaded meanwhile. Raises
    InvalidArgumentError."""
    return env_seconds(TIMEOUT_VARIABLE, _TIMEOUT)


def machine() -> str:
    """Processes that can reach each other at 127.0.0.1 have the same: of one boot and one network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


def own_host() -> str:
    """The name or number at which other machines reach this one: $GEAR_DATA_NODE_HOST, else that of the way to
    MASTER_ADDR, else that of the host's name.

    Raises:
        ClusterError: only this machine could use what is found.
    """
    told = os.environ.get(HOST_VARIABLE)
    if told:
        return told
    master = os.environ.get("MASTER_ADDR")
    found = None if master is None else _address_towards(master)
    if found is not None:
        return found
    if master is not None and not _is_loopback_name(master):
        # Its way leads to this machine itself: by this name the others reach it.
        return master
    found = _address_towards(socket.gethostname())
    if found is None:
        raise ClusterError(
            "found no address at which other machines reach this one",
            hint=f"set ${HOST_VARIABLE} on every node to its name or number in the network",
        )
    return found


def _address_towards(host: str) -> str | None:
    """This machine's number on the way to a host; None where that is loopback, or there is no way."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, _SOME_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)  # sends nothing
            number = str(probe.getsockname()[0])
    except OSError:
        return None
    return None if number.startswith("127.") or number == "::1" else number


def _is_loopback_name(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"
