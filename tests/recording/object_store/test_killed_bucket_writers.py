"""Processes that record into a bucket are killed before requests of the bucket, and others continue."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from pathlib import Path

import pytest

import gear_data
from tests.support.s3.recordings import add_episodes, check_dataset, numbers_in, objects
from tests.support.s3.server import S3Server

#: Numbers of episodes of one process.
RANGE = 1000


def record(url: str, first: int, finished: str) -> None:
    """Records numbered episodes, and says after each how many are finished."""
    writer = gear_data.Writer(url, durability="os", shard_bytes=1024)
    said = os.open(finished, os.O_WRONLY | os.O_CREAT)
    for number in range(first, first + RANGE):
        add_episodes(writer, [number])
        os.pwrite(said, b"%d" % (number + 1 - first), 0)
        if number % 2:
            writer.flush()
        if number % 3 == 2:
            writer.seal()


def killed(server: S3Server, url: str, runs: dict[int, Path], choose: random.Random) -> list[str]:
    """Kills processes that record, each one before a request that changes the bucket. Returns these requests.

    Args:
        server: the server.
        url: the dataset.
        runs: the first number of each process -> its file of finished episodes.
        choose: chooses the requests.
    """
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=record, args=(url, first, str(path))) for first, path in runs.items()]
    waiting, places, count = list(processes), [], 0
    next_kill = choose.randrange(6, 50)

    def kill(method: str, path: str) -> None:
        nonlocal count, next_kill
        if method in ("PUT", "POST", "DELETE"):
            count += 1
            if count >= next_kill and waiting:
                waiting.pop().kill()
                places.append(f"{method} {path}")
                next_kill = count + choose.randrange(4, 20)
                if len(processes) == 1:
                    raise ConnectionAbortedError  # the server does not take its request

    for process in processes:
        process.start()
    server.before = kill
    follow(url, processes)
    server.reset()
    assert [process.exitcode for process in processes] == [-signal.SIGKILL] * len(processes)
    return places


def follow(url: str, processes: list[multiprocessing.context.SpawnProcess]) -> None:
    """Reads each generation that it meets, until all processes have ended: no generation loses an episode."""
    ds: gear_data.Dataset | None = None
    seen: set[int] = set()
    while any(process.is_alive() for process in processes):
        processes[0].join(0.2)
        if ds is None and "manifest.json" not in objects(url):
            continue
        ds = gear_data.open(url) if ds is None else ds.refresh()
        numbers = numbers_in(ds)
        assert len(numbers) == len(set(numbers))
        assert seen <= set(numbers)
        seen = set(numbers)


@pytest.mark.parametrize(("at_once", "rounds"), [(1, 7), (2, 3)])
def test_finished_episodes_outlive_the_process(
    server: S3Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, rounds: int
) -> None:
    choose = random.Random(f"{at_once}")
    finished: dict[int, Path] = {}
    places = []
    for case in range(rounds):
        first = len(finished)
        runs = {RANGE * (first + k): tmp_path / f"finished-{first + k}" for k in range(at_once)}
        places += killed(server, url, runs, choose)
        finished |= runs
        if case % 3 == 1:
            with monkeypatch.context() as patch:  # another machine publishes what is in the bucket
                patch.setenv("GEAR_DATA_JOURNALS", str(tmp_path / "another machine"))
                gear_data.Writer(url).close()
    gear_data.Writer(url).close()
    found = sorted(numbers_in(gear_data.open(url)))
    for first, path in finished.items():
        of_run = [number for number in found if first <= number < first + RANGE]
        # It is empty if the process was killed before its first episode was finished.
        said = int(path.read_text() or 0) if path.exists() else 0
        assert of_run == list(range(first, first + len(of_run))), places
        assert said <= len(of_run) <= said + 1, places
    check_dataset(url, found, tmp_path / "plain")
    assert not {file for file in objects(url) if file.startswith("journals/") and "/probe-" not in file}
