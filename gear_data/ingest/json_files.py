"""JSON files that stand beside a source's data: read whole, refused by name where they are not what they should be."""

from __future__ import annotations

import json
from typing import Any

from gear_data.errors import CorruptSourceError
from gear_data.ingest.location import SourceFile


def read_json_object(file: SourceFile) -> dict[str, Any]:
    """The object that a JSON file holds. Raises CorruptSourceError: not JSON, or not an object."""
    with file.open() as stream:
        return _object(stream.read(), file.name, None)


def read_json_lines(file: SourceFile) -> list[dict[str, Any]]:
    """The objects of a file with one a line; empty lines are passed over. Raises CorruptSourceError as above."""
    with file.open() as stream:
        lines = stream.read().splitlines()
    return [_object(line, file.name, row) for row, line in enumerate(lines) if line.strip()]


def _object(text: bytes, name: str, row: int | None) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptSourceError(f"not JSON: {error}", file=name, row=row, hint="download it again") from error
    if not isinstance(value, dict):
        raise CorruptSourceError("not a JSON object", file=name, row=row)
    return value
