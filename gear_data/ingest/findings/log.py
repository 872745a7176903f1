"""Findings: observations about a source that users should know.

A finding has a code, a count and the place of its first occurrence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import BadEpisodeError, FindingError
from gear_data.storage.episode_block import EpisodeBlock

#: The hint of a BadEpisodeError that `on_bad_episode="skip"` would turn into a finding.
BAD_EPISODE_HINT = "repair the source, or leave such episodes out with --on-bad-episode skip"
#: The message of a BadEpisodeError about an episode without a step.
NO_STEPS = "the episode has no steps"


@dataclass(frozen=True)
class Finding:
    """One kind of observation about a source.

    Attributes:
        code: a stable kebab-case name, such as `non-finite`.
        message: the observation, and how the conversion handled it.
        count: the number of occurrences.
        file: the file of the first occurrence, if known.
        row: the row of the first occurrence, if known.
        column: the column, if the finding is about one.
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
        """Returns the finding as JSON, as the manifest stores it."""
        return asdict(self)


class FindingLog:
    """Findings in the order of their first occurrence.

    Findings of the same code and column are counted together. The message and the place of the first one are kept.
    """

    def __init__(self) -> None:
        self._items: dict[tuple[str, str | None], Finding] = {}
        self._strict = False

    def make_strict(self) -> None:
        """Makes every finding an error from now on.

        Raises:
            FindingError: the log holds a finding already.
        """
        self._strict = True
        for finding in self:
            raise _error(finding)

    def add(self, finding: Finding) -> None:
        """Adds a finding. Raises FindingError if the log is strict."""
        if self._strict:
            raise _error(finding)
        key = (finding.code, finding.column)
        known = self._items.get(key)
        self._items[key] = replace(known, count=known.count + finding.count) if known else finding

    def add_bad_episode(self, error: BadEpisodeError, *, skip: bool, count: int = 1) -> None:
        """Adds a finding for `count` episodes that are skipped. The error is about the first.

        Args:
            error: the episode's error.
            skip: False raises the error instead, with a hint.
        """
        if not skip:
            error.hint = error.hint or BAD_EPISODE_HINT
            raise error from error.__cause__
        self.add(Finding("bad-episode", f"{error.message}; skipped", count, error.file, error.row, error.column))

    def extend(self, findings: Iterable[Finding]) -> None:
        """Adds findings. Raises FindingError if the log is strict."""
        for finding in findings:
            self.add(finding)

    def add_episodes(
        self, block: EpisodeBlock, code: str, message: str, episodes: npt.NDArray[Any], column: str | None = None
    ) -> None:
        """Adds a finding about episodes of a block, if there are any: their indices, or bool [n]."""
        found = np.flatnonzero(episodes) if episodes.dtype == np.bool_ else episodes
        if len(found):
            first = int(found[0])
            self.add(Finding(code, message, len(found), block.sources[first], int(block.rows[first]), column))

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._items.values())

    def to_json(self) -> list[dict[str, Any]]:
        """Returns the findings as JSON, as the manifest stores them."""
        return [finding.to_json() for finding in self]

    def restore(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Replaces the findings with the output of `to_json`."""
        self._items.clear()
        for item in items:
            self.add(Finding(**item))


def place_of(block: EpisodeBlock, episode: int, step: int = 0) -> tuple[str, int]:
    """Returns the file of an episode of a block, and the row of a step; of its first step if rows are episodes."""
    return block.sources[episode], int(block.rows[episode]) + step


def _error(finding: Finding) -> FindingError:
    return FindingError(
        f"{finding.code}: {finding.message}",
        file=finding.file,
        column=finding.column,
        row=finding.row,
        hint="'gear-data lint SRC' lists all findings; leave --strict (strict=True) out to convert anyway",
    )
