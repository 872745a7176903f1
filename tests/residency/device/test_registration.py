"""Pinned memory: one registered copy for all processes.

The stand-in for a GPU refuses what x86 refuses.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gear_data
from gear_data import Dataset, SequenceLoader
from gear_data.errors import DeviceError, HostMemoryError, InvalidArgumentError
from gear_data.residency import shared_memory
from gear_data.residency.device import registration
from gear_data.residency.device.registration import FALLBACK_VARIABLE, RegisteredMemory
from tests.support.cuda.gpu_stand_in import StandInGpu
from tests.support.cuda.host_registration import MAPPED, PORTABLE, READ_ONLY, READ_ONLY_SUPPORTED
from tests.support.cuda.loader_checks import OPTIONS, RESIDENCIES, copies, from_device, on_gpu, same, tiered
from tests.support.cuda.segments import mapped_segments
from tests.support.running.eventually import eventually

pytestmark = pytest.mark.processes

SHARED = ("pinned", "tiered")


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives each test a separate registry.

    What earlier tests still have mapped does not count.
    """
    gc.collect()
    _of_earlier_tests.clear()
    _of_earlier_tests.update(inode for kind in SHARED for _, inode in mapped_segments(kind))
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


@pytest.fixture
def flags(gpu: StandInGpu) -> list[int]:
    """Collects the flags of the registrations."""
    found, accepted = list[int](), gpu.cupy.cuda.runtime.hostRegister

    def register(address: int, size: int, flags: int) -> None:
        found.append(flags)
        accepted(address, size, flags)

    gpu.cupy.cuda.runtime.hostRegister = register
    return found


_of_earlier_tests: set[int] = set()


def mappings(kind: str) -> list[tuple[str, int]]:
    return [each for each in mapped_segments(kind) if each[1] not in _of_earlier_tests]


def seals(inode: int) -> int:
    """Returns the seals of a segment that this process has open."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if entry.stat().st_ino == inode and "memfd" in os.readlink(entry):
                return fcntl.fcntl(int(entry.name), fcntl.F_GET_SEALS)
    raise AssertionError(inode)


@pytest.mark.parametrize("residency", SHARED)
def test_registered_as_x86_allows_it(gpu: StandInGpu, path: Path, flags: list[int], residency: str) -> None:
    """Nothing in this process can write the memory afterwards."""
    expected = copies(SequenceLoader(gear_data.open(path), **OPTIONS))
    ds = RESIDENCIES[residency](path)
    assert flags == [PORTABLE | MAPPED]
    assert len(gpu.cupy.registered) == 1
    ((permissions, inode),) = mappings(residency)
    assert permissions == "r--s"
    assert seals(inode) & 15 == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    same(from_device(gpu, on_gpu(ds)), expected)
    # The CPU reads the same memory, which it cannot write.
    assert not ds.episode(0)["observations"].flags.writeable
    # Nothing is copied to memory of this process only.
    assert eventually(lambda: gpu.cupy.pinned == 0)
    del ds
    assert eventually(lambda: not gpu.cupy.registered and not mappings(residency))


def test_devices_that_can_register_for_reading_only(gpu: StandInGpu, path: Path, flags: list[int]) -> None:
    gpu.cupy.host_registration.attributes[READ_ONLY_SUPPORTED] = 1
    ds = gear_data.open(path, residency="pinned")
    assert flags == [PORTABLE | MAPPED | READ_ONLY]
    assert len(gpu.cupy.registered) == 1
    del ds


def test_host_and_pinned_have_a_copy_each(gpu: StandInGpu, path: Path) -> None:
    """`host` keeps its write seal, which `pinned` cannot have."""
    host = gear_data.open(path, residency="host")
    pinned = gear_data.open(path, residency="pinned")
    again = gear_data.open(path, residency="pinned")
    assert len({inode for _, inode in mappings("pinned")}) == 1
    with pytest.raises(DeviceError, match="Permission denied") as error:
        RegisteredMemory(host.store.shards.touch(0)[0])  # type: ignore[attr-defined]
    assert FALLBACK_VARIABLE in str(error.value.hint)
    del pinned, again


def refuse(gpu: StandInGpu, status: int | None) -> None:
    """Makes CUDA refuse with an error, or register without an address on the device."""
    runtime = gpu.cupy.cuda.runtime

    def fail(*_: Any) -> None:
        raise runtime.CUDARuntimeError(status)

    if status is None:
        runtime.pointerGetAttributes = lambda address: SimpleNamespace(devicePointer=0)
    else:
        runtime.hostRegister = fail


REFUSALS = {1: DeviceError, 801: DeviceError, 2: HostMemoryError, None: DeviceError}


@pytest.mark.parametrize("residency", SHARED)
@pytest.mark.parametrize("status", REFUSALS)
def test_a_refusal_is_an_error(gpu: StandInGpu, path: Path, status: int | None, residency: str) -> None:
    refuse(gpu, status)
    with pytest.raises(REFUSALS[status], match=r"registering [\d,]+ bytes of shared memory") as error:
        RESIDENCIES[residency](path)
    hint = str(error.value.hint)
    assert f"{FALLBACK_VARIABLE}=copy" in hint
    # CUDA does not count pinned memory against the limit of locked memory.
    assert "ulimit" not in hint
    assert gpu.cupy.pinned == 0
    assert not gpu.cupy.registered
    assert {permissions for permissions, _ in mappings(residency)} <= {"r--s"}


@pytest.mark.parametrize("residency", SHARED)
@pytest.mark.parametrize("status", REFUSALS)
def test_a_copy_for_each_process_if_allowed(
    gpu: StandInGpu,
    path: Path,
    status: int | None,
    residency: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(FALLBACK_VARIABLE, "copy")
    refuse(gpu, status)
    expected = copies(SequenceLoader(gear_data.open(path), **OPTIONS))
    same(from_device(gpu, on_gpu(RESIDENCIES[residency](path))), expected)
    assert caplog.text.count("this process makes its own pinned copy") == 1
    assert not gpu.cupy.registered


def test_an_unknown_fallback(gpu: StandInGpu, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FALLBACK_VARIABLE, "yes")
    with pytest.raises(InvalidArgumentError, match="GEAR_DATA_PINNED_FALLBACK is 'yes'; set it to error or copy"):
        gear_data.open(path, residency="pinned")


def test_too_little_memory_for_a_plan(gpu: StandInGpu, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = gear_data.open(path)
    plan = ds.residency_plan(0, 20_000)
    monkeypatch.setattr(shared_memory, "available_memory", lambda: 10_000)
    with pytest.raises(HostMemoryError, match=r"takes [\d,]+ bytes of memory, 10,000 are available") as error:
        ds.place(plan)
    assert "host_bytes" in str(error.value.hint)


def test_equal_plans_share_one_copy(gpu: StandInGpu, path: Path) -> None:
    ds = gear_data.open(path)
    placed = [ds.place(ds.residency_plan(5_000, 10_000)) for _ in range(2)]
    assert len({inode for _, inode in mappings("tiered")}) == 1
    placed.append(ds.place(ds.residency_plan(5_000, 5_000)))
    assert len({inode for _, inode in mappings("tiered")}) == 2
    del placed


def test_unregistered_before_the_process_ends(gpu: StandInGpu, path: Path) -> None:
    ds = gear_data.open(path, residency="pinned")
    registration._unregister_all()
    assert not gpu.cupy.registered
    del ds


# Opens a dataset in every way that pins memory, collects batches on the device, and holds everything until its input
# ends. Prints the inodes of its pinned memory, their permissions, and the sum of each batch's bytes.
PROCESS = """
import sys, json
from pathlib import Path
import pytest
from tests.residency.device.test_registration import answer
from tests.support.cuda.gpu_stand_in import stand_in

