"""Whose turn it is: a cycle of turns that keeps every part's share exact at any time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from gear_data.errors import InvalidArgumentError
from gear_data.selection.windows import Int64Array

#: Longest cycle; shares that would need a longer one are rounded to whole parts of it.
MAX_CYCLE = 1 << 20


class Cycle:
    """Turns 0, 1, 2, ... dealt to m parts; turn t costs O(1).

    After any number t of turns, part i has had its share of them to within less than one turn: |turns - t * share| <=
    1 - 1 / (2 m - 2) (Tijdeman, "The chairman assignment problem", 1980).

    Args:
        proportions: positive numbers, one a part; only their ratios count. Decimal fractions are taken at their word.

    Attributes:
        length: turns of a cycle, at most `MAX_CYCLE`. Where no such cycle holds the ratios exactly, each share is that
            given to within m / length.

    Raises:
        InvalidArgumentError: no proportions, or one that is not a positive number.
    """

    def __init__(self, proportions: Sequence[float]) -> None:
        from gear_data.kernels.cpu.turns import deal

        turns = _turns(proportions)
        self.length = sum(turns)
        self._turns = np.array(turns, np.int64)
        self._order = np.zeros(self.length, np.int64)
        self._before = np.arange(self.length, dtype=np.int64)
        if len(turns) > 1:
            deal(self._turns, self._order, self._before)

    def identity(self) -> list[int]:
        """Turns of each part in a cycle."""
        return [int(count) for count in self._turns]

    def turn(self, number: int) -> tuple[int, int]:
        """(whose turn it is, how many turns that part had before)."""
        cycle, place = divmod(number, self.length)
        part = int(self._order[place])
        return part, cycle * int(self._turns[part]) + int(self._before[place])

    def count_before(self, part: int, number: int) -> int:
        """How many of the turns before turn `number` were this part's."""
        cycle, place = divmod(number, self.length)
        return cycle * int(self._turns[part]) + int(np.count_nonzero(self._order[:place] == part))

    def turn_after(self, part: int, before: int) -> int:
        """The first turn of all before which this part had had so many turns."""
        if before == 0:
            return 0
        cycle, place = divmod(before - 1, int(self._turns[part]))
        return cycle * self.length + int(np.flatnonzero(self._order == part)[place]) + 1

    def turns(self, first: int, count: int) -> tuple[Int64Array, Int64Array]:
        """int64 [count] each, of turns `first` on: what `turn` gives."""
        cycle, place = np.divmod(first + np.arange(count), self.length)
        part = self._order[place]
        return part, cycle * self._turns[part] + self._before[place]


def _turns(proportions: Sequence[float]) -> list[int]:
    """Turns of each part in a cycle."""
    if not proportions:
        raise InvalidArgumentError("there are no proportions")
    for value in proportions:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise InvalidArgumentError(f"a proportion must be a positive number, not {value!r}")
    exact = [_fraction(value) for value in proportions]
    total = sum(exact)
    shares = [value / total for value in exact]
    length = math.lcm(*(share.denominator for share in shares))
    if length <= MAX_CYCLE:
        return [int(share * length) for share in shares]
    # One turn each, and the others by largest remainder.
    others = MAX_CYCLE - len(shares)
    turns = [1 + int(share * others) for share in shares]
    order = sorted(range(len(shares)), key=lambda i: (turns[i] - shares[i] * others, i))
    for i in order[: MAX_CYCLE - sum(turns)]:
        turns[i] += 1
    return turns


def _fraction(value: float) -> Fraction:
    """0.1 is a tenth, and 1 / 3 a third: the simple fraction that the number was made from, if there is one."""
    written = Fraction(str(value))
    simple = written.limit_denominator(MAX_CYCLE)
    return simple if abs(simple - written) <= written * Fraction(1, 10**12) else written
