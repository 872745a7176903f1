from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from gear_data.video.decoding.frame_reader import run_all
from gear_data.video.decoding.process_state import ProcessState


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as threads:
        yield threads


def fail(number: int) -> None:
    raise ValueError(f"task {number}")


def test_all_tasks_run_in_several_threads(executor: ThreadPoolExecutor) -> None:
    # Each task waits for the other.
    barrier = threading.Barrier(2)
    idents: set[int] = set()

    def task() -> None:
        barrier.wait(120)
        idents.add(threading.get_ident())

    run_all([task] * 2, executor, 1)
    assert len(idents) == 2
    assert threading.get_ident() in idents


@pytest.mark.parametrize("helpers", [0, 2])
def test_the_error_of_the_first_task_is_raised_after_all_ran(executor: ThreadPoolExecutor, helpers: int) -> None:
    done: list[int] = []
    tasks = [
        partial(done.append, 0),
        partial(fail, 1),
        partial(done.append, 2),
        partial(fail, 3),
        partial(done.append, 4),
    ]
    for _ in range(20):
        done.clear()
        with pytest.raises(ValueError, match="task 1"):
            run_all(tasks, executor if helpers else None, helpers)
        assert sorted(done) == [0, 2, 4]


def test_an_interrupt_ends_the_call_when_no_task_runs_any_more(executor: ThreadPoolExecutor) -> None:
    started, ended, later = threading.Event(), threading.Event(), []
    caller = threading.get_ident()

    def task() -> None:
        if threading.get_ident() == caller:
            # Until another thread is in a task.
            assert started.wait(120)
            raise KeyboardInterrupt
        started.set()
        ended.wait(0.2)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        run_all([task, task, *[partial(later.append, 1)] * 100], executor, 1)
    assert ended.is_set()
    count = len(later)
    executor.submit(int).result(120)
    assert len(later) == count


class Parameters:
    """Parameters of a decoder in whose hash an interrupt arrives, after some calls."""

    def __init__(self) -> None:
        self.calls_left: int | None = None

    def __hash__(self) -> int:
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise KeyboardInterrupt
        return 1


@pytest.mark.parametrize("calls", range(6))
def test_an_interrupt_in_a_hash_is_not_taken_for_a_missing_key(calls: int) -> None:
    state, parameters = ProcessState(), Parameters()
    decoders: list[Any] = [object() for _ in range(3)]
    state.give_back(parameters, decoders[0], threads=1)
    parameters.calls_left = calls
    with suppress(KeyboardInterrupt):
        state.give_back(parameters, decoders[1], threads=1)
    parameters.calls_left = None
    state.give_back(parameters, decoders[2], threads=1)
    assert state.take_decoder(parameters) is decoders[2]
