"""Messages of Arrow IPC files, looked at before Arrow reads them.

Reading an uncompressed file copies nothing. A compressed file of some kilobytes may fill the memory, as may a file that
lists one dictionary many times.

File.fbs and Message.fbs of Arrow define the fields, and "FlatBuffers internals" their bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from gear_data.errors import CorruptShardError

_MAGIC = b"ARROW1"
#: Bytes before the first message: the magic bytes, padded.
_HEAD_BYTES = 8
#: Bytes after the footer: its length (int32), and the magic bytes.
_TAIL_BYTES = 10
#: Bytes before the flat buffer of a message: a mark, and the length.
_PREFIX_BYTES = 8
#: Most bytes that belong to no message. Writers align messages, and mark their end. A sparse file has more.
_GAP_BYTES = 1 << 20
# Fields of the tables Footer, Message, DictionaryBatch and RecordBatch, and the number of the kind DictionaryBatch.
_DICTIONARIES, _RECORD_BATCHES = 2, 3
_KIND, _HEADER = 1, 2
_DATA = 1
_ROWS = 0
_COMPRESSION = 3
_DICTIONARY_BATCH = 2


def check_blocks(data: pa.Buffer, name: str, hint: str) -> None:
    """Checks that the messages of a file are uncompressed and fill the file.

    Args:
        data: the whole file.
        name: name of the file, for errors.
        hint: remedy, for errors.

    Raises:
        CorruptShardError: the file has no footer, a message is compressed, or the messages do not fill the file.
    """
    try:
        view = memoryview(data)
        footer = _footer(view)
        end = len(view) - _TAIL_BYTES - len(footer)
        filled = _HEAD_BYTES + _PREFIX_BYTES + _number(view, "<i", _HEAD_BYTES + 4)
        for offset, metadata_bytes, body_bytes in _blocks(footer):
            filled += metadata_bytes + body_bytes
            if min(offset, metadata_bytes, body_bytes) < 0 or max(filled, offset + metadata_bytes + body_bytes) > end:
                raise ValueError(f"its footer lists {body_bytes} bytes at byte {offset}, outside of the messages")
            if is_compressed(view[offset + _PREFIX_BYTES : offset + metadata_bytes]):
                raise ValueError("it is compressed")
        if end - filled > _GAP_BYTES:
            raise ValueError(f"{end - filled} of its {len(view)} bytes belong to no message")
    except (ValueError, struct.error) as error:
        raise CorruptShardError(f"not an uncompressed Arrow IPC file: {error}", file=name, hint=hint) from error


def is_compressed(metadata: memoryview) -> bool:
    """Returns whether a message of a record batch, or of a dictionary, has compressed buffers.

    Raises:
        ValueError: the flat buffer is damaged.
        struct.error: the flat buffer is too short.
    """
    table = _target(metadata, 0)
    kind, header = _field(metadata, table, _KIND), _field(metadata, table, _HEADER)
    if kind is None or header is None:
        raise ValueError("a message has no kind or no header")
    batch = _target(metadata, header)
    if _number(metadata, "<B", kind) == _DICTIONARY_BATCH:
        data = _field(metadata, batch, _DATA)
        if data is None:
            raise ValueError("a dictionary has no values")
        batch = _target(metadata, data)
    return _field(metadata, batch, _COMPRESSION) is not None


def batch_rows(metadata: memoryview) -> int:
    """Returns the number of rows that a record batch's message declares.

    Raises:
        ValueError: the flat buffer is damaged.
        struct.error: the flat buffer is too short.
    """
    header = _field(metadata, _target(metadata, 0), _HEADER)
    if header is None:
        raise ValueError("a message has no header")
    rows = _field(metadata, _target(metadata, header), _ROWS)
    return 0 if rows is None else _number(metadata, "<q", rows)


def _footer(view: memoryview) -> memoryview:
    if bytes(view[: len(_MAGIC)]) != _MAGIC or bytes(view[-len(_MAGIC) :]) != _MAGIC:
        raise ValueError("its first or last bytes are not the format's")
    end = len(view) - _TAIL_BYTES
    size = _number(view, "<i", end)
    if not 0 < size <= end:
        raise ValueError(f"its footer has {size} bytes")
    return view[end - size : end]


def _blocks(footer: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yields offset, bytes of metadata and bytes of data of each message.

    The schema is not among them.
    """
    root = _number(footer, "<I", 0)
    for index in (_DICTIONARIES, _RECORD_BATCHES):
        place = _field(footer, root, index)
        if place is not None:
            vector = _target(footer, place)
            for block in range(_number(footer, "<I", vector)):
                yield struct.unpack_from("<qi4xq", footer, vector + 4 + 24 * block)


def _field(buffer: memoryview, table: int, index: int) -> int | None:
    """Returns the place of a table's field; None if the table does not have it."""
    entries = table - _number(buffer, "<i", table)
    entry = 4 + 2 * index
    if entry >= _number(buffer, "<H", entries):
        return None
    offset = _number(buffer, "<H", entries + entry)
    return table + offset if offset else None


def _target(buffer: memoryview, place: int) -> int:
    """Returns the place that an offset points to."""
    return place + _number(buffer, "<I", place)


def _number(buffer: memoryview, kind: str, place: int) -> int:
    if not 0 <= place < len(buffer):  # a negative place would count from the end
        raise ValueError(f"an offset points to byte {place} of {len(buffer)}")
    return int(struct.unpack_from(kind, buffer, place)[0])
