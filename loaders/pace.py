"""Pace: chooses whether threads make a consumer's items ahead."""

from __future__ import annotations

import time
from collections.abc import Callable

#: The fewest items and seconds of a stretch, over which the time of an item is measured.
STRETCH_ITEMS, STRETCH_SECONDS = 16, 0.002
#: Stretches in which each way is measured, an odd number: their median counts.
TRIALS = 3
#: The most time of an item made ahead, to the time of one made when it is taken. The thread uses another core.
GAIN = 0.9
#: After a choice, this many times the seconds of a stretch pass until both ways are measured again. So the measurements
#: of the slower way take about one percent of the time.
REST = 400
#: A consumer works if it spends this many times more seconds outside than it waits.
WORK = 2
#: Items that take more seconds are always made ahead: to hand them over costs next to nothing.
SLOW_SECONDS = 0.005


class Pace:
    """Chooses whether threads make the coming items ahead, or the consumer makes each item when it takes it.

    A consumer that works between its items waits least if threads make items meanwhile. A consumer that does not work
    waits for every item. Then a second maker helps only if the makers seldom wait for each other: most of a small
    batch is made with the interpreter lock. So both ways are measured in turn, and the faster one is kept for a while.

    Args:
        settling: number of items after each change that are not measured, because they were begun before it.
        clock: returns seconds.

    Attributes:
        ahead: whether threads make the coming items ahead.
        making: seconds since `leave` in which the consumer made items itself.
    """

    def __init__(self, settling: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.ahead, self.making = True, 0.0
        self._settling, self._clock = settling, clock
        self._left = self._began = clock()
        # Of the present stretch: its items, the seconds that the consumer was outside, and the most at a time.
        self._items, self._away, self._longest = -settling, 0.0, 0.0
        # Seconds of an item in the stretches of this comparison, for each value of `ahead`.
        self._measured: dict[bool, list[float]] = {True: [], False: []}
        # When the next comparison begins.
        self._rests_until = self._left

    def enter(self) -> None:
        """Takes note that the consumer wants an item."""
        away = self._clock() - self._left - self.making
        self.making = 0.0
        self._away += away
        if away > self._longest:
            self._longest = away

    def leave(self) -> None:
        """Takes note that the consumer has an item; may change `ahead`."""
        self._left = now = self._clock()
        self._items += 1
        if self._items <= 0:
            self._begin(now, self._items)
        elif self._items >= STRETCH_ITEMS and now - self._began >= STRETCH_SECONDS:
            before = self.ahead
            self._choose(now)
            self._begin(now, 0 if self.ahead == before else -self._settling)

    def _begin(self, now: float, items: int) -> None:
        self._began, self._items, self._away, self._longest = now, items, 0.0, 0.0

    def _choose(self, now: float) -> None:
        """Chooses after a stretch."""
        # The longest absence does not count: a pause is not a step of training.
        seconds, away = now - self._began - self._longest, self._away - self._longest
        period, measured = seconds / self._items, self._measured
        if away > WORK * (seconds - away) or period > SLOW_SECONDS:
            self.ahead, self._rests_until = True, now
            self._measured = {True: [], False: []}
        elif now >= self._rests_until:
            measured[self.ahead].append(period)
            self.ahead = not self.ahead
            if len(measured[self.ahead]) == TRIALS:
                ahead, taken = (sorted(measured[way])[TRIALS // 2] for way in (True, False))
                self.ahead = ahead < GAIN * taken
                self._rests_until = now + REST * seconds
                self._measured = {True: [], False: []}
