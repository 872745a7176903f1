"""What a conversion noticed and the user should know: a code, a count, the first place, what was done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One kind of thing noticed.

    Attributes:
        code: stable kebab-case name, such as `non-finite`.
        message: what it is and what was done about it.
        count: how often.
        file, row, column: the first place, where there is one.
    """

    code: str
    message: str
    count: int = 1
    file: str | None = None
    row: int | None = None
    column: str | None = None

    def __str__(self) -> str:
        places = (self.file, None if self.row is None else f"row {self.row}")
        place = ", ".join(part for part in places if part)
        column = f" column '{self.column}'" if self.column else ""
        return f"{self.code}:{column} {self.message} ({self.count}x{', first: ' + place if place else ''})"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Findings:
    """Findings in the order first seen; the same code and column add up."""

    def __init__(self) -> None:
        self._items: dict[tuple[str, str | None], Finding] = {}

    def add(self, finding: Finding) -> None:
        key = (finding.code, finding.column)
        known = self._items.get(key)
        self._items[key] = replace(known, count=known.count + finding.count) if known else finding

    def __iter__(self) -> Any:
        return iter(self._items.values())

    def to_json(self) -> list[dict[str, Any]]:
        return [finding.to_json() for finding in self]

    def restore(self, items: Sequence[Mapping[str, Any]]) -> None:
        self._items.clear()
        for item in items:
            self.add(Finding(**item))
