"""Two processes on a GPU share the columns, also after the first one dropped them."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

import gear_data
from tests.support.cuda.loader_checks import convert

# Prints the first bytes of the first column on the device, once at the start and again for each line of input.
READ = """
import sys
import gear_data
from tests.gpu.test_shared_memory import first_bytes
ds = gear_data.open(sys.argv[1], residency="device")
print(first_bytes(ds).hex(), flush=True)
for _ in sys.stdin:
    print(first_bytes(ds).hex(), flush=True)
"""


def first_bytes(ds: gear_data.Dataset) -> bytes:
    import cupy

    values = ctypes.create_string_buffer(8)
    address = int(ds.store.device_columns().addresses[0, 0])
    cupy.cuda.runtime.memcpy(ctypes.addressof(values), address, 8, cupy.cuda.runtime.memcpyDeviceToHost)
    return values.raw


@pytest.mark.usefixtures("_device")
def test_another_process_maps_the_copy_and_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = convert(11, tmp_path / "one")
    ds = gear_data.open(path, residency="device")
    assert first_bytes(ds) == ds.steps(ds.schema.columns[0].name, 0, 1).tobytes()[:8]
    cupy.cuda.runtime.memset(int(ds.store.device_columns().addresses[0, 0]), 77, 8)
    cupy.cuda.runtime.deviceSynchronize()
    command = [sys.executable, "-c", READ, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "4d" * 8
        del ds
        print("again", file=process.stdin, flush=True)
        assert process.stdout.readline().strip() == "4d" * 8
        process.stdin.close()
