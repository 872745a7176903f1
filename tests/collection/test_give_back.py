"""References that enter a deque when their object dies, without Python code."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import deque

import numpy as np

from gear_data.collection.buffers import give_back


class Owner:
    """Keeps its reference, whose object it is."""

    def __init__(self, item, deque_):
        self.reference = give_back(item, deque_, self)


def test_the_item_comes_back_when_the_object_dies():
    returned = deque()
    owners = [Owner(number, returned) for number in range(3)]
    assert not returned
    del owners[1]
    assert [each.item for each in returned] == [1]
    owners.clear()
    assert sorted(each.item for each in returned) == [0, 1, 2]


def test_the_item_comes_back_from_another_thread():
    returned = deque()
    owners = [Owner("item", returned)]
    thread = threading.Thread(target=owners.clear)
    thread.start()
    thread.join()
    assert [each.item for each in returned] == ["item"]


def test_a_full_deque_drops_the_oldest_item():
    returned = deque(maxlen=2)
    for number in range(5):
        Owner(number, returned)
    assert [each.item for each in returned] == [3, 4]


def test_nothing_refers_to_an_item_that_was_dropped():
    returned = deque(maxlen=1)
    items = [np.zeros(3) for _ in range(3)]
    gc.disable()
    try:
        for item in items:
            Owner(item, returned)
        del item
        # The list, and the argument; the last item is in the deque as well.
        assert [sys.getrefcount(each) - 1 for each in items] == [2, 2, 3]
    finally:
        gc.enable()


def test_an_item_dies_with_the_last_of_deque_and_object():
    item = np.zeros(3)
    dead = []
    weakref.finalize(item, dead.append, True)
    returned = deque()
    owner = Owner(item, returned)
    del item, returned
    assert not dead
    del owner
    assert dead
