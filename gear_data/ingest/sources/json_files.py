"""Reading of a source's JSON metadata, with typed errors for damaged files."""

from __future__ import annotations

import json
import re
from typing import Any

from gear_data.common.paths import printable
from gear_data.errors import CorruptSourceError
from gear_data.ingest.location import SourceFile

#: Limit for a metadata file. Minari's files have some megabytes, because they list the bounds of image spaces.
_MAX_BYTES = 256 << 20
#: Half of a surrogate pair, escaped or in UTF-8. Whole pairs match too.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
_CORRECT = "correct the JSON, or restore the file"


def read_json_object(file: SourceFile) -> dict[str, Any]:
    """Reads a file that holds one JSON object.

    Raises:
        CorruptSourceError: the file is not JSON, not an object, or larger than 256 MiB.
    """
    return json_object(_read(file), file.name)


def read_json_lines(file: SourceFile) -> list[dict[str, Any]]:
    """Reads a file that holds one JSON object per line; empty lines are skipped.

    Objects over several lines, and one JSON array of objects, are read, too: files that people edit are often so.

    Raises:
        CorruptSourceError: a line is not a JSON object, or the file is larger than 256 MiB.
    """
    text = _read(file)
    try:
        return [json_object(line, file.name, row=row) for row, line in enumerate(text.splitlines()) if line.strip()]
    except CorruptSourceError as error:
        found = _objects(text)
        if not found:
            error.hint = "write one JSON object per line, or restore the file"
            raise
        return found


def _objects(text: bytes) -> list[dict[str, Any]]:
    """Returns the objects of a text that has them one after another, or in one array; empty for another text."""
    decoder, found = json.JSONDecoder(), []
    try:
        decoded, end = text.decode(), 0
        while (end := _after_spaces(decoded, end)) < len(decoded):
            value, end = decoder.raw_decode(decoded, end)
            found += value if isinstance(value, list) else [value]
    except (ValueError, RecursionError):
        return []
    return [_printable_texts(each) for each in found] if all(isinstance(each, dict) for each in found) else []


def _after_spaces(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def json_object(text: str | bytes, file: str, *, column: str | None = None, row: int | None = None) -> dict[str, Any]:
    """Parses a text that is one JSON object.

    Halves of surrogate pairs, which no file can hold as text, become `\\ud...`.

    Args:
        text: the JSON text.
        file: the file that holds the text, for the error.
        column: the key or column that holds the text, for the error.
        row: the line or row of the text, for the error.

    Raises:
        CorruptSourceError: the text is not JSON, or not an object.
    """
    try:
        value = json.loads(text)
        if _SURROGATE.search(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text):
            value = _printable_texts(value)
    except (ValueError, RecursionError) as error:
        message = f"is not JSON: {error}"
        raise CorruptSourceError(message, file=file, column=column, row=row, hint=_CORRECT) from error
    if not isinstance(value, dict):
        raise CorruptSourceError("is not a JSON object", file=file, column=column, row=row, hint=_CORRECT)
    return value


def _printable_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {printable(key): _printable_texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable_texts(item) for item in value]
    return printable(value) if isinstance(value, str) else value


def _read(file: SourceFile) -> bytes:
    if file.size > _MAX_BYTES:
        raise CorruptSourceError(
            f"is {file.size} bytes, above the limit of {_MAX_BYTES} for metadata",
            file=file.name,
            hint="metadata is smaller: check that this is the right file, or download it again",
        )
    with file.open() as stream:
        return stream.read()
