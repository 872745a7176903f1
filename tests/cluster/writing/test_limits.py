"""Large episodes, full and slow disks, and many writers. Real Flight servers, in this process."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from gear_data.cluster.writing.intake import EpisodeIntake, IntakeLimits
from gear_data.cluster.writing.server import WriteServer
from gear_data.errors import (
    InvalidArgumentError,
    NodeUnreachableError,
    StorageFullError,
)
from gear_data.recording.rate_limit.limit import RateLimit
from gear_data.recording.rate_limit.limiter import RateLimiter
from gear_data.recording.writer import Writer
from gear_data.storage.journal.episode_log import EarlierEpisodes
from tests.support.cluster.write_server import LIMITS, MemoryLog, add, numbers, serve, url
from tests.support.running.eventually import eventually


def test_an_episode_that_is_too_large(log: MemoryLog) -> None:
    limits = IntakeLimits(episode_bytes=12 << 20, memory_bytes=12 << 20, calls=8)
    server = serve(log, limits)
    with Writer(url(server)) as writer:
        image = np.arange(1 << 20, dtype=np.uint8)
        for _ in range(14):
            writer.append(image=image)
        with pytest.raises(InvalidArgumentError, match="14,680,064 bytes, and the server takes at most"):
            writer.end_episode(terminated=True)
        writer.discard()
        for t in range(10):  # in two messages
            writer.append(image=image + t)
        writer.end_episode(terminated=True)
    [episode] = log.taken
    assert np.array_equal(episode.columns["image"], [image + t for t in range(10)])
    server.shutdown()


def test_a_full_disk(server: WriteServer, log: MemoryLog) -> None:
    """The writer gets the server's error. It keeps the episode, and sends it again."""
    full = [True]

    def fail(call: str) -> None:
        if call == "append" and full[0]:
            raise StorageFullError("the disk is full", file="/secret/folder/journal", hint="free some space")

    log.fail = fail
    with Writer(url(server)) as writer:
        for _ in range(2):
            with pytest.raises(StorageFullError, match=r"the disk is full\n.*free some space") as error:
                add(writer, 0) if not writer.episodes else writer.flush()
            assert error.value.file == url(server)
        full[0] = False
        writer.flush()
        add(writer, 1)
    assert numbers(log) == [0, 1]


def test_an_error_that_the_writer_does_not_wait_for(server: WriteServer, log: MemoryLog) -> None:
    """The next episode raises it, and stays open."""
    full = [True]

    def fail(call: str) -> None:
        if call == "append" and full[0]:
            raise StorageFullError("the disk is full")

    log.fail = fail
    with Writer(url(server), durability="flush") as writer:
        add(writer, 0)
        assert eventually(lambda: writer._sink._sender._error is not None)
        with pytest.raises(StorageFullError):
            add(writer, 1)
        assert writer.open_episodes() == [0] and writer.episodes == 1
        full[0] = False
        writer.end_episode(terminated=True)
    assert numbers(log) == [0, 1]


def test_a_disk_that_fails(server: WriteServer, log: MemoryLog) -> None:
    """After a failed `fsync`, nobody knows what is on the disk. The server takes nothing until it is restarted."""
    calls = []

    def fail(call: str) -> None:
        calls.append(call)
        if calls.count("sync") == 1 and call == "sync":
            raise StorageFullError("the disk is full")

    log.fail = fail
    writer = Writer(url(server))
    for _ in range(3):
        with pytest.raises(StorageFullError):
            add(writer, 0) if not writer.episodes else writer.flush()
    assert calls.count("sync") == 1


def test_a_slow_disk_makes_writers_wait(server: WriteServer, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of the writer stays bounded, and everything arrives."""
    monkeypatch.setenv("GEAR_DATA_WRITE_BUFFER", str(40 << 10))
    log.fail = lambda call: time.sleep(0.01) if call == "append" else None
    begin = time.monotonic()
    with Writer(url(server), durability="os") as writer:
        for number in range(50):
            writer.append(actions=10 * number, observations=np.zeros(1 << 10))
            writer.end_episode(terminated=True)
            assert writer._sink._sender._bytes <= 40 << 10
        # At most the buffer and the call in flight are missing.
        assert len(log.taken) >= 50 - 5
    assert time.monotonic() - begin >= 0.45
    assert numbers(log) == list(range(50))


def test_writers_that_send_at_the_same_time(log: MemoryLog) -> None:
    """There are more than the server serves at once. Its memory has room for one episode of each two."""
    limits = IntakeLimits(episode_bytes=1 << 20, memory_bytes=1 << 20, calls=2)
    intake = EpisodeIntake(log, EarlierEpisodes(), limits)
    server = serve(intake)
    largest = []
    log.fail = lambda _: largest.append(intake._used_bytes)

    def record(writer_number: int) -> None:
        with Writer(url(server), durability="os") as writer:
            for number in range(10):
                writer.append(actions=10 * (10 * writer_number + number), observations=np.zeros(80 << 10))
                writer.end_episode(terminated=True)

    threads = [threading.Thread(target=record, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = numbers(log)
    assert sorted(found) == list(range(50))
    for number in range(5):
        assert [each for each in found if each // 10 == number] == list(range(10 * number, 10 * number + 10))
    assert max(largest) <= 1 << 20
    server.shutdown()


def test_writers_that_wait_for_training(
    log: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls end while training is slow, and begin again."""
    monkeypatch.setattr("gear_data.cluster.writing.server.WAIT_SECONDS", 0.1)
    monkeypatch.setenv("GEAR_DATA_WRITE_TIMEOUT", "2")
    limit = RateLimit(min_steps=3, samples_per_insert=1.0, error=6.0)
    with RateLimiter(tmp_path / "d", limit, "inserted") as inserted:
        server = serve(EpisodeIntake(log, EarlierEpisodes(), LIMITS, inserted))
        with Writer(url(server), durability="flush") as writer:
            for number in range(20):
                add(writer, number)
            # After 3 + 6 steps, and one episode more, the writer is ahead.
            assert eventually(lambda: numbers(log) == [0, 1, 2, 3])
            with RateLimiter(tmp_path / "d", limit, "sampled") as sampled:
                for number in range(4, 20):
                    assert eventually(lambda: "a Writer waits for training" in caplog.text)
                    assert numbers(log) == list(range(number))
                    caplog.clear()
                    sampled.add(3)
                    assert eventually(lambda n=number: numbers(log) == list(range(n + 1)))  # type: ignore[misc]
            writer.flush()
        server.shutdown()
    assert numbers(log) == list(range(20))


def test_training_that_does_not_start(log: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gear_data.cluster.writing.server.WAIT_SECONDS", 0.1)
    monkeypatch.setenv("GEAR_DATA_WRITE_TIMEOUT", "1")
    limit = RateLimit(min_steps=3, samples_per_insert=1.0, error=6.0)
    with RateLimiter(tmp_path / "d", limit, "inserted") as inserted:
        server = serve(EpisodeIntake(log, EarlierEpisodes(), LIMITS, inserted))
        writer = Writer(url(server), durability="flush")
        for number in range(5):
            add(writer, number)
        assert eventually(lambda: numbers(log) == [0, 1, 2, 3] and writer._sink._sender._trouble is not None)
        with pytest.raises(
            NodeUnreachableError, match=r"did not acknowledge 1 episodes.*training \(none has started\)"
        ):
            writer.flush()
        with RateLimiter(tmp_path / "d", limit, "sampled") as sampled:
            sampled.add(100)
            writer.close()
        server.shutdown()
    assert numbers(log) == [0, 1, 2, 3, 4]
