"""References that give an item back when an object dies, without Python code.

Signal handlers run between the instructions of Python code. A KeyboardInterrupt that is raised inside `__del__`, or
inside a callback written in Python, is printed and lost. So the death of an object must not run such code in the main
thread.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class GiveBack(weakref.ref[Any], Generic[T]):
    """A weak reference that enters a deque when its object dies.

    It must itself live until then, so the object refers to it. An array cannot be the object: the attributes of an
    array, of a class that derives from `numpy.ndarray`, die before its weak references are called.

    Attributes:
        item: what is given back.
    """

    __slots__ = ("item",)
    item: T


def give_back(item: T, to: deque[GiveBack[T]], when_dead: Any) -> GiveBack[T]:
    """Returns a reference that enters the deque `to` when `when_dead` dies.

    The object may die in any thread. `deque.append` is compiled code, so nothing can interrupt it.
    """
    reference: GiveBack[T] = GiveBack(when_dead, to.append)
    reference.item = item
    return reference
