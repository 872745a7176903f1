"""A machine with a soft-RoCE device, under QEMU: this machine's files, read-only, and Debian's kernel; see `image`."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.rdma import image

_ADDRESS = "10.9.0"
_KERNEL = "console=ttyS0 quiet panic=-1 rdinit=/init mitigations=off nokaslr clocksource=hpet no_timer_check audit=0"
#: Runs in the guest, before the command: a network of one machine, or two machines', with an RDMA device over it.
_NETWORK = f"""export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
ip link set lo up
if [ -e /sys/class/net/eth0 ]; then ip link set eth0 mtu 4200; else ip link add eth0 type dummy; fi
ip addr add {_ADDRESS}.NUMBER/24 dev eth0 && ip link set eth0 up && rdma link add rxe0 type rxe netdev eth0 || exit 90
"""


def obstacle() -> str | None:
    """Why there can be no guest here; None where there can."""
    if os.geteuid() != 0:
        return "reading all files from the guest takes root"
    if not shutil.which("qemu-system-x86_64"):
        return "no QEMU (tests/support/rdma/image.py installs it)"
    if not (image.cache() / "initramfs").exists():
        return "no kernel for a guest (tests/support/rdma/image.py makes it)"
    if sys.version_info[:2] != (3, 11):
        return "Debian 12's pyverbs is for Python 3.11"
    return None


def address(number: int) -> str:
    """Of the guest of this number, on its own network."""
    return f"{_ADDRESS}.{number}"


class Guest:
    """A guest that runs one command, in this process's working folder, and ends with it.

    Args:
        out: a folder that it sees as /out, and writes to.
        command: what it runs.
        variables: of the command's environment.
        number: of the machine, in its address.
        wire: a port of this machine: the guests with the same are on one network; the first, number 1, listens.
    """

    def __init__(
        self,
        out: Path,
        command: Sequence[str],
        variables: Mapping[str, str],
        number: int = 1,
        wire: int | None = None,
    ) -> None:
        self._out = out
        paths = [str(image.cache() / "pyverbs/usr/lib/python3/dist-packages"), variables.get("PYTHONPATH", "")]
        exports = {**variables, "PYTHONPATH": os.pathsep.join(paths)}
        lines = [_NETWORK.replace("NUMBER", str(number)), f"cd {shlex.quote(os.getcwd())}"]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in exports.items()]
        lines.append(f"{shlex.join(command)} > /out/log 2>&1")
        (out / "command").write_text("\n".join(lines))
        shares = [("host", "/", ",readonly=on"), ("out", str(out), "")]
        network = [] if wire is None else self._network(number, wire)
        self._process = subprocess.Popen(
            [
                *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
                # Not KVM, which is rarely there: every instruction is emulated.
                *(
                    "-machine",
                    "pc",
                    "-accel",
                    "tcg,thread=multi,tb-size=512",
                    "-cpu",
                    "max",
                    "-smp",
                    "2" if wire is None else "1",
                    "-m",
                    "3G",
                ),
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
                *network,
            ],
            stdin=subprocess.DEVNULL,
        )

    @staticmethod
    def _network(number: int, wire: int) -> list[str]:
        role = "listen" if number == 1 else "connect"
        card = f"virtio-net-pci,netdev=wire,mac=52:54:00:00:00:{number:02x},host_mtu=4200"
        return ["-netdev", f"socket,id=wire,{role}=127.0.0.1:{wire}", "-device", card]

    @property
    def log(self) -> str:
        """What the command wrote, so far."""
        path = self._out / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, seconds: float) -> int:
        """The command's exit status. Raises TimeoutError, and ends the guest, if it takes longer."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"the guest took more than {seconds:g} s: {self.log[-3000:]}") from None
        status = self._out / "status"
        if not status.exists():
            raise RuntimeError(f"the guest did not finish: {(self._out / 'console').read_text()[-3000:]} {self.log}")
        return int(status.read_text())

    def wait_for(self, text: str, seconds: float) -> None:
        """Waits till its command wrote something. Raises TimeoutError."""
        limit = time.monotonic() + seconds
        while text not in self.log:
            if time.monotonic() > limit or self._process.poll() is not None:
                raise TimeoutError(f"no {text!r} within {seconds:g} s: {self.log[-3000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