folder, path = map(Path, sys.argv[1:])
with pytest.MonkeyPatch.context() as patch, stand_in(patch, folder, order="all late") as gpu:
    found, opened = answer(gpu, path)
    print(json.dumps(found), flush=True)
    sys.stdin.read()
"""


def answer(gpu: StandInGpu, path: Path) -> tuple[dict[str, Any], list[Dataset]]:
    """Returns (this process's pinned memory and its batches' sums, the datasets)."""
    pinned = gear_data.open(path, residency="pinned")
    opened = [pinned, pinned.with_discount(0.9), tiered(path)]
    batches = [from_device(gpu, on_gpu(ds, preset="decision_transformer"), 5) for ds in opened]
    found = {
        "memory": [[*each] for kind in SHARED for each in mappings(kind)],
        "registered": len(gpu.cupy.registered),
        "sums": [sums(each) for each in batches],
    }
    return found, opened


def sums(batches: list[dict[str, Any]]) -> list[list[float]]:
    return [[float(value.double().nansum()) for value in batch.values()] for batch in batches]


@pytest.fixture
def process(gpu: StandInGpu, path: Path, libraries: Path) -> Iterator[subprocess.Popen[str]]:
    """Starts another training process on the same GPU."""
    command = [sys.executable, "-c", PROCESS, str(libraries), str(path)]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield started
    started.kill()
    started.communicate()


def test_processes_share_one_pinned_copy(gpu: StandInGpu, path: Path, process: subprocess.Popen[str]) -> None:
    """Several training processes read it, on one GPU or on several."""
    assert process.stdout is not None
    theirs = json.loads(process.stdout.readline())
    ours, opened = answer(gpu, path)
    assert theirs == ours
    # The columns, the returns of the discount, and the pinned part of the plan.
    assert len({inode for _, inode in ours["memory"]}) == len(ours["memory"]) == ours["registered"] == 3
    assert {permissions for permissions, _ in ours["memory"]} == {"r--s"}
    single = gear_data.open(path)
    for ds, found in zip([single, single.with_discount(0.9), single], ours["sums"], strict=True):
        assert found == sums(copies(SequenceLoader(ds, **OPTIONS, preset="decision_transformer"), 5))
    del opened
