"""The server of a training run's node: a process that serves the node's shards as long as any of its ranks lives.

    python -m gear_data.cluster.host_server

What it serves stands as a line of JSON on its standard input, which its ranks then hold open: where that ends, all of
them have ended, however they did. It answers with one line: where it listens, or what is wrong.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import asdict, dataclass
from typing import Any

from gear_data.cluster.addresses import Address
from gear_data.cluster.flight_server import FlightServer, Guard
from gear_data.cluster.protocol import error_from_bytes, error_to_bytes
from gear_data.cluster.run_secret import RunSecret
from gear_data.cluster.served import ServedShards
from gear_data.errors import ClusterError, GearError
from gear_data.storage.dataset_files import open_files

#: Seconds without a request after which a server whose ranks have ended ends too: those of other nodes may be a few
#: batches behind.
LINGER_SECONDS = 3.0
_LOOK = 0.25

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """What a server is for.

    Attributes:
        dataset: its folder or URL.
        cache_dir, cache_bytes, residency: see `gear_data.open`.
        shards: those of the node.
        host: where it listens.
        secret: of the run.
    """

    dataset: str
    cache_dir: str | None
    cache_bytes: int | None
    residency: str
    shards: tuple[int, ...]
    host: str
    secret: RunSecret

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "secret": self.secret.to_json()}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Job:
        return Job(**{**data, "shards": tuple(data["shards"]), "secret": RunSecret.from_json(data["secret"])})


class Lease:
    """One rank's hold on its node's server: it goes with the process, or with this object."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def note(self) -> dict[str, int]:
        """What `join_lease` takes in another process of this host."""
        return {
            "pid": os.getpid(),
            "descriptor": self.descriptor,
            "inode": os.fstat(self.descriptor).st_ino,
        }


def join_lease(note: dict[str, int]) -> Lease | None:
    """A lease beside that of another process; None, and a log line, where the system does not let this one have it."""
    try:
        descriptor = os.open(f"/proc/{note['pid']}/fd/{note['descriptor']}", os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if os.fstat(descriptor).st_ino == note["inode"]:
            return Lease(descriptor)
        os.close(descriptor)
    except OSError as error:
        _log.warning("the node's server will not wait for this process: %s", error)
        return None
    _log.warning("the node's server will not wait for this process: process %d has ended", note["pid"])
    return None


def start_server(job: Job, timeout: float) -> tuple[Address, Lease]:
    """Starts a server, and waits until it serves.

    Raises:
        ClusterError: it did not come up within `timeout` seconds, or ended.
        whatever it says is wrong.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "gear_data.cluster.host_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # a launcher that ends a rank's group must not end it before the other ranks
    )
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("no pipes were made")
    # Nobody else waits for it, and it would stay as a zombie.
    threading.Thread(target=process.wait, name="gear-data-reap", daemon=True).start()
    lease = Lease(os.dup(process.stdin.fileno()))
    with process.stdout, process.stdin:
        process.stdin.write(json.dumps(job.to_json()).encode() + b"\n")
        process.stdin.flush()
        said = _line(process.stdout.fileno(), timeout)
    if not said:
        raise ClusterError(
            f"the server of {job.dataset} did not come up within {timeout:g} s, or ended", hint="see its log"
        )
    facts = json.loads(said)
    if "listen" in facts:
        return Address.parse(facts["listen"]), lease
    raise error_from_bytes(said, job.dataset) or ClusterError("the server ended", file=job.dataset)


def _line(descriptor: int, timeout: float) -> bytes:
    """A line from a pipe; nothing if it does not come in time, or the other side ends."""
    limit, said = time.monotonic() + timeout, b""
    with selectors.DefaultSelector() as ready:
        ready.register(descriptor, selectors.EVENT_READ)
        while not said.endswith(b"\n"):
            if not ready.select(max(0.0, limit - time.monotonic())):
                return b""
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                return b""
            said += piece
    return said


def main() -> None:
    job = Job.from_json(json.loads(sys.stdin.buffer.readline()))
    serving, ended = threading.Event(), threading.Event()
    threading.Thread(target=_watch, args=(serving, ended), daemon=True).start()
    try:
        server = _open_server(job)
    except GearError as error:
        _say(error_to_bytes(error).decode())
        sys.exit(1)
    serving.set()
    _say(json.dumps({"listen": str(Address(job.host, server.port))}))
    ended.wait()
    while time.monotonic() < server.last_used + LINGER_SECONDS:
        time.sleep(_LOOK)
    # Shutting down would wait for streams that other nodes have open.
    os._exit(0)


def _open_server(job: Job) -> FlightServer:
    served = ServedShards(open_files(job.dataset, job.cache_dir, job.cache_bytes), job.shards, job.residency)
    secret = job.secret
    guard = Guard(secret.token, secret.certificate.encode() or None, secret.key.encode() or None)
    return FlightServer(served, Address(job.host, 0), guard)


def _say(line: str) -> None:
    print(line, flush=True)


def _watch(serving: threading.Event, ended: threading.Event) -> None:
    """Notes when the last rank has ended; before anything is served the process ends with it."""
    while os.read(sys.stdin.fileno(), 1 << 10):
        pass
    ended.set()
    if not serving.is_set():
        os._exit(1)


if __name__ == "__main__":
    main()
