"""The probe on the stand-in for CuPy, which registers memory as x86 does."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.gpu.probe import __main__ as probe
from scripts.gpu.probe import device, measurements
from scripts.gpu.probe.mappings import KINDS
from tests.support.cuda import cupy_stand_in

#: Kinds that this process maps for writing.
WRITABLE = {"anonymous", "anonymous, shared", "memfd, shared, read-write", "file, read-write"}


@pytest.fixture
def cupy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in, with the probe's kernel instead of gear-data's, and small sizes."""
    source = tmp_path / "read_words.cu"
    source.write_text(device.SOURCE)
    monkeypatch.setattr(cupy_stand_in.cuda, "_SOURCES", (str(source),))
    monkeypatch.setattr(cupy_stand_in, "_libraries", cupy_stand_in._libraries.__wrapped__)
    monkeypatch.setattr(device, "THREADS", 32)
    monkeypatch.setattr(device, "_WARM_SECONDS", 0.0)
    monkeypatch.setattr(device, "_GROUP_SECONDS", 0.0)
    monkeypatch.setattr(measurements, "REGISTERED_BYTES", 1 << 16)
    monkeypatch.setattr(measurements, "CEILING_BYTES", 1 << 16)
    with cupy_stand_in.stand_in(monkeypatch, tmp_path, order="all late") as gpu:
        gpu.cupy.attributes.update({number: 100 + number for number in measurements.ATTRIBUTES.values()})
        gpu.cupy.attributes[113] = 0
        gpu.cupy.cuda.is_available = lambda: True
        yield gpu.cupy


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
                assert f"cudaError {801 if flags & 8 else 1}:" in result["error"]
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
    cupy.attributes[113] = 1
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
            raise cupy_stand_in.CudaError(700)
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
