"""A bundle is packed, divided into parts, unpacked and installed, without a network."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from scripts.gpu import installation, parts
from scripts.gpu.errors import GpuCheckError
from tests.support.makers.wheels import make_wheel

HERE = ".".join(map(str, sys.version_info[:2]))
#: A wheel's bytes in a bundle, in MiB, as of November 2026: llvmlite and others, packed.
LARGEST = 41
Write = Callable[..., list[Path]]


@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [
        ([], 10, []),
        ([10, 10], 10, [0, 1]),
        ([1, 9, 5, 4, 1], 10, [0, 0, 1, 1, 1]),
        ([3, 3, 3], 100, [0, 0, 0]),
    ],
)
def test_division(sizes: list[int], limit: int, expected: list[int]) -> None:
    assert parts.divide(sizes, limit) == expected


def test_a_wheel_that_fits_no_part_is_an_error() -> None:
    with pytest.raises(GpuCheckError, match="11 bytes packed, and a part has room for 10"):
        parts.divide([3, 11], 10)


def test_the_checkout_leaves_room_for_the_largest_wheel() -> None:
    tree = parts.checkout_bytes()
    assert 1 << 20 < tree < parts.LIMIT - (LARGEST << 20)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A shared library with symbols that `strip` removes, and a function `answer`."""
    compiler = shutil.which("g++")
    if compiler is None or shutil.which("strip") is None:
        pytest.skip("g++ or strip is missing")
    folder = tmp_path_factory.mktemp("library")
    (folder / "answer.cpp").write_text(
        'static int hidden() { return 42; }\nextern "C" int answer() { return hidden(); }\n'
    )
    command = [compiler, "-g3", "-shared", "-fPIC", str(folder / "answer.cpp"), "-o", str(folder / "answer.so")]
    subprocess.run(command, check=True)
    return (folder / "answer.so").read_bytes()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: bytes) -> Write:
    """Writes a bundle of small wheels, in parts of 100 kB."""
    monkeypatch.setattr(parts, "_LARGE", 50_000)
    monkeypatch.setattr(parts, "LIMIT", parts._OVERHEAD + 100_000 + 7)
    noise = np.random.default_rng(0).integers(0, 256, 60_000, np.uint8).tobytes()

    def make(version: str = "1", python: str = HERE) -> list[Path]:
        folder = tmp_path / f"wheels-{version}"
        folder.mkdir()
        wheels = [
            make_wheel(
                folder,
                "llvmlite",
                version,
                files={"llvmlite/binding/libllvmlite.so": library, "llvmlite/more.bin": noise},
            ),
            make_wheel(
                folder, "gear-made-up", version, ["gear-needed", "numpy>=1"], {"gear_made_up.py": b"VALUE = 7\n"}
            ),
            make_wheel(folder, "gear-needed", version, files={"gear_needed/noise.bin": noise[:40_000]}),
            make_wheel(folder, "numpy", "999", files={"numpy/noise.bin": noise[:40_000]}),
        ]
        roots = [f"gear-made-up=={version}", f"llvmlite=={version}"]
        return parts.write_parts(wheels, tmp_path / "bundle", python, roots, tree=7)

    return make


def test_parts_are_unpacked_in_any_order_and_installed(write: Write, tmp_path: Path) -> None:
    written = write()
    assert len(written) > 1
    assert all(path.stat().st_size <= parts.LIMIT - 7 for path in written)
    folder = tmp_path / "unpacked"
    for part in written[:0:-1]:
        assert installation.unpack([part], folder)
    assert not (folder / "site").exists()
    assert installation.unpack([written[0]], folder) == []
    site = folder / "site"
    # The NumPy of this Python satisfies, so the bundle's is not installed.
    assert {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")} == {
        "gear_made_up.py", "gear_needed", "llvmlite"
    }  # fmt: skip
    assert ctypes.CDLL(str(site / "llvmlite/binding/libllvmlite.so")).answer() == 42
    # Unpacked again, or another bundle: it replaces the first one.
    assert installation.unpack([tmp_path / "bundle"], folder) == []
    assert installation.unpack([write("2")[0]], folder) != []
    assert not site.exists()


def test_large_wheels_are_valid_after_stripping(write: Write, tmp_path: Path, library: bytes) -> None:
    wheels = {name: data for part in write() for name, data in parts.read_part(part)[1]}
    path = tmp_path / "llvmlite.whl"
    path.write_bytes(wheels["llvmlite-1-py3-none-any.whl"])
    with zipfile.ZipFile(path) as archive:
        stripped = archive.read("llvmlite/binding/libllvmlite.so")
        assert 0 < len(stripped) < len(library)
        digest = base64.urlsafe_b64encode(hashlib.sha256(stripped).digest()).decode().rstrip("=")
        record = archive.read("llvmlite-1.dist-info/RECORD").decode().splitlines()
        assert f"llvmlite/binding/libllvmlite.so,sha256={digest},{len(stripped)}" in record
        # The name of RECORD comes last, as the format recommends.
        assert archive.namelist()[-1].endswith("/RECORD")


@pytest.mark.parametrize("where", [0.3, 0.9])
def test_a_damaged_part_is_told(where: float, write: Write, tmp_path: Path) -> None:
    part = write()[0]
    data = bytearray(part.read_bytes())
    # Inside of the wheels.
    with tarfile.open(part) as archive:
        last = archive.getmembers()[-1]
    data[last.offset_data + int(where * last.size)] ^= 0xFF
    part.write_bytes(data)
    with pytest.raises(GpuCheckError, match=r"gear-data-gpu-1-of-\d\.tar: .* is damaged: .*; upload the part again"):
        installation.unpack([part], tmp_path / "unpacked")


def test_what_is_no_part_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"nothing")
    with pytest.raises(GpuCheckError, match=r"x\.tar is not a part of a bundle"):
        installation.unpack([tmp_path / "x.tar"], tmp_path / "unpacked")
    with pytest.raises(GpuCheckError, match="no parts in"):
        installation.unpack([tmp_path], tmp_path / "unpacked")


def test_a_bundle_for_another_python_is_told(write: Write, tmp_path: Path) -> None:
    with pytest.raises(GpuCheckError, match=rf"the bundle is for Python 2\.7, and this is {HERE}: set PYTHON"):
        installation.unpack(write(python="2.7"), tmp_path / "unpacked")
