"""What a conversion noticed and the user should know: a code, a count, the first place, what was done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gear_data.errors import FindingError

#: For a BadEpisodeError that `on_bad_episode="skip"` would have made a finding.
BAD_EPISODE_HINT = "mend the source, or leave such episodes out with --on-bad-episode skip"


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


class FindingLog:
    """Findings in the order first seen; the same code and column add up, and keep the first one's message and place."""

    def __init__(self) -> None:
        self._items: dict[tuple[str, str | None], Finding] = {}
        self._forbidden = False

    def make_strict(self) -> None:
        """From here on a finding is an error, and so is one that there is. Raises FindingError."""
        self._forbidden = True
        for finding in self:
            raise _error(finding)

    def add(self, finding: Finding) -> None:
        """Raises FindingError where findings are strict."""
        if self._forbidden:
            raise _error(finding)
        key = (finding.code, finding.column)
        known = self._items.get(key)
        self._items[key] = replace(known, count=known.count + finding.count) if known else finding

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._items.values())

    def to_json(self) -> list[dict[str, Any]]:
        return [finding.to_json() for finding in self]

    def restore(self, items: Sequence[Mapping[str, Any]]) -> None:
        self._items.clear()
        for item in items:
            self.add(Finding(**item))


def _error(finding: Finding) -> FindingError:
    return FindingError(
        f"{finding.code}: {finding.message}",
        file=finding.file,
        column=finding.column,
        row=finding.row,
        hint="'gear-data lint SRC' lists everything of the kind; leave --strict (strict=True) out to convert anyway",
    )
