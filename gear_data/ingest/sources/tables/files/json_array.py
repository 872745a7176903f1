"""Files that are one JSON array of objects, read in bounded memory.

`load_dataset` reads such a file whole, and rounds numbers to ten decimals on the way. Here they keep all digits.
"""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Iterator
from typing import IO

import pyarrow as pa
import pyarrow.json

#: Characters of a block of rows, as many as `load_dataset` has bytes in a block of JSON lines.
_BLOCK = 10 << 20
_CHUNK = 1 << 20
#: An object of more bytes is taken for a damaged one, so that the rest of a file is not read to memory.
_MOST = 1 << 30
_SPACE = " \t\n\r"
_decode = json.JSONDecoder().raw_decode


def is_array(stream: IO[bytes]) -> bool:
    """Returns whether the first character of a stream begins an array.

    Raises:
        ValueError: the stream begins with `null`. Arrow's reader crashes on such a first row.
    """
    head = stream.read(64).removeprefix(codecs.BOM_UTF8).lstrip()
    if head.startswith(b"null"):
        raise ValueError("the first row is null, not an object")
    return head.startswith(b"[")


def array_tables(stream: IO[bytes]) -> Iterator[pa.Table]:
    """Yields tables of the objects in an array, with the types of their values.

    Raises:
        ValueError: the stream is not one JSON array of objects in UTF-8.
        pa.ArrowInvalid: the objects of a block do not have one type.
    """
    lines: list[str] = []
    size = 0
    for text in _objects(stream):
        lines.append(text.replace("\n", " ").replace("\r", " "))
        size += len(text)
        if size >= _BLOCK:
            yield _table(lines)
            lines, size = [], 0
    if lines:
        yield _table(lines)


def _table(lines: list[str]) -> pa.Table:
    data = "\n".join(lines).encode()
    # One block: Arrow would infer the types of the others separately, and refuse an object across two of them.
    table = pa.json.read_json(io.BytesIO(data), read_options=pa.json.ReadOptions(block_size=len(data) + 1))
    if len(table) != len(lines):
        raise ValueError(f"{len(table)} rows were read of {len(lines)} objects")
    return table


def _objects(stream: IO[bytes]) -> Iterator[str]:
    """Yields the texts of the objects in an array."""
    text = _Text(stream)
    text.take("[")
    if text.peek() == "]":
        text.take("]")
    else:
        yield text.object()
        while text.take(",]") == ",":
            yield text.object()
    if text.peek(at_end=""):
        raise ValueError("there is text after the array")


class _Text:
    """Text of a stream, of which only the part being read is in memory."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._place = 0

    def peek(self, at_end: str | None = None) -> str:
        """Returns the next character that is not space, or `at_end`."""
        while True:
            while self._place < len(self._text):
                if self._text[self._place] not in _SPACE:
                    return self._text[self._place]
                self._place += 1
            if not self._read(_CHUNK):
                if at_end is None:
                    raise ValueError("the array does not end")
                return at_end

    def take(self, allowed: str) -> str:
        """Returns the next character and moves beyond it."""
        if (found := self.peek()) not in allowed:
            raise ValueError(f"holds {found!r}, where {allowed[-1]!r} is expected")
        self._place += 1
        return found

    def object(self) -> str:
        """Returns the text of the next object and moves beyond it."""
        if self.peek() != "{":
            raise ValueError(f"the array holds {self._text[self._place : self._place + 20]!r}, not an object")
        chunk = _CHUNK
        while True:
            try:
                _, end = _decode(self._text, self._place)
            except json.JSONDecodeError:
                chunk *= 2  # so that a large object is parsed only a few times
                if chunk > _MOST or not self._read(chunk):
                    raise
                continue
            found, self._place = self._text[self._place : end], end
            return found

    def _read(self, size: int) -> bool:
        """Reads more text. Returns False at the end of the stream."""
        data = self._stream.read(size)
        self._text, self._place = self._text[self._place :] + self._decoder.decode(data, final=not data), 0
        return bool(data)
