"""Waits that end early: another thread cancels them, or the user interrupts them. Threads that are started safely.

A call that blocks in compiled code of a library sees neither. So a thread names a function that ends its call. The main
thread is the only thread to which Python delivers interrupts: another thread makes such calls in its place.
"""

from __future__ import annotations

import _thread
import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Cancelled(BaseException):
    """Raised in a thread whose work is cancelled.

    It is not an Exception: no handler of errors may take it for a failure of a peer.
    """


class Cancellation:
    """Cancels the waits of one thread.

    Attributes:
        in_user_code: whether the thread runs a function of the user, which may never return.
    """

    def __init__(self) -> None:
        self.in_user_code = False
        self._requested = False
        #: Ends the wait of the thread.
        self._end: Callable[[], None] | None = None

    def cancel(self) -> None:
        """Ends the present wait of the thread, and every later one. Does not wait for the thread."""
        self._requested = True
        # If the thread begins to wait just now, it sees the request itself.
        end = self._end
        if end is not None:
            end()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Makes this the cancellation of the calling thread."""
        _current.cancellation = self
        try:
            yield
        finally:
            del _current.cancellation

    def check(self) -> None:
        if self._requested:
            raise Cancelled

    def call(self, function: Callable[[], T], end: Callable[[], None] | None) -> T:
        """Calls a function; see `call_interruptibly`."""
        self._end = end
        try:
            self.check()
            return function()
        finally:
            self._end = None
            self.check()


_current = threading.local()
#: Seconds of one wait for an item of a queue.
_TAKE_SECONDS = 0.1


def take(queue: SimpleQueue[T]) -> T:
    """Takes the next item of a queue, in the main thread. An interrupt ends the wait.

    An interrupt that arrives just before the system call of a wait does not end this wait. So each wait is short.
    """
    while True:
        with suppress(Empty):
            return queue.get(timeout=_TAKE_SECONDS)


def start_thread(function: Callable[..., object], arguments: tuple[Any, ...], name: str) -> None:
    """Starts a daemon thread, and returns once it runs. An interrupt leaves no lock locked, and is not lost.

    `Thread.start` is not safe: it waits in an `Event`, which is written in Python, so an interrupt can leave its lock
    locked. It waits for ever if the new thread has too little memory for its first call. And Python code runs when a
    `Thread` dies, in which the interpreter drops an interrupt.

    Raises:
        RuntimeError: the process ends, or can have no further thread.
        MemoryError: there is too little memory for a thread.
    """
    started: SimpleQueue[None] = SimpleQueue()
    token = _Token()
    lives = weakref.ref(token)
    _thread.start_new_thread(_run, (function, arguments, name, started, token))
    del token  # only the thread has it now
    is_dead = False
    while True:
        try:
            return started.get(block=not is_dead, timeout=_TAKE_SECONDS)
        except Empty:
            if is_dead:
                raise MemoryError("a new thread has too little memory") from None
            is_dead = lives() is None


class _Token:
    """Lives as long as a thread."""


def _run(
    function: Callable[..., object], arguments: tuple[Any, ...], name: str, started: SimpleQueue[None], token: _Token
) -> None:
    try:
        threading.current_thread().name = name
        started.put(None)
        function(*arguments)
    finally:
        del token  # whoever keeps an error's traceback keeps the frame
        # Until Python 3.12, the list of all threads keeps those that no `Thread` started.
        threading._active.pop(threading.get_ident(), None)  # type: ignore[attr-defined]


def call_user_function(function: Callable[..., T], *arguments: Any) -> T:
    """Calls a function of the user. The end of the process does not wait long for a thread that is inside."""
    cancellation: Cancellation | None = getattr(_current, "cancellation", None)
    if cancellation is None:
        return function(*arguments)
    cancellation.in_user_code = True
    try:
        return function(*arguments)
    finally:
        cancellation.in_user_code = False


def check_cancelled() -> None:
    """Raises Cancelled if the work of the calling thread is cancelled."""
    cancellation: Cancellation | None = getattr(_current, "cancellation", None)
    if cancellation is not None:
        cancellation.check()


def call_interruptibly(function: Callable[[], T], end: Callable[[], None] | None = None) -> T:
    """Calls a function that blocks in compiled code.

    Args:
        function: called in this thread, or in another thread if this is the main thread.
        end: makes a running call return soon. None: nothing does. An interrupted call then goes on in the other thread,
            and its result is dropped.

    Raises:
        Cancelled: the work of this thread is cancelled.
        KeyboardInterrupt: the user interrupts the main thread. Other errors are the function's.
    """
    if threading.get_ident() == threading.main_thread().ident:
        return _call_elsewhere(function, end)
    cancellation: Cancellation | None = getattr(_current, "cancellation", None)
    return function() if cancellation is None else cancellation.call(function, end)


@dataclass(slots=True)
class _Call:
    """A call that another thread makes.

    Attributes:
        function: what is called.
        finished: receives None after the call.
        is_finished: whether the call is finished.
        result, error: what the function returned or raised.
    """

    function: Callable[[], Any]
    finished: SimpleQueue[None] = field(default_factory=SimpleQueue)
    is_finished: bool = False
    result: Any = None
    error: BaseException | None = None


#: Seconds for which an interrupted caller waits for a call that `end` ends, and the end of the process for all calls.
#: Only a busy machine, or a peer that hangs, needs more than one.
_RETURN_SECONDS = 10.0
#: Threads that wait for a call.
_idle: list[SimpleQueue[_Call | None]] = []
#: For each thread that makes calls, a lock that is held until it ends.
_threads: list[tuple[threading.Lock, SimpleQueue[_Call | None]]] = []
os.register_at_fork(after_in_child=_idle.clear)
os.register_at_fork(after_in_child=_threads.clear)


@atexit.register
def _end_threads() -> None:
    """Ends the threads before the interpreter ends: a call that returns after that would crash the process."""
    threads = list(_threads)
    _threads.clear()
    _idle.clear()
    for _, calls in threads:
        calls.put(None)
    deadline = time.monotonic() + _RETURN_SECONDS
    for running, _ in threads:
        running.acquire(timeout=max(0.0, deadline - time.monotonic()))


def _call_elsewhere(function: Callable[[], T], end: Callable[[], None] | None) -> T:
    try:
        calls = _idle.pop()
    except IndexError:
        calls, running = SimpleQueue(), threading.Lock()
        running.acquire()
        start_thread(_serve, (calls, running), "gear-data-calls")
        _threads.append((running, calls))
    call = _Call(function)
    try:
        calls.put(call)
        take(call.finished)
    except BaseException:
        if end is not None and not call.is_finished:
            end()
            with suppress(Empty):  # the caller may use the objects of the call after this
                call.finished.get(timeout=_RETURN_SECONDS)
        raise
    if call.error is not None:
        raise call.error
    return call.result  # type: ignore[no-any-return]


def _serve(calls: SimpleQueue[_Call | None], running: threading.Lock) -> None:
    """Makes calls until it takes None; then releases the lock."""
    while (call := calls.get()) is not None:
        try:
            call.result = call.function()
        except BaseException as error:  # the caller raises it
            call.error = error
        call.is_finished = True
        finished = call.finished
        del call  # what it refers to must not live until the next call
        _idle.append(calls)
        finished.put(None)
    running.release()
