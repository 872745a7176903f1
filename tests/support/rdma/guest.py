"""Guests with a soft-RoCE device under QEMU.

A guest has this machine's files, read-only, and the kernel of `image`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.rdma import image

_ADDRESS = "10.9.0"
_KERNEL = "console=ttyS0 quiet panic=-1 rdinit=/init mitigations=off nokaslr clocksource=hpet no_timer_check audit=0"
#: Shell code that the guest runs before the command: creates a network, and an RDMA device over it.
_NETWORK = f"""export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
ip link set lo up
ip link set eth0 mtu 4200
ip addr add {_ADDRESS}.NUMBER/24 dev eth0 && ip link set eth0 up && rdma link add rxe0 type rxe netdev eth0 || exit 90
"""


def obstacle() -> str | None:
    """Returns the reason why no guest can start on this machine; None if one can."""
    if os.geteuid() != 0:
        return "the guest reads all files of this machine, which needs root"
    if not shutil.which("qemu-system-x86_64"):
        return "QEMU is not installed; run tests/support/rdma/image.py"
    if not (image.cache() / "initramfs").exists():
        return "the guest's image does not exist; run tests/support/rdma/image.py"
    if sys.version_info[:2] != (3, 11):
        return "Debian 12's pyverbs is for Python 3.11"
    return None


def address(number: int) -> str:
    """Returns the address of a guest on the guests' network, by its number."""
    return f"{_ADDRESS}.{number}"


class Guest:
    """A guest that runs one command, and ends with it.

    The command runs in this process's working folder, on one processor: on a busy machine, a second one waits for the
    first one's locks.

    Args:
        out: folder that the guest writes to, as /out.
        command: the command.
        variables: environment variables of the command.
        number: number of the guest, used in its address.
        wire: one end of a stream. Its other end is the other guest's.
    """

    def __init__(
        self,
        out: Path,
        command: Sequence[str],
        variables: Mapping[str, str],
        number: int,
        wire: socket.socket,
    ) -> None:
        self._out = out
        paths = [str(image.cache() / "pyverbs/usr/lib/python3/dist-packages"), variables.get("PYTHONPATH", "")]
        exports = {**variables, "PYTHONPATH": os.pathsep.join(paths)}
        lines = [_NETWORK.replace("NUMBER", str(number)), f"cd {shlex.quote(os.getcwd())}"]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in exports.items()]
        lines.append(f"{shlex.join(command)} > /out/log 2>&1")
        (out / "command").write_text("\n".join(lines))
        shares = [("host", "/", ",readonly=on"), ("out", str(out), "")]
        self._process = subprocess.Popen(
            [
                # It ends with this process, however this process ends.
                *("setpriv", "--pdeathsig", "KILL"),
                *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
                # Emulation: KVM is rarely available. Instructions that repeat for each byte are slow there.
                *("-machine", "pc", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,-erms,-fsrm", "-m", "3G"),
                *("-kernel", str(image.cache() / "vmlinux"), "-initrd", str(image.cache() / "initramfs")),
                *("-append", _KERNEL, "-serial", f"file:{out}/console"),
                *(
                    word
                    for tag, path, how in shares
                    for word in (
                        "-virtfs",
                        f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap{how}",
                    )
                ),
                *("-netdev", f"socket,id=wire,fd={wire.fileno()}"),
                *("-device", f"virtio-net-pci,netdev=wire,mac=52:54:00:00:00:{number:02x},host_mtu=4200"),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=[wire.fileno()],
        )

    @property
    def log(self) -> str:
        """Output of the command so far."""
        path = self._out / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def state(self) -> str:
        """Returns whether the guest runs, and the ends of its command's output and of its console, for messages."""
        status = self._process.poll()
        running = "QEMU runs" if status is None else f"QEMU ended with status {status}"
        console = self._out / "console"
        printed = console.read_text(errors="replace") if console.exists() else ""
        return f"{running}. The command printed:\n{self.log[-6000:]}\nThe console ends with:\n{printed[-3000:]}"

    def wait(self, seconds: float) -> int:
        """Waits for the command and returns its exit status.

        Raises:
            TimeoutError: it takes longer. The guest is killed.
            RuntimeError: the guest ended without a status.
        """
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            state = self.state()
            self.kill()
            raise TimeoutError(f"the guest did not end within {seconds:g} s; {state}") from None
        status = self._out / "status"
        if not status.exists():
            raise RuntimeError(f"the guest ended before its command; {self.state()}")
        return int(status.read_text())

    def wait_for(self, text: str, seconds: float) -> None:
        """Waits until the command has printed a text.

        Raises:
            TimeoutError: it takes longer.
            RuntimeError: the guest ended without printing the text.
        """
        limit = time.monotonic() + seconds
        while text not in self.log:
            if self._process.poll() is not None and text not in self.log:
                raise RuntimeError(f"the guest did not print {text!r}; {self.state()}")
            if time.monotonic() > limit:
                raise TimeoutError(f"the guest did not print {text!r} within {seconds:g} s; {self.state()}")
            time.sleep(0.1)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
