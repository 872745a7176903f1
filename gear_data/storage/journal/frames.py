"""Frames: how the records of a journal are found, also behind damaged bytes.

A record is an Arrow message with the steps of one episode. Arrow allows padding between the header and the body of a
message. There is the frame: a mark that `find` finds, sizes, the number of the record, a checksum, and texts.

The checksum covers the header, the frame and the texts. The texts have a checksum of the steps.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import xxhash

from gear_data.storage.arrow_files import WRITE_OPTIONS

#: The first bytes of each frame.
MARK = b"\x89gear journal\r\n\x1a"
#: Mark, journal, number, bytes before the frame, bytes of the record, bytes of the texts, checksum.
_FIXED = struct.Struct("<16s16sQQQQ16s")
_CHECKSUM = slice(_FIXED.size - 16, _FIXED.size)
#: No record is shorter.
MIN_BYTES = 8 + _FIXED.size
_PREFIX = struct.Struct("<Ii")
_CONTINUATION = 0xFFFFFFFF


class Bytes(Protocol):
    """The bytes of a journal, such as `bytes` or a map of the file."""

    def find(self, mark: bytes, start: int, /) -> int:
        """Returns the first place of a mark at or behind a byte; -1 if there is none."""

    def __getitem__(self, part: slice, /) -> bytes:
        """Returns a part, as far as there are bytes."""


@dataclass(frozen=True)
class Frame:
    """A record of a journal, whose header and texts are intact.

    Attributes:
        journal: id of the journal, 16 bytes.
        number: of the record in the journal, from 0.
        start, at, end: first byte of the record and of the frame, and first byte behind the record. `end` may be behind
            the end of a torn journal.
        texts: see `framed`.
    """

    journal: bytes
    number: int
    start: int
    at: int
    end: int
    texts: tuple[bytes, ...]


def framed(batch: pa.RecordBatch, journal: bytes, number: int, texts: Sequence[bytes]) -> bytes:
    """Returns a record.

    Args:
        batch: the steps of an episode.
        journal: id of the journal, 16 bytes.
        number: of the record in the journal.
        texts: what is known of the episode besides its steps. Without zero bytes.
    """
    message = _message(batch)
    size = _PREFIX.unpack_from(message)[1]
    text = b"\0".join(texts)
    padded = text + bytes(-len(text) % 8)
    header = _PREFIX.pack(_CONTINUATION, size + _FIXED.size + len(padded)) + message[_PREFIX.size : _PREFIX.size + size]
    length = len(message) + _FIXED.size + len(padded)
    fixed = bytearray(_FIXED.pack(MARK, journal, number, len(header), length, len(text), bytes(16)))
    fixed[_CHECKSUM] = _checksum(header, fixed, padded)
    return b"".join((header, fixed, padded, message[_PREFIX.size + size :]))


def _message(batch: pa.RecordBatch) -> memoryview:
    """Returns a batch as an Arrow message."""
    try:
        return memoryview(batch.serialize())
    except pa.ArrowCapacityError:  # 2^31 elements or more: only streams have the option
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=WRITE_OPTIONS) as writer:
            writer.write_batch(batch)
        messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
        messages.read_next_message()  # the schema
        return memoryview(messages.read_next_message().serialize())


def find_frame(data: Bytes, first: int, at: int, journal: bytes = b"", number: int = 0) -> Frame | None:
    """Returns the first intact frame behind a byte; None if there is none.

    Args:
        data: the journal.
        first: the record begins at or behind this byte.
        at: the frame begins at or behind this byte.
        journal: id of the journal; empty: any.
        number: the smallest number of the record.
    """
    while (at := data.find(MARK, at)) >= 0:
        frame = _frame(data, first, at)
        # An episode may have another journal among its values.
        if frame is not None and frame.number >= number and journal in (frame.journal, b""):
            return frame
        at += 1
    return None


def _frame(data: Bytes, first: int, at: int) -> Frame | None:
    fixed = bytearray(data[at : at + _FIXED.size])
    if len(fixed) < _FIXED.size:
        return None
    _, journal, number, before, length, text_bytes, checksum = _FIXED.unpack(fixed)
    start, text_start = at - before, at + _FIXED.size
    padded = data[text_start : text_start + text_bytes + -text_bytes % 8]
    if start < first or len(padded) < text_bytes or length < before + _FIXED.size + len(padded):
        return None
    fixed[_CHECKSUM] = bytes(16)
    if _checksum(data[start:at], fixed, padded) != checksum:
        return None
    return Frame(journal, number, start, at, start + length, tuple(padded[:text_bytes].split(b"\0")))


def _checksum(header: bytes, fixed: bytes | bytearray, padded: bytes) -> bytes:
    digest = xxhash.xxh3_128(header)
    digest.update(fixed)
    digest.update(padded)
    return digest.digest()
