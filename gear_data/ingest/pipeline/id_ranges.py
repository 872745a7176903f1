"""Sets of integers and of names, stored as ranges.

Episode ids mostly count up, so a few ranges hold millions of them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Hashable, Sequence

from gear_data.errors import BadEpisodeError

#: What helps where an id comes back, and what helps too where the user can say what ends an episode.
SORT = "sort the rows by episode and step first"
SEVERAL_IDS = "; if several columns name an episode together, give --episode-column for each of them"
OTHER_ENDS = f"{SEVERAL_IDS}; if a flag ends the episodes, name it with --end-column (episodes=EpisodeBoundaries(...))"
_NUMBERED = re.compile(r"(.*?)(0|[1-9]\d{0,17})", re.DOTALL | re.ASCII)


def id_returns(id_: object) -> str:
    """Returns the message about an id that comes back."""
    return f"episode {id_} continues here after another one began"


def refuse_returning_ids(columns: Sequence[Sequence[Hashable]], starts: Sequence[int], column: str, more: str) -> None:
    """Refuses ids that come back after another id. Neighbours may be equal.

    Args:
        columns: the ids of the episodes, in each of the columns that name an episode together.
        starts: the first row of each episode.
        column: the name of the first column of ids.
        more: what else helps, for the hint.

    Raises:
        BadEpisodeError: an id comes back.
    """
    ids = columns[0] if len(columns) == 1 else [*zip(*columns, strict=True)]
    seen: set[Hashable] = set()
    for i, (id_, row) in enumerate(zip(ids, starts, strict=True)):
        if id_ in seen and id_ != ids[i - 1]:
            raise BadEpisodeError(id_returns(id_), column=column, row=row, hint=SORT + more)
        seen.add(id_)


class IdRanges:
    """A growing set of integers."""

    def __init__(self, ranges: list[list[int]] | None = None) -> None:
        # The first and the last number of each range. The ranges are sorted, with a gap between any two.
        self._first = [first for first, _ in ranges or []]
        self._last = [last for _, last in ranges or []]

    def __contains__(self, value: int) -> bool:
        place = bisect_right(self._first, value) - 1
        return place >= 0 and value <= self._last[place]

    def add(self, value: int) -> None:
        if value in self:
            return
        place = bisect_right(self._first, value)
        joins_before = place > 0 and self._last[place - 1] == value - 1
        joins_after = place < len(self._first) and self._first[place] == value + 1
        if joins_before and joins_after:
            self._last[place - 1] = self._last.pop(place)
            self._first.pop(place)
        elif joins_before:
            self._last[place - 1] = value
        elif joins_after:
            self._first[place] = value
        else:
            self._first.insert(place, value)
            self._last.insert(place, value)

    def to_json(self) -> list[list[int]]:
        return [list(pair) for pair in zip(self._first, self._last, strict=True)]


class SeenIds:
    """A growing set of episode ids, which are integers or names.

    A name that ends in a number, such as `traj_0017`, is stored as its stem `traj_00` and a range of numbers.
    """

    def __init__(self, known: dict[str, list[list[int]]] | None = None) -> None:
        self._ranges = {stem: IdRanges(ranges) for stem, ranges in (known or {}).items()}

    def __contains__(self, value: int | str) -> bool:
        stem, number = _split(value)
        return stem in self._ranges and number in self._ranges[stem]

    def add(self, value: int | str) -> None:
        stem, number = _split(value)
        self._ranges.setdefault(stem, IdRanges()).add(number)

    def to_json(self) -> dict[str, list[list[int]]]:
        return {stem: ranges.to_json() for stem, ranges in self._ranges.items()}


def _split(value: int | str) -> tuple[str, int]:
    if isinstance(value, int):
        return "", value
    found = _NUMBERED.fullmatch(value)
    # A name without a number is its own stem. The number -1 belongs to no other name.
    return (found[1], int(found[2])) if found else (value, -1)
