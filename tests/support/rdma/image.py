"""Builds the image of the RDMA guests in this user's cache folder.

It consists of Debian's kernel, a small initramfs, and pyverbs.

    python tests/support/rdma/image.py          as root on Debian 12, x86-64; installs packages with apt

`make test-all` runs it if $GEAR_DATA_REQUIRE_VERBS is set. Without root, apt or Debian 12 it prints the reason and does
nothing. The tests are then skipped, or fail if they are required.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import platform
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: QEMU, and the tools of a guest. iproute2 contains `rdma`, which creates the device.
PACKAGES = ("qemu-system-x86", "busybox-static", "kmod", "iproute2", "libibverbs1", "ibverbs-providers")
#: Packages that are unpacked, not installed: the kernel is not for this machine, and pyverbs would install systemd.
UNPACKED = ("linux-image-amd64", "python3-pyverbs")
MODULES = (
    "virtio_pci",
    "virtio_net",
    "9pnet_virtio",
    "9p",
    "overlay",
    "crc32_generic",
    "ib_uverbs",
    "rdma_rxe",
    "veth",
    "sch_netem",
)
#: Folders of the kernel with these modules and their dependencies.
_FOLDERS = tuple(
    f"/kernel/{name}/"
    for name in (
        "arch/x86/crypto", "crypto", "drivers/infiniband/core", "drivers/infiniband/sw", "drivers/net",
        "drivers/virtio", "fs/9p", "fs/fscache", "fs/netfs", "fs/overlayfs", "net/9p", "net/core", "net/ipv4",
        "net/ipv6", "net/sched",
    )
)  # fmt: skip

#: Runs /out/command over the host's files. These are read-only: writes go to the guest's memory.
_INIT = """#!/bin/busybox sh
b=/bin/busybox
for kind in proc sysfs devtmpfs; do $b mount -t $kind none /$kind; done
for module in /modules/*; do $b insmod $module || echo "no $module"; done
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=loose,ro host /host
$b mount -t tmpfs none /new && $b mkdir /new/upper /new/work
$b mount -t overlay -o lowerdir=/host,upperdir=/new/upper,workdir=/new/work none /root
$b mount --move /proc /root/proc; $b mount --move /sysfs /root/sys; $b mount --move /devtmpfs /root/dev
$b mkdir -p /root/dev/shm /root/run /root/out
for place in dev/shm run; do $b mount -t tmpfs none /root/$place; done
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576 out /root/out
$b chroot /root /bin/sh /out/command
echo $? > /root/out/status
$b poweroff -f
"""


def cache() -> Path:
    """Returns the image's folder. Every version of this file has another one."""
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    return Path(base, "gear-data-rdma-guest", version)


def obstacle() -> str | None:
    """Returns the reason why this machine cannot build the image; None if it can."""
    if os.geteuid() != 0:
        return "not root"
    if platform.machine() != "x86_64" or "bookworm" not in Path("/etc/os-release").read_text():
        return "not Debian 12 on x86-64"
    return None if shutil.which("apt-get") else "no apt-get"


def make() -> None:
    folder = cache()
    if (folder / "initramfs").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        _make(Path(work), folder)


def _make(work: Path, folder: Path) -> None:
    _run("apt-get", "-qq", "update")
    _run("apt-get", "-qq", "install", "-y", "--no-install-recommends", *PACKAGES)
    depends = _run("apt-cache", "depends", UNPACKED[0]).split()
    # That package is empty and depends on the newest kernel's package.
    kernel = depends[depends.index("Depends:") + 1]
    _run("apt-get", "-qq", "download", kernel, UNPACKED[1], cwd=work)
    _unpack(next(work.glob("linux-image-*.deb")), work / "kernel", ("/boot/vmlinuz-", "/lib/modules/"))
    _unpack(next(work.glob("python3-pyverbs_*.deb")), work / "pyverbs", ("/usr/lib/python3/dist-packages/",))
    compressed = next((work / "kernel/boot").iterdir()).read_bytes()
    (work / "vmlinux").write_bytes(_elf(compressed))
    _initramfs(work / "kernel", work / "initramfs")
    for name in ("pyverbs", "vmlinux", "initramfs"):
        target = folder / name
        if target.is_dir():
            shutil.rmtree(target)
        (work / name).replace(target)


def _run(*command: str, cwd: Path | None = None) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _unpack(package: Path, folder: Path, prefixes: tuple[str, ...]) -> None:
    """Extracts files of a Debian package by their prefixes.

    Of kernel modules, only those in `_FOLDERS`.
    """
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as process,
        tarfile.open(fileobj=process.stdout, mode="r|") as archive,
    ):
        for member in archive:
            name = member.name.removeprefix(".")
            module = name.endswith(".ko")
            if name.startswith(prefixes) and (not module or any(part in name for part in _FOLDERS)):
                archive.extract(member, folder, filter="tar")


def _elf(image: bytes) -> bytes:
    """Returns the kernel inside a bzImage (Documentation/arch/x86/boot.rst).

    QEMU starts it directly. Emulating the code that unpacks a bzImage takes long.
    """
    first = (image[0x1F1] + 1) * 512
    offset, length = struct.unpack_from("<II", image, 0x248)
    return lzma.LZMADecompressor().decompress(image[first + offset : first + offset + length])


def _initramfs(kernel: Path, target: Path) -> None:
    """Writes a cpio archive of format "newc".

    The format is documented in Documentation/driver-api/early-userspace/buffer-format.rst of the kernel.

    It is not compressed, for the reason given in `_elf`.
    """
    files: list[tuple[str, int, bytes, tuple[int, int]]] = [
        (name, 0o40755, b"", (0, 0))
        for name in ("bin", "modules", "proc", "sysfs", "devtmpfs", "host", "new", "root", "dev")
    ]
    files += [
        ("dev/console", 0o20600, b"", (5, 1)),
        ("dev/null", 0o20666, b"", (1, 3)),
        ("init", 0o100755, _INIT.encode(), (0, 0)),
        ("bin/busybox", 0o100755, Path("/bin/busybox").read_bytes(), (0, 0)),
    ]
    for number, module in enumerate(_modules(kernel)):
        # Modules are loaded in the order of their names.
        files.append((f"modules/{number:03}-{module.name}", 0o100644, module.read_bytes(), (0, 0)))
    files.append(("TRAILER!!!", 0, b"", (0, 0)))
    with target.open("wb") as archive:
        for number, (name, mode, data, device) in enumerate(files, 1):
            fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name) + 1, 0)
            head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
            for part in (head, data):
                archive.write(part + bytes(-len(part) % 4))


def _modules(kernel: Path) -> Iterator[Path]:
    """The modules and those that they need, before them."""
    version = next((kernel / "lib/modules").iterdir()).name
    _run("/sbin/depmod", "-b", str(kernel), version)
    seen = set[str]()
    for name in MODULES:
        shown = _run("/sbin/modprobe", "-d", str(kernel), "-S", version, "--show-depends", name)
        for line in shown.splitlines():
            # insmod PATH OPTION=VALUE ..., or "builtin" and a name.
            kind, path, *_ = line.split()
            if kind == "insmod" and path not in seen:
                seen.add(path)
                yield Path(path)


if __name__ == "__main__":
    reason = obstacle()
    if reason is None:
        make()
    sys.stdout.write(f"{cache()}\n" if reason is None else f"no RDMA tests: {reason}\n")
