"""Device memory that processes share, on a stand-in for CUDA's driver."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from gear_data.errors import DeviceError, DeviceMemoryError
from gear_data.residency.device import shared_device_memory as shared
from gear_data.residency.device import virtual_memory
from gear_data.residency.device.shared_device_memory import shared_device_memory
from gear_data.residency.device.virtual_memory import VirtualMemory
from tests.support.cuda.driver_stand_in import cupy_for, install_driver
from tests.support.running.eventually import eventually

pytestmark = pytest.mark.processes

UNIT, SIZE = 2 << 20, 1000
DATA = bytes(range(250)) * 4


# Opens the memory on each line of input; `drop` drops it. Prints who filled it, and whether the contents are right.
HOLD = """
import ctypes, sys
from tests.support.cuda.driver_stand_in import cupy_for
sys.modules["cupy"] = cupy_for(ctypes.CDLL(sys.argv[1]))
from gear_data.residency.device import virtual_memory
from gear_data.residency.device.shared_device_memory import shared_device_memory
virtual_memory._driver = lambda driver=virtual_memory.load_driver(sys.argv[1]): driver
data = bytes(range(250)) * 4
filled = []
def fill(address):
    filled.append(address)
    ctypes.memmove(address, data, len(data))
    if sys.argv[2:]:
        print("filling", flush=True)
        sys.stdin.readline()
print("started", flush=True)
memory = None
for line in sys.stdin:
    if line == "drop\\n":
        memory = None
    elif memory is None:
        memory = shared_device_memory("columns", len(data), 0, fill)
    if memory is None:
        print("dropped", flush=True)
    else:
        print("filled" if filled else "shared", ctypes.string_at(memory.address, len(data)) == data, flush=True)
