"""Calls that block in compiled code end early: cancelled or interrupted."""

from __future__ import annotations

import _thread
import signal
import subprocess
import sys
import threading
import time

import pytest

from gear_data.common.cancellation import Cancellation, Cancelled, call_interruptibly, check_cancelled, start_thread
from tests.support.running.eventually import eventually

WAIT = 30.0


def start(function, cancellation):
    """Runs a function in a thread with a cancellation.

    Returns the thread, and a list that receives the error.
    """
    raised = []

    def run():
        with cancellation.active():
            try:
                function()
            except BaseException as error:
                raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def test_a_thread_without_cancellation_calls_the_function_itself():
    threads = []
    thread = threading.Thread(target=lambda: threads.append(call_interruptibly(threading.get_ident)))
    thread.start()
    thread.join()
    assert threads == [thread.ident]


def test_the_main_thread_gets_results_and_errors():
    assert call_interruptibly(lambda: 5) == 5
    assert call_interruptibly(threading.get_ident) != threading.get_ident()
    with pytest.raises(KeyError, match="six"):
        call_interruptibly(lambda: {}["six"])


def test_calls_of_the_main_thread_share_a_thread():
    threads = {call_interruptibly(threading.get_ident) for _ in range(20)}
    assert len(threads) == 1


def test_cancelling_ends_the_wait():
    ended, waiting = threading.Event(), threading.Event()

    def wait():
        waiting.set()
        assert ended.wait(WAIT)

    cancellation = Cancellation()
    thread, raised = start(lambda: call_interruptibly(wait, ended.set), cancellation)
    assert waiting.wait(WAIT)
    cancellation.cancel()
    thread.join(WAIT)
    assert [type(error) for error in raised] == [Cancelled]


def test_a_cancelled_thread_begins_no_call():
    called = []
    cancellation = Cancellation()
    cancellation.cancel()
    thread, raised = start(lambda: call_interruptibly(lambda: called.append(1)), cancellation)
    thread.join(WAIT)
    assert ([type(error) for error in raised], called) == ([Cancelled], [])


def test_checking_raises_only_in_the_cancelled_thread():
    check_cancelled()
    cancellation = Cancellation()
    thread, raised = start(check_cancelled, cancellation)
    thread.join(WAIT)
    assert raised == []
    cancellation.cancel()
    thread, raised = start(check_cancelled, cancellation)
    thread.join(WAIT)
    assert [type(error) for error in raised] == [Cancelled]
    check_cancelled()


@pytest.fixture
def interrupt():
    """An event after which this process is interrupted."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    begun = threading.Event()

    def send():
        assert begun.wait(WAIT)
        # CPython notices no signal that arrives between its last check and the system call in which it waits.
        time.sleep(0.3)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    yield begun
    thread.join()
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("with_end", [True, False])
def test_an_interrupt_ends_a_call_of_the_main_thread(interrupt, with_end):
    released, events = threading.Event(), []

    def wait():
        interrupt.set()
        released.wait(WAIT)
        events.append("returned")

    def end():
        events.append("ended")
        released.set()

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        call_interruptibly(wait, end if with_end else None)
    assert time.monotonic() - began < WAIT / 2
    # With `end`, the call has returned before the interrupt is raised: its objects are free again.
    assert events == (["ended", "returned"] if with_end else [])
    released.set()
    assert call_interruptibly(lambda: 7) == 7


LATE = """
import signal, sys, threading, time
from pathlib import Path
from gear_data.common.cancellation import call_interruptibly

signal.signal(signal.SIGINT, signal.default_int_handler)
main = threading.main_thread().ident

def call():
    signal.pthread_kill(main, signal.SIGINT)
    time.sleep(3)  # stands for a compiled call that nothing ends
    Path(sys.argv[1]).touch()

try:
    call_interruptibly(call)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.processes
def test_the_end_of_the_process_waits_for_a_call_whose_caller_was_interrupted(tmp_path):
    """A call that returns after the end of the interpreter aborts the process."""
    returned = tmp_path / "returned"
    done = subprocess.run([sys.executable, "-c", LATE, returned], timeout=600, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr, returned.exists()) == (0, "interrupted\n", "", True)


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_a_thread_that_cannot_start_is_an_error(error, monkeypatch):
    def fail(function, arguments):
        raise error

    monkeypatch.setattr(_thread, "start_new_thread", fail)
    with pytest.raises(error):
        start_thread(print, (), "name")


def test_a_thread_that_ends_before_it_has_begun_is_an_error(monkeypatch):
    """Its first call finds too little memory. Without the error, the caller waits for ever."""
    unraisable, start_new_thread = [], _thread.start_new_thread
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        # `int` refuses the arguments before any line of Python runs.
        patch.setattr(_thread, "start_new_thread", lambda function, arguments: start_new_thread(int, arguments))
        start_thread(print, (), "name")

    def fail():
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(threading, "current_thread", fail)
        start_thread(print, (), "name")
    assert [each.exc_type for each in unraisable] == [TypeError, MemoryError]


def test_a_thread_is_listed_until_it_ends():
    begun, go_on = threading.Event(), threading.Event()

    def wait():
        begun.set()
        go_on.wait(WAIT)

    def listed():
        return any(thread.name == "test-listed" for thread in threading.enumerate())

    start_thread(wait, (), "test-listed")
    assert begun.wait(WAIT) and listed()
    go_on.set()
    assert eventually(lambda: not listed())
