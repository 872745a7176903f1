"""Tests of a GPU that break CUDA in their process leave the other tests another one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from scripts.gpu.errors import ROOT
from scripts.gpu.steps import command_of

#: As much of CuPy as the fixture and the hook use, and Zarr's plugin of pytest. An error stays as long as its process.
CUPY = """
from types import SimpleNamespace

class CUDARuntimeError(RuntimeError):
    pass

broken = False

def synchronize():
    if broken:
        raise CUDARuntimeError("cudaErrorIllegalAddress")

runtime = SimpleNamespace(
    CUDARuntimeError=CUDARuntimeError, deviceSynchronize=synchronize, getDeviceCount=lambda: 0
)
cuda = SimpleNamespace(runtime=runtime, is_available=lambda: True)
"""
TESTS = """
import cupy
import pytest

pytestmark = pytest.mark.usefixtures("_device")

def test_before():
    cupy.cuda.runtime.deviceSynchronize()

def test_that_breaks():
    cupy.broken = True
    cupy.cuda.runtime.deviceSynchronize()

@pytest.mark.parametrize("number", range(3))
def test_after(number):
    cupy.cuda.runtime.deviceSynchronize()
"""


def test_a_worker_that_cuda_fails_in_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text(CUPY)
    (tmp_path / "conftest.py").write_text("from tests.gpu.conftest import _device, pytest_runtest_logfinish\n")
    (tmp_path / "test_made_up.py").write_text(TESTS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    step = command_of("tests", sys.executable, tmp_path, 1.0)
    assert step is not None
    # Workers of the test run that this test is a part of are no workers of the run below.
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*step[:-1], "-n", "1", "--rootdir", str(tmp_path), "-c", "/dev/null", str(tmp_path)], env=environment,
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    passed = re.findall(r"PASSED \S*::(\S+)", done.stdout)
    assert sorted(passed) == ["test_after[0]", "test_after[1]", "test_after[2]", "test_before"], done.stdout
    assert "cudaErrorIllegalAddress" in done.stdout
