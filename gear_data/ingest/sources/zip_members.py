"""Checks of the members of zip archives, before they are unpacked."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterable

from gear_data.errors import CorruptSourceError
from gear_data.ingest.location import SourceFile

#: Upper bound on the compression ratio of deflate, which is 1032 to 1 (RFC 1951: 258 bytes from two bits).
MAX_DEFLATE_RATIO = 1040
#: The errors of zipfile, gzip and zlib.
ARCHIVE_ERRORS = (
    zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError, struct.error,
    LookupError, OverflowError,
)  # fmt: skip


def check_sizes(members: Iterable[zipfile.ZipInfo], file: SourceFile) -> None:
    """Raises CorruptSourceError if members claim more bytes than their archive has."""
    if sum(info.compress_size for info in members) > file.size:
        raise CorruptSourceError(
            "its members claim more bytes than the file has",
            file=file.name,
            hint="the file may have been truncated: download it again",
        )


def check_member(info: zipfile.ZipInfo, place: str, *, other_method: tuple[str, str], impossible_size: str) -> None:
    """Checks that a member is stored or deflated, and that its size is possible.

    Args:
        info: the member's header.
        place: archive and member, for the error.
        other_method: message and hint for a member of another compression.
        impossible_size: hint for a member whose size is impossible.

    Raises:
        CorruptSourceError: the member is encrypted, has another compression, or has an impossible size.
    """
    if info.flag_bits & 1:
        raise CorruptSourceError("is encrypted", file=place, hint="write the archive again without a password")
    if info.compress_type == zipfile.ZIP_STORED:
        fits = info.file_size == info.compress_size
    elif info.compress_type == zipfile.ZIP_DEFLATED:
        fits = info.file_size <= MAX_DEFLATE_RATIO * (info.compress_size + 1)
    else:
        raise CorruptSourceError(other_method[0], file=place, hint=other_method[1])
    if not fits:
        raise CorruptSourceError(
            f"claims to unpack {info.compress_size} bytes to {info.file_size}, which is impossible",
            file=place,
            hint=impossible_size,
        )
