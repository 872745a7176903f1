"""Members of zip archives: headers that cannot be true, and each flipped byte."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gear_data.errors import CorruptSourceError
from gear_data.ingest.location import locate
from gear_data.ingest.sources.arrays.numpy_files import read_small_npz
from gear_data.ingest.sources.zip_members import check_member

HINTS = {"other_method": ("is compressed otherwise", "save it again"), "impossible_size": "download it"}


def member(method: int, packed: int, size: int, flags: int = 0) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("a")
    info.compress_type, info.compress_size, info.file_size, info.flag_bits = method, packed, size, flags
    return info


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (member(zipfile.ZIP_STORED, 8, 8, flags=1), "is encrypted"),
        (member(zipfile.ZIP_BZIP2, 8, 8), "is compressed otherwise\n  save it again"),
        (member(zipfile.ZIP_STORED, 8, 9), "claims to unpack 8 bytes to 9, .*\n  download it"),
        (member(zipfile.ZIP_DEFLATED, 9, 10401), "claims to unpack 9 bytes to 10401"),
    ],
)
def test_impossible_members(info: zipfile.ZipInfo, message: str) -> None:
    with pytest.raises(CorruptSourceError, match=f"s.zip:a: {message}"):
        check_member(info, "s.zip:a", **HINTS)


@pytest.mark.parametrize("info", [member(zipfile.ZIP_STORED, 8, 8), member(zipfile.ZIP_DEFLATED, 9, 10400)], ids=str)
def test_possible_members(info: zipfile.ZipInfo) -> None:
    check_member(info, "s.zip:a", **HINTS)


def _values(read: Callable[[], Mapping[str, npt.NDArray[Any]]]) -> list[tuple[str, str, list[int]]] | None:
    """Returns name, dtype and elements of each array; None if the archive is refused."""
    try:
        found = read()
    except CorruptSourceError:
        return None
    return [(name, str(array.dtype), array.tolist()) for name, array in found.items()]


@pytest.mark.parametrize("mask", [1, 1 << 3, 0xFF])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_byte_changes_no_value(save: Any, mask: int, tmp_path: Path) -> None:
    """Archives with a flipped byte have the values that NumPy reads, or none."""
    buffer = io.BytesIO()
    save(buffer, actions=np.arange(5), b=np.arange(3, dtype=np.int8))
    path, whole = tmp_path / "a.npz", buffer.getvalue()
    refused = 0
    for place in range(len(whole)):
        damaged = whole[:place] + bytes([whole[place] ^ mask]) + whole[place + 1 :]
        path.write_bytes(damaged)
        (file,) = locate(str(path), None).files
        ours = _values(lambda file=file: read_small_npz(file, {"actions", "b"}))
        if ours is None:
            refused += 1
            continue
        with np.load(io.BytesIO(damaged)) as arrays:
            assert ours == [(name, str(arrays[name].dtype), arrays[name].tolist()) for name, _, _ in ours]
    assert refused > len(whole) // 2
