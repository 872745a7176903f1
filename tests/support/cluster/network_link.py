"""A link between two network namespaces, which can be impaired and cut.

It does the work of `tc netem` in a process, since not every kernel has netem. `tests/support/rdma/guest_network.py`
uses the real one in an emulated machine, where whole training runs would take too long.

python network_link.py NAMESPACE NAMESPACE joins the devices `gear0` of both. Each line of its input is `loss delay`:
the share of packets to drop, and seconds of delay.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import selectors
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

HOSTS = ("10.77.0.1", "10.77.0.2")
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000


def missing() -> str | None:
    """Returns the reason why this machine cannot have such a link; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no `ip` (iproute2)"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    name = f"gear-test-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return None if made.returncode == 0 else f"no network namespace can be made: {made.stderr.strip()}"


class Link:
    """A link between two namespaces with the addresses `HOSTS`."""

    def __init__(self, names: tuple[str, str], process: subprocess.Popen[str]) -> None:
        self._names = names
        self._process = process

    def command(self, host: int) -> list[str]:
        """Returns the prefix of a command that runs on one of the hosts."""
        return ["ip", "netns", "exec", self._names[host]]

    def become(self, *, loss: float = 0.0, delay: float = 0.0) -> None:
        self._process.stdin.write(f"{loss} {delay}\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]


@contextlib.contextmanager
def link() -> Iterator[Link]:
    """Yields a link. Deletes its namespaces at the end."""
    names = (f"gear-a-{os.getpid()}", f"gear-b-{os.getpid()}")
    with contextlib.ExitStack() as held:
        for name, host in zip(names, HOSTS, strict=True):
            _ip("netns", "add", name)
            held.callback(_ip, "netns", "del", name)
            _ip("-n", name, "tuntap", "add", "dev", "gear0", "mode", "tun")
            _ip("-n", name, "address", "add", f"{host}/24", "dev", "gear0")
            for device in ("lo", "gear0"):
                _ip("-n", name, "link", "set", device, "up")
        command = [sys.executable, __file__, *names]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        held.callback(process.wait)
        held.callback(process.kill)
        if process.stdout is None or process.stdout.readline() != "up\n":
            raise RuntimeError("the link did not start")
        yield Link(names, process)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def enter(namespace: str) -> None:
    """Moves this thread, and the threads that it starts, into a network namespace."""
    entry = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(entry, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(entry)


def _open_device(namespace: str) -> int:
    enter(namespace)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"gear0", _IFF_TUN | _IFF_NO_PI))
    return device


def main(*namespaces: str) -> None:
    devices = [_open_device(namespace) for namespace in namespaces]
    loss, delay = 0.0, 0.0
    drawn = random.Random(0)
    waiting: list[tuple[float, int, int, bytes]] = []  # time, number, device, packet
    number = 0
    print("up", flush=True)
    with selectors.DefaultSelector() as ready:
        for device, other in zip(devices, reversed(devices), strict=True):
            ready.register(device, selectors.EVENT_READ, other)
        ready.register(0, selectors.EVENT_READ)
        while True:
            wait = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            for key, _ in ready.select(wait):
                if key.fd == 0:
                    line = os.read(0, 1 << 10)
                    if not line:
                        return
                    loss, delay = map(float, line.split()[-2:])
                    continue
                with contextlib.suppress(BlockingIOError):
                    packet = os.read(key.fd, 1 << 16)
                    if drawn.random() >= loss:
                        number += 1
                        heapq.heappush(waiting, (time.monotonic() + delay, number, key.data, packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, other, packet = heapq.heappop(waiting)
                with contextlib.suppress(OSError):
                    os.write(other, packet)


if __name__ == "__main__":
    main(*sys.argv[1:])
