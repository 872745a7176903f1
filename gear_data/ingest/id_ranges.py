"""A set of integers as ranges: episode ids mostly count up, so millions of them take a few ranges."""

from __future__ import annotations

from bisect import bisect_right


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
