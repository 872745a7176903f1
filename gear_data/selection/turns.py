"""Cycle: deals turns to parts so that every part has its share at any time.

The parts are the datasets of a mixture, or the nodes of a node-local selection.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from gear_data.errors import InvalidArgumentError
from gear_data.kernels import cpu
from gear_data.selection.windows import Int64Array

#: Longest cycle. Shares that need a longer cycle are rounded to whole turns of this one.
MAX_CYCLE = 1 << 20


class Cycle:
    """Turns 0, 1, 2, ... dealt to m parts. Looking up a turn costs O(1).

    After any number t of turns, each part has its share of them to within less than one turn: |turns - t * share| <=
    1 - 1 / (2 m - 2) (Tijdeman, "The chairman assignment problem", 1980).

    Args:
        proportions: positive numbers, one for each part; only their ratios matter. 0.1 means exactly one tenth.

    Attributes:
        length: turns of a cycle, at most `MAX_CYCLE`. If no such cycle has the exact ratios, each share differs from
            the given one by less than m / length.

    Raises:
        InvalidArgumentError: there are no proportions, or one is not a positive number.
    """

    def __init__(self, proportions: Sequence[float]) -> None:
        turns = _turns(proportions)
        self.length = sum(turns)
        self._turns = np.array(turns, np.int64)
        self._order = np.zeros(self.length, np.int64)
        self._before = np.arange(self.length, dtype=np.int64)
        if len(turns) > 1:
            cpu.turns.deal(self._turns, self._order, self._before)

    def identity(self) -> list[int]:
        """Returns the turns of each part in a cycle."""
        return [int(count) for count in self._turns]

    def turn(self, number: int) -> tuple[int, int]:
        """Returns (the part that has turn `number`, the part's number of earlier turns)."""
        cycle, position = divmod(number, self.length)
        part = int(self._order[position])
        return part, cycle * int(self._turns[part]) + int(self._before[position])

    def count_before(self, part: int, number: int) -> int:
        """Returns the number of turns that a part has before turn `number`."""
        cycle, position = divmod(number, self.length)
        return cycle * int(self._turns[part]) + int(np.count_nonzero(self._order[:position] == part))

    def turn_after(self, part: int, count: int) -> int:
        """Returns the smallest turn before which a part has `count` turns.

        This is the inverse of `count_before`.
        """
        if count == 0:
            return 0
        cycle, position = divmod(count - 1, int(self._turns[part]))
        return cycle * self.length + int(np.flatnonzero(self._order == part)[position]) + 1

    def turns(self, first: int, count: int) -> tuple[Int64Array, Int64Array]:
        """Returns the results of `turn` for the turns first to first + count - 1.

        Both results are int64 [count].
        """
        cycle, position = np.divmod(first + np.arange(count), self.length)
        part = self._order[position]
        return part, cycle * self._turns[part] + self._before[position]


def _turns(proportions: Sequence[float]) -> list[int]:
    """Returns the turns of each part in a cycle."""
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
    # One turn for each part; the remaining turns by largest remainder.
    remaining = MAX_CYCLE - len(shares)
    turns = [1 + int(share * remaining) for share in shares]
    order = sorted(range(len(shares)), key=lambda i: (turns[i] - shares[i] * remaining, i))
    for i in order[: MAX_CYCLE - sum(turns)]:
        turns[i] += 1
    return turns


def _fraction(value: float) -> Fraction:
    """Returns the simple fraction that a number stands for.

    0.1 is one tenth, and the float of 1 / 3 is one third.
    """
    written = Fraction(str(value))
    simple = written.limit_denominator(MAX_CYCLE)
    return simple if abs(simple - written) <= written * Fraction(1, 10**12) else written
