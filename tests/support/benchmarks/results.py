"""The result of a benchmark's run: its output and its record."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Result:
    """Exit status, output and record of a run. Without a record it is empty."""

    status: int
    printed: str
    errors: str
    record: dict[str, Any]


def read_record(path: Path) -> dict[str, Any]:
    """Reads a record and checks that its numbers are finite.

    A missing file is an empty record.
    """
    record: dict[str, Any] = json.loads(path.read_text(), parse_constant=_refuse) if path.exists() else {}
    _check_finite(record)
    return record


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _check_finite(value: Any) -> None:
    """Checks that all numbers of a record are finite."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            _check_finite(each)
    elif isinstance(value, float):
        assert math.isfinite(value)


def rows_of(printed: str, header: str) -> list[list[str]]:
    """Returns the rows of the printed table whose header contains a text."""
    lines = printed.splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith("|") and header in line), None)
    assert first is not None, f"no table with {header!r} in:\n{printed}"
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows
