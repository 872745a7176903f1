"""JSON files that stand beside a source's data: read whole, refused by name where they are not what they should be."""

from __future__ import annotations

import json
from typing import Any

from gear_data.errors import CorruptSourceError
from gear_data.ingest.location import SourceFile

_MAX_BYTES = 256 << 20


def read_json_object(file: SourceFile) -> dict[str, Any]:
    """The object that a JSON file holds. Raises CorruptSourceError: not JSON, not an object, or absurdly large."""
    return json_object(_read(file), file.name)


def read_json_lines(file: SourceFile) -> list[dict[str, Any]]:
    """The objects of a file with one a line; empty lines are passed over. Raises CorruptSourceError as above."""
    lines = _read(file).splitlines()
    return [json_object(line, file.name, row=row) for row, line in enumerate(lines) if line.strip()]


def json_object(text: str | bytes, file: str, *, column: str | None = None, row: int | None = None) -> dict[str, Any]:
    """The object that a text holds. Raises CorruptSourceError, which names this place: not JSON, or not an object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "download it again"
        raise CorruptSourceError(f"not JSON: {error}", file=file, column=column, row=row, hint=hint) from error
    if not isinstance(value, dict):
        raise CorruptSourceError("not a JSON object", file=file, column=column, row=row)
    return value


def _read(file: SourceFile) -> bytes:
    if file.size > _MAX_BYTES:
        raise CorruptSourceError(f"is {file.size} bytes, too much for metadata", file=file.name)
    with file.open() as stream:
        return stream.read()
