"""The choice between items made ahead and items made when they are taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gear_data.loaders.pace import REST, STRETCH_ITEMS, TRIALS, Pace

SETTLING = 3
#: Items of a stretch after a change, and of all stretches of a comparison.
STRETCH = SETTLING + STRETCH_ITEMS
COMPARISON = 2 * TRIALS * STRETCH
MS = 1e-3


class Consumer:
    """Takes items, by a clock that only this class moves.

    waits: whether items are made ahead -> seconds that the consumer waits for an item.
    away: number of the item -> seconds that the consumer was outside before it.
    """

    def __init__(self, waits: dict[bool, float], away: Callable[[int], float] = lambda item: 0.0) -> None:
        self.now, self.taken = 0.0, 0
        self.waits, self.away = waits, away
        self.pace = Pace(SETTLING, lambda: self.now)

    def take(self, count: int) -> list[bool]:
        """Takes items; returns for each whether it was made ahead."""
        ways = []
        for _ in range(count):
            self.now += self.away(self.taken)
            self.pace.enter()
            ways.append(self.pace.ahead)
            self.now += self.waits[self.pace.ahead]
            self.pace.leave()
            self.taken += 1
        return ways


@pytest.mark.parametrize(
    ("ahead", "taken", "chosen"),
    [(0.45 * MS, 0.2 * MS, False), (0.3 * MS, 0.6 * MS, True), (0.5 * MS, 0.5 * MS, False)],
)
def test_the_faster_way_is_kept(ahead, taken, chosen):
    consumer = Consumer({True: ahead, False: taken})
    compared = consumer.take(COMPARISON)
    assert True in compared and False in compared
    assert set(consumer.take(10 * STRETCH)) == {chosen}


def test_comparisons_of_a_much_slower_way_take_little_time():
    """The slower way has 2.3 times the seconds; of 100,000 items, all may take 5 percent longer than the faster."""
    consumer = Consumer({True: 0.46 * MS, False: 0.2 * MS})
    ways = consumer.take(100_000)
    assert consumer.now < 1.05 * len(ways) * 0.2 * MS
    # It is compared again, because the machine may have changed.
    assert True in ways[REST * STRETCH_ITEMS // 2 :]


@pytest.mark.parametrize("slower", [True, False])
def test_a_choice_changes_with_the_machine(slower):
    consumer = Consumer({slower: 0.5 * MS, not slower: 0.2 * MS})
    assert consumer.take(COMPARISON + 1)[-1] is not slower
    consumer.waits = {slower: 0.2 * MS, not slower: 0.5 * MS}
    consumer.take(2 * REST * STRETCH_ITEMS)
    assert consumer.take(1) == [slower]


def test_items_are_made_ahead_of_a_consumer_that_works():
    """In the thread, an item takes longer; but the consumer does not wait for it."""
    consumer = Consumer({True: 0.01 * MS, False: 0.3 * MS}, lambda item: 5 * MS)
    assert set(consumer.take(100 * STRETCH)) == {True}


def test_a_consumer_that_begins_to_work_gets_items_made_ahead_within_a_stretch():
    consumer = Consumer({True: 0.4 * MS, False: 0.2 * MS})
    assert consumer.take(COMPARISON + 1)[-1] is False
    consumer.away = lambda item: 5 * MS
    consumer.take(2 * STRETCH_ITEMS)
    assert set(consumer.take(100)) == {True}


def test_items_that_the_consumer_makes_itself_are_no_work():
    """It makes most of each group outside of `enter` and `leave`."""
    consumer = Consumer({True: 0.4 * MS, False: 0.1 * MS})

    def away(item):
        seconds = 0.0 if consumer.pace.ahead else 0.25 * MS
        consumer.pace.making += seconds
        return seconds

    consumer.away = away
    consumer.take(COMPARISON)
    assert set(consumer.take(10 * STRETCH)) == {False}


def test_a_consumer_that_takes_several_items_for_each_step_works():
    """It accumulates gradients over eight items."""
    consumer = Consumer({True: 0.01 * MS, False: 0.3 * MS}, lambda item: 40 * MS if item % 8 == 0 else 0.0)
    assert set(consumer.take(10 * STRETCH)) == {True}


def test_a_pause_is_no_work():
    consumer = Consumer({True: 0.4 * MS, False: 0.2 * MS})
    consumer.take(COMPARISON)
    consumer.away = lambda item: 1.0 if item % (4 * STRETCH_ITEMS) == 0 else 0.0
    # Less than the rest, in which both ways would be compared again.
    assert set(consumer.take(4 * STRETCH_ITEMS)) == {False}


def test_slow_items_are_always_made_ahead():
    consumer = Consumer({True: 100 * MS, False: 50 * MS})
    assert set(consumer.take(10 * STRETCH)) == {True}


def test_items_that_were_begun_before_a_change_are_not_measured():
    """After a change, the items that threads made ahead cost nothing: the way that is slower must not gain by them."""

    class Leftovers(Consumer):
        since = 0

        def take(self, count: int) -> list[bool]:
            ways = []
            for _ in range(count):
                before = self.pace.ahead
                self.waits = {True: 0.2 * MS, False: 0.0 if self.since < SETTLING else 0.23 * MS}
                ways += super().take(1)
                self.since = self.since + 1 if self.pace.ahead == before else 0
            return ways

    consumer = Leftovers({})
    consumer.take(COMPARISON)
    assert set(consumer.take(5 * STRETCH)) == {True}
