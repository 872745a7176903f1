"""Headers of zip members that cannot be true are refused before unpacking."""

from __future__ import annotations

import zipfile

import pytest

from gear_data.errors import CorruptSourceError
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
