from __future__ import annotations

import multiprocessing
import os
import signal
import struct
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import gear_data
from gear_data.errors import UnwritableError
from gear_data.recording.rate_limit.counters import Counter, read_counters, read_counts, remove_ended
from gear_data.recording.rate_limit.limit import Counts

LIMIT = gear_data.RateLimit(min_steps=10)
SPAWN = multiprocessing.get_context("spawn")


def count_for_ever(folder: Path, told: Connection) -> None:
    counter, count = Counter(folder, "inserted", LIMIT), 0
    while True:
        counter.add(3)
        count += 3
        told.send_bytes(struct.pack("<q", count))


def add_many(folder: Path, number: int) -> None:
    counter = Counter(folder, "sampled", LIMIT)
    for _ in range(number):
        counter.add(1)


@pytest.mark.processes
def test_no_count_is_lost_when_a_process_is_killed(tmp_path: Path) -> None:
    counted = 0
    for _ in range(2):
        here, there = SPAWN.Pipe(duplex=False)
        child = SPAWN.Process(target=count_for_ever, args=(tmp_path, there))
        child.start()
        there.close()
        for _ in range(50):
            last = struct.unpack("<q", here.recv_bytes())[0]
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        try:
            while True:
                last = struct.unpack("<q", here.recv_bytes())[0]
        except EOFError:
            pass
        inserted = read_counts(tmp_path).inserted
        # The process may have been killed between the count and the message.
        assert inserted - counted in (last, last + 3)
        counted = inserted
    # The second process continued the counter of the first.
    (state,) = read_counters(tmp_path, "inserted")
    assert not state.is_held
    assert state.holder is not None and state.holder.process.pid == child.pid
    assert str(state) == f"process {child.pid} on {os.uname().nodename} since {state.holder.process.since}" + (
        f" ({counted}, has ended)"
    )


@pytest.mark.processes
def test_counts_of_several_processes_add_up(tmp_path: Path) -> None:
    children = [SPAWN.Process(target=add_many, args=(tmp_path, 500 + n)) for n in range(3)]
    for child in children:
        child.start()
    own = Counter(tmp_path, "sampled", LIMIT)
    seen = [0]
    while any(child.is_alive() for child in children):
        own.add(2)
        seen.append(read_counts(tmp_path).sampled)
    for child in children:
        child.join()
    assert seen == sorted(seen)
    assert read_counts(tmp_path) == Counts(0, 500 + 501 + 502 + 2 * (len(seen) - 1))


def test_two_counters_of_one_process_are_two_files(tmp_path: Path) -> None:
    first, second = Counter(tmp_path, "inserted", LIMIT), Counter(tmp_path, "inserted", LIMIT)
    first.add(5)
    second.add(7)
    assert first.path != second.path
    assert read_counts(tmp_path) == Counts(12, 0)
    first.close()
    third = Counter(tmp_path, "inserted", LIMIT)
    third.add(1)
    assert third.path == first.path
    assert read_counts(tmp_path).inserted == 13


def test_a_forgotten_counter_is_released(tmp_path: Path) -> None:
    path = Counter(tmp_path, "inserted", LIMIT).path
    assert [state.is_held for state in read_counters(tmp_path, "inserted")] == [False]
    assert Counter(tmp_path, "inserted", LIMIT).path == path


def test_only_ended_counters_are_removed(tmp_path: Path) -> None:
    held, ended = Counter(tmp_path, "inserted", LIMIT), Counter(tmp_path, "sampled", LIMIT)
    held.add(1)
    ended.add(2)
    ended.close()
    remove_ended(tmp_path)
    assert read_counts(tmp_path) == Counts(1, 0)
    held.add(1)
    assert read_counts(tmp_path) == Counts(2, 0)


def test_a_damaged_counter_is_an_error(tmp_path: Path) -> None:
    counter = Counter(tmp_path, "inserted", LIMIT)
    counter.path.write_bytes(struct.pack("<qq", 5, 5))
    with pytest.raises(UnwritableError, match="is damaged"):
        read_counts(tmp_path)
    counter.add(1)  # the whole count is written each time
    assert read_counts(tmp_path).inserted == 1
