"""The doctor's line about processes that share a GPU.

Folders are as MPS makes them, and NVML's answers are given.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gear_data.cli import doctor
from gear_data.cli.gpu import sharing
from gear_data.kernels.cuda.nvml import NvidiaDriver

OFF = NvidiaDriver("580.65", (13, 0), ("H100", "H100"), (None, None))
#: The second GPU is divided.
ON = NvidiaDriver("580.65", (13, 0), ("H100", "H100"), (None, ("MIG-1a", "MIG-2b")))


@pytest.fixture
def pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sharing, "_DEFAULT_PIPES", str(tmp_path / "nvidia-mps"))
    monkeypatch.setattr(sharing, "_HOST_NAMESPACE", os.stat("/proc/self/ns/pid").st_ino)
    return tmp_path / "nvidia-mps"


def daemon(pipes: Path, process: int) -> None:
    """Makes the files of a daemon of MPS."""
    pipes.mkdir(exist_ok=True)
    (pipes / "control").touch()
    (pipes / "nvidia-cuda-mps-control.pid").write_text(f"{process}\n")


def test_without_mps_and_mig(pipes: Path) -> None:
    assert sharing.describe_sharing(OFF) == ("neither MPS nor MIG: the processes on a GPU take turns", None)


def test_mps(pipes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # This process stands for the daemon.
    monkeypatch.setattr(sharing, "_CONTROL", "nvidia-cuda-mps-control")
    daemon(pipes, os.getpid())
    own = Path("/proc/self/comm").read_text()
    try:
        Path("/proc/self/comm").write_text("nvidia-cuda-mps-control")
        assert Path("/proc/self/comm").read_text() == "nvidia-cuda-mps\n"
        assert sharing.describe_sharing(OFF) == (f"MPS in {pipes}", None)
        monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25")
        found, remedy = sharing.describe_sharing(OFF)
        assert "25 % of the multiprocessors" in found and remedy is None
    finally:
        Path("/proc/self/comm").write_text(own)
    for process in (os.getpid(), 2**22 + 1):  # another program, and none
        daemon(pipes, process)
        found, remedy = sharing.describe_sharing(OFF)
        assert found.endswith("its daemon has ended") and remedy == "start the daemon again: nvidia-cuda-mps-control -d"
    # In a container, the id may be of another namespace.
    monkeypatch.setattr(sharing, "_HOST_NAMESPACE", 0)
    assert sharing.describe_sharing(OFF)[1] is None


@pytest.mark.parametrize(("installed", "words"), [(None, "pass its folder into the container"), ("/bin/x", "-d")])
def test_a_folder_without_a_daemon(
    installed: str | None, words: str, pipes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA goes on without MPS then, in silence."""
    daemon(pipes, 1)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(pipes.parent / "other"))
    monkeypatch.setattr(shutil, "which", lambda name: installed)
    found, remedy = sharing.describe_sharing(OFF)
    assert found.startswith(f"no MPS daemon in {pipes.parent / 'other'}") and words in str(remedy)


@pytest.mark.parametrize(
    ("visible", "found", "remedy"),
    [
        (None, "MIG on 1 of 2 GPUs, 2 instances", "set CUDA_VISIBLE_DEVICES to one"),
        ("0", "MIG on 1 of 2 GPUs, 2 instances", "set CUDA_VISIBLE_DEVICES to one"),
        ("MIG-2b", "2 instances; this process uses MIG-2b", None),
        ("MIG-2", "2 instances; this process uses MIG-2", None),
        ("MIG-2b,MIG-1a", "this process uses MIG-2b", "uses only the first instance"),
        ("MIG-3c", "this process uses MIG-3c", "is no instance of this machine"),
        ("MIG-GPU-0/1/0", "this process uses MIG-GPU-0/1/0", None),
    ],
)
def test_mig(visible: str | None, found: str, remedy: str | None, pipes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(doctor, "driver", lambda: ON)
    check = doctor._gpu_sharing()
    assert check.found.endswith(found)
    assert (check.ok, check.remedy) == (True, None) if remedy is None else remedy in str(check.remedy)


def test_mig_without_instances(pipes: Path) -> None:
    found, remedy = sharing.describe_sharing(NvidiaDriver("580.65", (13, 0), ("H100",), ((),)))
    assert found == "MIG on 1 of 1 GPUs, 0 instances" and "nvidia-smi mig -cgi" in str(remedy)


@pytest.mark.parametrize("found", [None, NvidiaDriver("580.65", (13, 0), ())])
def test_without_a_gpu(found: NvidiaDriver | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "driver", lambda: found)
    check = doctor._gpu_sharing()
    assert not check.ok and check.remedy == "see the gpu line"
