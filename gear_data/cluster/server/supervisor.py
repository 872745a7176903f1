"""Supervision of a node's server process: start, lease and restart.

The process runs while any rank of the node lives. It is restarted if it dies.

The first rank of a node starts the server. Every rank of the node holds the write end of one pipe, its lease. The
kernel closes the write end when the rank exits, however it exits. The server holds the read end: it reads end-of-file
once all ranks have exited. The first rank keeps the read end as well and passes it to each restarted server, so the
leases of the other ranks stay valid.
"""

from __future__ import annotations

import logging
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass, replace

import msgspec

from gear_data.cluster.error_codec import error_from_bytes
from gear_data.cluster.server.node_server import ServerConfig, ServerInfo
from gear_data.common.secret import encode_json
from gear_data.errors import ClusterError, GearError

#: Seconds before each of several restarts in succession. After the last of them the server is not restarted any more.
RESTART_DELAYS = (0.5, 2.0, 8.0, 30.0, 60.0)
#: After a server has run for this many seconds, its next restart takes the first of `RESTART_DELAYS` again.
_HEALTHY_SECONDS = 600.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeaseLocation:
    """Location of a lease, for other processes of this host.

    Attributes:
        pid, descriptor: the process that holds the lease, and its file descriptor there.
        inode: inode of the pipe, to detect that the descriptor now belongs to another file.
    """

    pid: int
    descriptor: int
    inode: int


class ServerLease:
    """One rank's hold on its node's server.

    It ends with this object, or with the process.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def location(self) -> LeaseLocation:
        """Returns what `join_server_lease` needs in another process of this host."""
        return LeaseLocation(os.getpid(), self._descriptor, os.fstat(self._descriptor).st_ino)


def join_server_lease(location: LeaseLocation) -> ServerLease | None:
    """Returns a lease on the server of another process of this host.

    Returns None, with a warning, if that fails.
    """
    try:
        path = f"/proc/{location.pid}/fd/{location.descriptor}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if os.fstat(descriptor).st_ino == location.inode:
            return ServerLease(descriptor)
        os.close(descriptor)
    except OSError as error:
        _log.warning("the node's server will not wait for this process: %s", error)
        return None
    _log.warning("the node's server will not wait for this process: process %d has exited", location.pid)
    return None


def start_server(config: ServerConfig, timeout: float) -> tuple[ServerInfo, ServerLease]:
    """Starts a server process and waits until it serves.

    A thread restarts a server that dies, at the same port and after `RESTART_DELAYS`, as long as this process holds the
    lease.

    Raises:
        ClusterError: the server did not start within `timeout` seconds, or it exited.
        GearError: the server's own error.
    """
    read_end, write_end = os.pipe()
    lease = ServerLease(write_end)
    try:
        process, info = _launch(config, read_end, timeout)
    except BaseException:
        os.close(read_end)
        raise
    restart_config = replace(config, port=info.address.port)
    threading.Thread(
        target=_supervise,
        args=(process, restart_config, read_end, weakref.ref(lease), timeout),
        name="gear-data-supervisor",
        daemon=True,
    ).start()
    return info, lease


def _supervise(
    process: subprocess.Popen[bytes],
    config: ServerConfig,
    read_end: int,
    lease: weakref.ref[ServerLease],
    timeout: float,
) -> None:
    """Restarts the server each time it exits.

    Returns once this process has no lease any more, or after the last of `RESTART_DELAYS`. Waiting for the process also
    reaps it, so that it does not stay as a zombie.
    """
    delays, started = iter(RESTART_DELAYS), time.monotonic()
    try:
        while True:
            status = process.wait()
            if time.monotonic() > started + _HEALTHY_SECONDS:
                delays = iter(RESTART_DELAYS)
            for delay in delays:
                if lease() is None:
                    # This process has ended its lease, and nobody else restarts the server.
                    return
                _log.warning("the node's server exited (status %s): restarting it in %g s", status, delay)
                time.sleep(delay)
                try:
                    process = _launch(config, read_end, timeout)[0]
                    break
                except (GearError, OSError) as error:
                    _log.warning("the node's server could not be restarted: %s", error)
            else:
                _log.error(
                    "the node's server exited too often and is not restarted: other nodes lose the shards that only "
                    "this node holds"
                )
                return
            started = time.monotonic()
    finally:
        os.close(read_end)


def _launch(config: ServerConfig, read_end: int, timeout: float) -> tuple[subprocess.Popen[bytes], ServerInfo]:
    """Starts the server process; kills it if it does not serve in time."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gear_data.cluster.server.node_server", str(read_end)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[read_end],
        start_new_session=True,  # a launcher that kills a rank's process group must not kill the other ranks' server
    )
    try:
        info = _handshake(process, config, timeout)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process, info


def _handshake(process: subprocess.Popen[bytes], config: ServerConfig, timeout: float) -> ServerInfo:
    """Sends the configuration to a server and waits for its answer.

    Raises:
        ClusterError: there is no valid answer within `timeout` seconds.
        GearError: the server's own error.
    """
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the server process has no pipes")
    with process.stdout:
        try:
            with process.stdin:
                process.stdin.write(encode_json(config).reveal() + b"\n")
            answer = _read_line(process.stdout.fileno(), timeout)
        except BrokenPipeError:
            answer = b""
    if not answer:
        raise ClusterError(
            f"the server of {config.dataset} did not start within {timeout:g} s, or exited", hint="see its log"
        )
    info = _parse_info(answer)
    if info is None:
        raise error_from_bytes(answer, config.dataset) or ClusterError(
            f"the server of {config.dataset} wrote {answer[:200]!r} instead of its address",
            hint="another program writes to the standard output of every Python process in this environment",
        )
    return info


def _parse_info(line: bytes) -> ServerInfo | None:
    try:
        return msgspec.json.decode(line, type=ServerInfo)
    except (ValueError, RecursionError):
        return None


def _read_line(descriptor: int, timeout: float) -> bytes:
    """Returns a line from a pipe.

    Empty if it does not arrive in time, or the other end is closed.
    """
    deadline, line = time.monotonic() + timeout, b""
    with selectors.DefaultSelector() as ready:
        ready.register(descriptor, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not ready.select(max(0.0, deadline - time.monotonic())):
                return b""
            data = os.read(descriptor, 1 << 16)
            if not data:
                return b""
            line += data
    return line
