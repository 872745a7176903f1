"""The probe on the stand-in for CuPy, which registers memory as x86 does."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scripts.gpu.probe import __main__ as probe
from scripts.gpu.probe import device, measurements
from scripts.gpu.probe.mappings import KINDS
from tests.support.cuda.cupy_stand_in import make_cupy
from tests.support.cuda.host_registration import INVALID_VALUE, NOT_SUPPORTED, READ_ONLY_SUPPORTED
from tests.support.cuda.runner import SHIM
from tests.support.cuda.streams import ORDERS, CudaError, Streams

#: Kinds that this process maps for writing.
WRITABLE = {"anonymous", "anonymous, shared", "memfd, shared, read-write", "file, read-write"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.PyDLL:
    """The probe's kernel, for the CPU."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ to build the kernel for the CPU with")
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "read_words.cu").write_text(device.SOURCE)
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", f'-DKERNELS="{folder / "read_words.cu"}"',
               str(SHIM / "library.cpp"), "-o", str(folder / "kernel.so")]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    found = ctypes.PyDLL(str(folder / "kernel.so"))
    found.shim_launch.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p]
    return found


@pytest.fixture
def cupy(library: ctypes.PyDLL, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in with the probe's kernel, and small sizes."""
    streams = Streams(ORDERS["all late"])

    class RawModule:
        def __init__(self, code: str, options: tuple[str, ...], backend: str) -> None:
            assert code == device.SOURCE

        def get_function(self, name: str) -> Any:
            entry = ctypes.cast(getattr(library, name), ctypes.c_void_p)

            def call(grid: tuple[int], block: tuple[int], arguments: tuple[np.uint64, ...]) -> None:
                given = (ctypes.c_uint64 * 24)(*map(int, arguments))
                streams.add(0, lambda: library.shim_launch(entry, grid[0], block[0], given) and None)

            return call

    fake = make_cupy(streams, {}, 1 << 24)
    fake.RawModule = RawModule
    others = {number: 100 + number for number in measurements.ATTRIBUTES.values()}
    fake.host_registration.attributes = {**others, READ_ONLY_SUPPORTED: 0}
    fake.cuda.is_available = lambda: True
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(device, "THREADS", 32)
    monkeypatch.setattr(device, "_WARM_SECONDS", 0.0)
    monkeypatch.setattr(device, "_GROUP_SECONDS", 0.0)
    monkeypatch.setattr(measurements, "REGISTERED_BYTES", 1 << 16)
    monkeypatch.setattr(measurements, "CEILING_BYTES", 1 << 16)
    return fake


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Runs the probe's processes in this one. Returns their arguments."""
    calls: list[list[str]] = []

    def worker(command: list[str], **options: Any) -> Any:
        calls.append(command[3:])
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            status = probe.main(command[3:])
        return SimpleNamespace(returncode=status, stdout=printed.getvalue(), stderr="")

    monkeypatch.setattr(probe, "subprocess", SimpleNamespace(run=worker, TimeoutExpired=subprocess.TimeoutExpired))
    return calls


@pytest.mark.usefixtures("in_this_process")
def test_the_record(cupy: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(["--json", str(tmp_path / "probe.json")]) == 0
    record = json.loads((tmp_path / "probe.json").read_text())
    assert json.loads(capsys.readouterr().out) == record
    assert record.keys() == {"probe", "machine", *measurements.PARTS}
    assert {"cupy-cuda13x", "numpy"} <= record["machine"]["packages"].keys()
    assert record["device"]["HostRegisterReadOnlySupported"] == 0
    assert record["device"]["L2CacheSize"] == 138
    # A fact that the machine lacks is an error, and the others are there.
    assert "error" in record["device"]["link"]
    for kind in KINDS:
        found = record[f"registration: {kind}"]
        assert found.keys() == measurements.FLAGS.keys()
        for name, flags in measurements.FLAGS.items():
            result = found[name]
            assert result["registered"] == (kind in WRITABLE and not flags & 8), (kind, name)
            if not result["registered"]:
                # NotSupported for the flag; InvalidValue for pages that cannot be written.
                assert f"cudaError {NOT_SUPPORTED if flags & 8 else INVALID_VALUE}:" in result["error"]
            else:
                assert set(result.values()) == {True}
                assert len(result) == 6
    assert cupy.registered == {}
    ceilings = record["ceilings"]
    for name in ("copy engine, allocated", "copy engine, registered", "device copy"):
        assert ceilings[name] > 0
    for name in ("SM reads, allocated", "SM reads, registered"):
        assert ceilings[name].keys() == {"4 blocks", "8 blocks"}  # the stand-in has two multiprocessors
        assert min(ceilings[name].values()) > 0


@pytest.mark.usefixtures("in_this_process")
def test_read_only_registration_where_it_is_supported(cupy: Any) -> None:
    cupy.host_registration.attributes[READ_ONLY_SUPPORTED] = 1
    for kind in ("memfd, write-sealed", "file, read-only"):
        found = probe.run_part(f"registration: {kind}")
        assert {name for name, result in found.items() if result["registered"]} == {
            "read-only", "portable | mapped | read-only"
        }  # fmt: skip
        assert found["read-only"] == {
            "registered": True, "same_address": True, "kernel_reads": True, "copy_engine_reads": True
        }  # fmt: skip


@pytest.mark.usefixtures("in_this_process")
def test_wrong_bytes_are_told(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.ProbedDevice, "copy", lambda self, target, source, size: None)
    found = probe.run_part("registration: anonymous")["default"]
    assert (found["kernel_reads"], found["copy_engine_reads"]) == (True, False)


def test_after_an_error_another_process_continues(
    cupy: Any, in_this_process: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(self: Any, address: int, size: int) -> int:
        if len(in_this_process) == 1:
            raise CudaError(700)
        return read_before(self, address, size)

    read_before = device.ProbedDevice.sum_by_kernel
    monkeypatch.setattr(device.ProbedDevice, "sum_by_kernel", read)
    found = probe.run_part("registration: anonymous")
    assert found["default"] == {"error": "CudaError: cudaError 700: in words"}
    assert found["portable"]["kernel_reads"] is True
    assert [call[-1] for call in in_this_process] == ["default", "portable"]


def test_a_process_that_dies_or_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(measurements.FLAGS)

    def dies(command: list[str], **options: Any) -> Any:
        if command[-1] == names[0]:
            raise subprocess.TimeoutExpired(command, options["timeout"], b'["default", 1]\n["portable", 2]\n["map')
        return SimpleNamespace(returncode=-11, stdout="", stderr="Fatal\nSegmentation fault\n")

    monkeypatch.setattr(probe, "subprocess", SimpleNamespace(run=dies, TimeoutExpired=subprocess.TimeoutExpired))
    found = probe.run_part("registration: anonymous")
    assert list(found) == names
    assert (found["default"], found["portable"], found["mapped"]) == (1, 2, {"error": "took more than 90 s"})
    died = {"error": "the process ended with status -11: Segmentation fault"}
    assert [found[name] for name in names[3:]] == [died] * 3
