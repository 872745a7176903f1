"""Ranks of a training run on this machine, started one by one."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.support.running.eventually import eventually
from tests.support.running.warm_python import python

HERE = Path(__file__).parent
#: A variable in the environment of all processes that this one starts: other tests may run on this machine too.
_OURS = "GEAR_DATA_TESTS_OF", str(os.getpid())
os.environ.update([_OURS])

#: Ports below those that the system gives to other processes, which could get one before its process listens there.
#: Each process of tests begins elsewhere.
_PORTS = (20_000 + number % 12_000 for number in itertools.count(secrets.randbelow(12_000)))


def free_port() -> int:
    """Returns a port on which nothing listens, and never the same one again."""
    for port in _PORTS:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError


def servers() -> list[psutil.Process]:
    """Returns the node servers that this process or its children started."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "status", "environ"])
        if "gear_data.cluster.server.node_server" in (process.info["cmdline"] or [])
        and process.info["status"] != psutil.STATUS_ZOMBIE
        and _OURS in (process.info["environ"] or {}).items()
    ]


def has_ended(process: psutil.Process) -> bool:
    """Returns whether a process has ended. Its parent may not have waited for it yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def all_ended(processes: Sequence[psutil.Process], seconds: float) -> bool:
    return eventually(lambda: all(map(has_ended, processes)), seconds)


def torchrun(nodes: int, ranks: int, *arguments: object) -> list[int]:
    """Runs a script under torchrun on `nodes` agents of this machine.

    Returns their exit statuses.
    """
    common = [python(), "-m", "torch.distributed.run", "--nnodes", str(nodes), "--nproc-per-node", str(ranks)]
    common += ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    agents = [subprocess.Popen([*common, "--node-rank", str(node), *map(str, arguments)]) for node in range(nodes)]
    try:
        return [agent.wait(timeout=500) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()


class Rank:
    """A rank as Slurm starts it.

    Its environment has only its rank, its node and MASTER_ADDR.

    Args:
        path: the dataset.
        rank, size, node: its rank, the world size and its node's number.
        port: MASTER_PORT.
        options: the argument of the program after the dataset; of `hold_rank`, options of `gear_data.open`.
        program: the program, which answers lines.
        variables: further environment variables.
    """

    def __init__(
        self,
        path: object,
        rank: int,
        size: int,
        node: int,
        port: int,
        options: str,
        program: Path = HERE / "hold_rank.py",
        **variables: Any,
    ):
        known = {"SLURM_PROCID": rank, "SLURM_NTASKS": size, "SLURM_NODEID": node, "MASTER_PORT": port, **variables}
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "GEAR_DATA_NODE_TIMEOUT": "3"}
        environment |= {name: str(value) for name, value in known.items()}
        command = [python(), str(program), str(path), options]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        # No test waits forever.
        self._limit = threading.Timer(180, self.process.kill)
        self._limit.start()

    def line(self) -> str:
        return self.process.stdout.readline().strip()

    def ask(self, command: str) -> str:
        self.begin(command)
        return self.line()

    def begin(self, command: str) -> None:
        """Sends a command, whose answer is the next line."""
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self._limit.cancel()
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@contextmanager
def runs() -> Iterator[Callable[..., list[Rank]]]:
    """Yields run([(dataset, node), ...]) -> ranks.

    Kills the ranks and their servers at the end.
    """
    started: list[Rank] = []
    before = {process.pid for process in servers()}

    def begin(
        places: Sequence[tuple[object, int]], options: str = "{}", port: int | None = None, **variables: Any
    ) -> list[Rank]:
        port = port or free_port()
        started.extend(
            Rank(path, rank, len(places), node, port, options, **variables) for rank, (path, node) in enumerate(places)
        )
        return started

    try:
        yield begin
    finally:
        for rank in started:
            rank.kill()
        # They would exit by themselves, seconds later.
        for process in servers():
            if process.pid not in before:
                process.kill()
