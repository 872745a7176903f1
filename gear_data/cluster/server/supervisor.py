"""A node's server as its ranks have it: started by the first of them, held by all, and started again if it dies.

A rank holds the server by the write end of a pipe, which goes with the process however that ends. The server has the
read end: where that comes to its end, all its ranks have ended. The first rank keeps the read end too, for the servers
that may follow the first: each of them is held by all who held the one before, and none of these need know.
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
from dataclasses import replace

from gear_data.cluster.server.node_server import ServerConfig, ServerInfo
from gear_data.common.error_codec import error_from_bytes
from gear_data.errors import ClusterError, GearError, InvalidArgumentError

#: Seconds before a server that died is started again, and so on in a row; after the last of them it is given up.
PAUSES = (0.5, 2.0, 8.0, 30.0, 60.0)
#: Seconds of serving after which the row begins anew.
_SOUND_SECONDS = 600.0

_log = logging.getLogger(__name__)


class ServerLease:
    """One rank's hold on its node's server: it goes with the process, or with this object."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def note(self) -> dict[str, int]:
        """What `join_server_lease` takes in another process of this host."""
        return {
            "pid": os.getpid(),
            "descriptor": self.descriptor,
            "inode": os.fstat(self.descriptor).st_ino,
        }


def join_server_lease(note: dict[str, int]) -> ServerLease | None:
    """A lease beside that of another process; None, and a log line, where the system does not let this one have it."""
    try:
        descriptor = os.open(f"/proc/{note['pid']}/fd/{note['descriptor']}", os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if os.fstat(descriptor).st_ino == note["inode"]:
            return ServerLease(descriptor)
        os.close(descriptor)
    except OSError as error:
        _log.warning("the node's server will not wait for this process: %s", error)
        return None
    _log.warning("the node's server will not wait for this process: process %d has ended", note["pid"])
    return None


def start_server(job: ServerConfig, timeout: float) -> tuple[ServerInfo, ServerLease]:
    """Starts a server, and waits until it serves. One that dies is started again at the same port, after `PAUSES`, as
    long as this process has the lease.

    Raises:
        ClusterError: it did not come up within `timeout` seconds, or ended.
        whatever it says is wrong.
    """
    held, descriptor = os.pipe()
    lease = ServerLease(descriptor)
    try:
        process, serving = _start(job, held, timeout)
    except BaseException:
        os.close(held)
        raise
    again = replace(job, port=serving.address.port)
    threading.Thread(
        target=_keep,
        args=(process, again, held, weakref.ref(lease), timeout),
        name="gear-data-host-server",
        daemon=True,
    ).start()
    return serving, lease


def _keep(
    process: subprocess.Popen[bytes], job: ServerConfig, held: int, lease: weakref.ref[ServerLease], timeout: float
) -> None:
    """Waits for the server's end, so that it does not stay as a zombie, and starts the next one."""
    pauses, began = iter(PAUSES), time.monotonic()
    try:
        while True:
            status = process.wait()
            if time.monotonic() > began + _SOUND_SECONDS:
                pauses = iter(PAUSES)
            for pause in pauses:
                # It ends by itself when nobody holds it any more.
                if lease() is None:
                    return
                _log.warning("the node's server ended (status %s): started again in %g s", status, pause)
                time.sleep(pause)
                try:
                    process = _start(job, held, timeout)[0]
                    break
                except (GearError, OSError) as error:
                    _log.warning("the node's server could not be started again: %s", error)
            else:
                _log.error("the node's server ended too often: what it alone held is lost to the other nodes")
                return
            began = time.monotonic()
    finally:
        os.close(held)


def _start(job: ServerConfig, held: int, timeout: float) -> tuple[subprocess.Popen[bytes], ServerInfo]:
    process = subprocess.Popen(
        [sys.executable, "-m", "gear_data.cluster.server.node_server", str(held)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[held],
        start_new_session=True,  # a launcher that ends a rank's group must not end it before the other ranks
    )
    try:
        serving = _told(process, job, timeout)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process, serving


def _told(process: subprocess.Popen[bytes], job: ServerConfig, timeout: float) -> ServerInfo:
    """Gives a server its job, and takes its answer."""
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("no pipes were made")
    with process.stdout:
        try:
            with process.stdin:
                process.stdin.write(json.dumps(job.to_json()).encode() + b"\n")
            said = _line(process.stdout.fileno(), timeout)
        except BrokenPipeError:
            said = b""
    if not said:
        raise ClusterError(
            f"the server of {job.dataset} did not come up within {timeout:g} s, or ended", hint="see its log"
        )
    try:
        facts = json.loads(said)
        if "listen" in facts:
            return ServerInfo.from_json(facts)
    except (ValueError, KeyError, TypeError, InvalidArgumentError) as error:
        raise ClusterError(
            f"the server of {job.dataset} said {said[:200]!r} in place of where it listens",
            hint="something in its environment writes to the standard output of every Python",
        ) from error
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
