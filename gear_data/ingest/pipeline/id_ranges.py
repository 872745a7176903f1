"""Sets of integers and of names as ranges: episodes mostly count up, so millions of them take a few ranges."""

from __future__ import annotations

import re
from bisect import bisect_right

_NUMBERED = re.compile(r"(.*?)(0|[1-9]\d{0,17})", re.DOTALL | re.ASCII)


class IdRanges:
    """A set of integers that grows."""

    def __init__(self, ranges: list[list[int]] | None = None) -> None:
        # Disjoint, not touching, in order; both ends included.
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
    """A set of episode ids, integers or names, that grows. Names that count up, such as `traj_0017`, are kept as the
    text before the number, zeros included, and ranges of numbers."""

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
    # A name without a number stands for itself: as a stem no other name has.
    return (found[1], int(found[2])) if found else (value, -1)
