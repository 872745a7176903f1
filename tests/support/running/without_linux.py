"""What runs where the system has only what macOS has, as a program.

python -m tests.support.running.without_linux FOLDER

It removes Linux's functions, constants and folders from Python before gear_data is imported.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import mmap
import os
import re
import resource
import select
import signal
import socket
import sys
import time
from pathlib import Path

#: Names that Python has on Linux and lacks on macOS.
LINUX = {
    os: r"sched_(?!yield)\w+|SCHED_\w+|memfd_create|MFD_\w+|O_(TMPFILE|DIRECT|PATH|NOATIME|LARGEFILE|RSYNC)|posix_f\w+"
    r"|POSIX_FADV\w+|copy_file_range|splice|SPLICE_\w+|eventfd\w*|EFD_\w+|pidfd_open|P_PIDFD"
    r"|getrandom|GRND_\w+|pipe2|\w+xattr"
    r"|XATTR_\w+|setres[ug]id|getres[ug]id|fdatasync|waitid|setns|unshare|RWF_\w+|timerfd_\w+",
    fcntl: r"F_\w*SEAL\w*|F_OFD_\w+|F_NOTIFY|F_[GS]ETPIPE_SZ|F_[GS]ETLEASE|F_[GS]ETSIG|F_ADD_SEALS|DN_\w+",
    mmap: r"MAP_(POPULATE|STACK|DENYWRITE|EXECUTABLE|NORESERVE)|MADV_(DONTFORK|DOFORK|HUGEPAGE|NOHUGEPAGE|REMOVE"
    r"|MERGEABLE|UNMERGEABLE|DONTDUMP|DODUMP|HWPOISON)",
    resource: r"prlimit|RUSAGE_THREAD|RLIMIT_(MSGQUEUE|NICE|OFILE|RTPRIO|RTTIME|SIGPENDING)",
    select: r"epoll|EPOLL\w+",
    signal: r"sigtimedwait|sigwaitinfo|pidfd_send_signal|SIG(STKFLT|PWR|POLL|CLD|RTMIN|RTMAX)",
    socket: r"TCP_(USER_TIMEOUT|KEEPIDLE|QUICKACK|DEFER_ACCEPT|CORK|INFO|LINGER2|SYNCNT|WINDOW_CLAMP)"
    r"|SOCK_(CLOEXEC|NONBLOCK)"
    r"|SOCK_(CLOEXEC|NONBLOCK)|AF_(NETLINK|PACKET|VSOCK|ALG|CAN|TIPC)|MSG_NOSIGNAL|SO_(PEERCRED|DOMAIN|PROTOCOL|BINDTODEVICE|MARK)",
    errno: r"EREMOTEIO|EUCLEAN|EBADFD|ENOTUNIQ|ENOMEDIUM|EMEDIUMTYPE|ECHRNG|ENOKEY|EKEY\w+|EISNAM|ENAVAIL|ENOTNAM"
    r"|ERESTART|ESTRPIPE|EUNATCH|EXFULL|EBAD[ERQS]\w*|ENOANO|ENONET|ECOMM|EREMCHG|ELIB\w+",
    time: r"CLOCK_(BOOTTIME|TAI)",
}  # fmt: skip
FOLDERS = ("/proc", "/sys")


def remove_linux() -> None:
    """Removes the names and hides the folders."""
    for module, names in LINUX.items():
        for name in list(vars(module)):
            if re.fullmatch(names, name):
                delattr(module, name)
    sys.addaudithook(refuse)
    stat = os.stat

    def without_folders(path: object, *arguments: object, **options: object) -> os.stat_result:
        refuse("stat", (path,))
        return stat(path, *arguments, **options)  # type: ignore[arg-type]

    os.stat = without_folders  # type: ignore[assignment]


def refuse(event: str, arguments: tuple[object, ...]) -> None:
    """Raises where a hidden folder is looked into."""
    if event in ("open", "os.listdir", "os.scandir", "stat") and isinstance(arguments[0], (str, os.PathLike)):
        path = os.fspath(arguments[0])
        if isinstance(path, str) and path.startswith(FOLDERS):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def main(folder: Path) -> None:
    import numpy as np

    import gear_data
    from gear_data.cli import main as command
    from gear_data.errors import HostMemoryError

    def run(*arguments: object) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            assert not command([str(each) for each in arguments]), arguments

    rng = np.random.default_rng(0)
    rewards = rng.normal(size=60).astype(np.float32)
    arrays = {"observations": rng.normal(size=(60, 3)).astype(np.float32), "actions": rng.integers(0, 5, 60)}
    np.savez(
        folder / "source.npz",
        **arrays,
        rewards=rewards,
        terminals=np.arange(60) % 20 == 19,
        timeouts=np.zeros(60, bool),
    )
    run("convert", folder / "source.npz", folder / "dataset")
    run("convert", folder / "source.npz", folder / "dataset", "--overwrite")
    run("inspect", folder / "dataset", "--full")
    run("verify", folder / "dataset")
    run("feed", folder / "dataset", "--steps", 3, "--batch-size", 4)
    run("export", folder / "dataset", folder / "rows.parquet", "--format", "parquet")
    run("doctor")

    ds = gear_data.open(folder / "dataset")
    assert np.array_equal(ds[1]["rewards"], rewards[20:40])
    for prefetch in (0, 2):
        loader = gear_data.SequenceLoader(ds, 8, context=5, steps=3, prefetch=prefetch)
        assert len(list(loader)) == 3
    with gear_data.Writer(folder / "recorded") as writer:
        for step in range(5):
            writer.append(rewards=float(step), terminated=step == 4)
    assert gear_data.open(folder / "recorded").num_steps == 5
    assert ds.filter("length > 1").save(folder / "saved").episodes == 3
    try:
        gear_data.open(folder / "dataset", residency="host").values("rewards", 0, 1)
    except HostMemoryError as error:
        assert "residency='mmap'" in str(error), error
    else:
        raise AssertionError("no HostMemoryError")
    print("ok")


if __name__ == "__main__":
    remove_linux()
    main(Path(sys.argv[1]))
