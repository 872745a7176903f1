"""The report of a section of the GPU benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from common import figure, format_table

#: The most cases that a report names among those that were left out.
_LEFT_OUT = 4


@dataclass(frozen=True)
class Row:
    """A line of a table.

    Attributes:
        values: column -> number, text, or None.
        ratio: ratio to the section's reference.
        target: the least ratio that meets the target; with `at_most`, the largest.
    """

    name: str
    values: dict[str, float | str | None]
    ratio: float | None = None
    target: float | None = None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        if self.ratio is None or self.target is None:
            return None
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target


@dataclass
class Section:
    """The results of one section.

    Attributes:
        rows: the lines of the table.
        facts: further results, for later sections and for readers.
        left_out: cases that were skipped for lack of time, or that failed.
        notes: lines below the table.
    """

    rows: list[Row]
    facts: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "rows": [{**asdict(row), "met": row.met} for row in self.rows]}


def ratio_of_rounds(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Returns the median of the rounds' ratios. If the time was over, one of both lacks the last rounds."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=False))


def from_json(record: dict[str, Any]) -> Section:
    rows = [Row(**{key: value for key, value in row.items() if key != "met"}) for row in record["rows"]]
    return Section(rows, record["facts"], record["left_out"], record["notes"])


def table(section: Section) -> str:
    """Returns the rows as a table, followed by the notes."""
    columns = list(dict.fromkeys(name for row in section.rows for name in row.values))
    compared = any(row.ratio is not None for row in section.rows)
    header = ["", *columns, *(["ratio", "target"] if compared else [])]
    lines = [[row.name, *(_cell(row.values.get(name)) for name in columns)] for row in section.rows]
    if compared:
        for row, line in zip(section.rows, lines, strict=True):
            line += [_cell(row.ratio), _target(row)]
    text = [format_table(header, lines)] if lines else []
    if section.left_out:
        more = len(section.left_out) - _LEFT_OUT
        text.append(f"left out: {'; '.join(section.left_out[:_LEFT_OUT])}{f'; and {more} more' if more > 0 else ''}")
    return "\n".join([*text, *section.notes])


def _cell(value: float | str | None) -> str:
    return value if isinstance(value, str) else figure(value)


def _target(row: Row) -> str:
    if row.target is None:
        return "-"
    return f"{'<=' if row.at_most else '>='} {row.target:g} {'met' if row.met else 'NOT met'}"


def verdict(sections: dict[str, Section]) -> str:
    """Returns a line with the number of met targets, and the missed ones."""
    judged = [(name, row) for name, section in sections.items() for row in section.rows if row.met is not None]
    missed = [f"({name}) {row.name}: {_cell(row.ratio)}, target {row.target:g}" for name, row in judged if not row.met]
    met = f"targets met: {len(judged) - len(missed)} of {len(judged)}"
    return "\n  ".join([met, *missed])