"""


class Holder:
    def __init__(self, folder: Path, *arguments: str) -> None:
        command = [sys.executable, "-c", HOLD, str(folder / "libcuda.so"), *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, line: str = "open") -> str:
        self.send(line)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    library = install_driver(monkeypatch, tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "cupy", cupy_for(library))
    return library


@pytest.fixture
def start(driver: ctypes.CDLL, tmp_path: Path) -> Iterator[Callable[..., Holder]]:
    holders: list[Holder] = []

    def run(*arguments: str) -> Holder:
        holders.append(Holder(tmp_path, *arguments))
        return holders[-1]

    yield run
    for holder in holders:
        holder.kill()


def fill(address: int) -> None:
    ctypes.memmove(address, DATA, SIZE)


def refuse(address: int) -> None:
    raise AssertionError("the memory was filled again")


def stopped(process: int) -> bool:
    """Returns whether all threads of a process have stopped."""
    threads = Path(f"/proc/{process}/task").iterdir()
    return all((thread / "stat").read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)


def test_processes_share_one_copy_until_the_last_one_leaves(
    start: Callable[..., Holder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third, fourth = start("slowly"), start(), start(), start()
    for each in (first, second, third, fourth):
        assert each.answer() == "started"
    # The second process waits for the first one, which is killed while it fills.
    assert first.ask() == "filling"
    second.send("open")
    first.kill()
    assert second.answer() == "filled True"
    assert (third.ask(), fourth.ask()) == ("shared True", "shared True")
    # The process that allocated the memory is killed: the others still read it, and pass it on.
    second.kill()
    assert (third.ask(), fourth.ask()) == ("shared True", "shared True")
    memory = shared_device_memory("columns", SIZE, 0, refuse)
    assert ctypes.string_at(memory.address, SIZE) == DATA
    assert third.ask("drop") == "dropped"
    del memory
    gc.collect()
    assert fourth.ask() == "shared True" and third.ask() == "shared True"
    # A stopped holder does not answer, so that a new process makes a copy.
    for each in (third, fourth):
        os.kill(each.process.pid, signal.SIGSTOP)
        assert eventually(partial(stopped, each.process.pid))
    monkeypatch.setattr(shared, "_TIMEOUT", 0.1)
    filled: list[int] = []
    memory = shared_device_memory("columns", SIZE, 0, filled.append)
    assert len(filled) == 1
    # Only this process has a socket: all others are gone, or removed.
    assert len(list(tmp_path.rglob("*.socket"))) == 1
    for each in (third, fourth):
        each.kill()
    del memory
    gc.collect()
    assert not list(tmp_path.rglob("*.socket"))
    # With the last process the memory is gone.
    last = shared_device_memory("columns", SIZE, 0, filled.append)
    assert len(filled) == 2 and ctypes.string_at(last.address, SIZE) == b"\xa5" * SIZE
    assert not caplog.records


def test_memory_is_mapped_and_freed(driver: ctypes.CDLL) -> None:
    first = shared_device_memory("one", SIZE, 0, fill)
    again = shared_device_memory("one", SIZE, 0, refuse)
    other = shared_device_memory("two", UNIT + 1, 0, lambda address: None)
    assert driver.stand_in_mapped() == 4 * UNIT
    assert (first.size, other.size) == (SIZE, UNIT + 1) and first.address != again.address
    ctypes.memset(first.address, 9, 3)
    assert ctypes.string_at(again.address, 4) == b"\x09\x09\x09\x03"
    descriptors = len(os.listdir("/proc/self/fd"))
    del first, other
    assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors - 6)
    assert driver.stand_in_mapped() == UNIT
    assert ctypes.string_at(again.address, 4) == b"\x09\x09\x09\x03"


def test_locks_do_not_grow_with_the_contents(driver: ctypes.CDLL, tmp_path: Path) -> None:
    """A growing dataset has other contents in each generation."""
    kept = [shared_device_memory(name, SIZE, 0, fill) for name in ("one", "two")]
    assert [path.name.partition("-")[0] for path in tmp_path.rglob("*.lock")] == ["two"]
    assert shared_device_memory("one", SIZE, 0, refuse).size == kept[0].size


def test_a_failing_fill_leaves_nothing(driver: ctypes.CDLL, tmp_path: Path) -> None:
    def fail(address: int) -> None:
        raise KeyError("a shard")

    with pytest.raises(KeyError):
        shared_device_memory("one", SIZE, 0, fail)
    gc.collect()
    assert driver.stand_in_mapped() == 0 and not list(tmp_path.rglob("*.socket"))


def test_too_little_device_memory(driver: ctypes.CDLL) -> None:
    driver.stand_in_set(ctypes.c_uint64(UNIT), 1)
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DeviceMemoryError, match="2,097,153 bytes of device memory") as error:
        shared_device_memory("one", UNIT + 1, 0, fill)
    assert "budget" in str(error.value.hint)
    with pytest.raises(DeviceError, match="cuMemImportFromShareableHandle: error 400"):
        VirtualMemory(SIZE, 0, os.open("/dev/null", os.O_RDONLY))
    assert len(os.listdir("/proc/self/fd")) <= descriptors  # threads of earlier tests may still close some


@pytest.mark.parametrize("why", ["the device", "no driver", "no folder"])
def test_a_process_that_cannot_share_copies(
    why: str, driver: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if why == "the device":
        driver.stand_in_set(ctypes.c_uint64(1 << 40), 0)
    elif why == "no driver":
        missing = virtual_memory.load_driver("libmissing.so")
        monkeypatch.setattr(virtual_memory, "_driver", lambda: missing)
    else:
        (tmp_path / f"gear-data-host-{os.geteuid()}").touch()
    own = ctypes.create_string_buffer(SIZE)
    monkeypatch.setattr(shared, "DeviceBuffer", lambda size: SimpleNamespace(address=ctypes.addressof(own), size=size))
    shared_device_memory("one", SIZE, 0, fill)
    assert own.raw == DATA
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "not shared" in record.getMessage()


def test_a_copy_that_cannot_be_mapped(
    driver: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = shared_device_memory("one", SIZE, 0, fill)
    monkeypatch.setattr(shared, "_receive", lambda path, name: os.open("/dev/null", os.O_RDONLY))
    filled: list[int] = []
    second = shared_device_memory("one", SIZE, 0, filled.append)
    assert filled == [second.address] != [first.address]
    assert "cannot be mapped here" in caplog.text
