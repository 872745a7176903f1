"""Writers and training in several processes, under one rate limit."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import gear_data
from gear_data.errors import InvalidArgumentError, RateLimitError
from gear_data.recording.earlier_episodes import only_server
from gear_data.recording.rate_limit import limiter
from gear_data.recording.rate_limit.counters import read_counts
from gear_data.recording.rate_limit.limit import Counts
from tests.support.running.eventually import eventually

SPAWN = multiprocessing.get_context("spawn")
LIMIT = gear_data.RateLimit(min_steps=200, samples_per_insert=4.0, error=400.0, timeout=300.0)
STEPS, ROWS = 25, 64


def batches(number: int) -> Iterator[dict[str, np.ndarray]]:
    for _ in range(number):
        yield {"rewards": np.zeros(ROWS), "source": np.arange(ROWS) % 2}


def insert(writer: gear_data.Writer, episodes: int) -> None:
    for _ in range(episodes):
        for step in range(STEPS):
            writer.append(observations=[float(step)], actions=0)
        writer.end_episode(terminated=True)


def write(path: Path, episodes: int) -> None:
    with gear_data.Writer(path, durability="os", rate_limit=LIMIT) as writer:
        insert(writer, episodes)


def train(path: Path) -> None:
    for _ in gear_data.rate_limited(batches(10**6), path, LIMIT):
        pass


def difference(counts: Counts) -> float:
    return (counts.inserted - 200) * 4.0 - counts.sampled


@pytest.mark.processes
def test_two_processes_keep_the_ratio(tmp_path: Path) -> None:
    path, folder = tmp_path / "live", tmp_path / "live.rate"
    child = SPAWN.Process(target=write, args=(path, 100))
    child.start()
    differences, first = [], None
    # 2,500 steps are 10,000 rows; training ends with the range, and the writer with its lead of at most 400 rows.
    for _ in gear_data.rate_limited(batches(144), path, LIMIT):
        counts = read_counts(folder)
        first = first or counts
        differences.append(difference(counts))
    child.join(120)
    assert child.exitcode == 0
    assert read_counts(folder) == Counts(2500, 144 * ROWS)
    assert first is not None and first.inserted >= 200
    assert min(differences) >= -400 - ROWS
    assert max(differences) <= 400 + STEPS * 4


def test_a_writer_waits_for_training_and_says_for_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "live"
    monkeypatch.setattr(limiter, "MESSAGE_SECONDS", 0.05)
    training = gear_data.rate_limited(batches(1000), path, LIMIT)
    with gear_data.Writer(path, rate_limit=replace(LIMIT, timeout=0.2)) as writer:
        insert(writer, 8)
        next(training)
        insert(writer, 5)
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(RateLimitError, match="a Writer waits for training") as error,
        ):
            insert(writer, 20)
        counts = read_counts(tmp_path / "live.rate")
        assert difference(counts) > 400 >= difference(replace(counts, inserted=counts.inserted - STEPS))
        assert f"this process ({os.getpid()}) (64)" in str(error.value)
        assert f"{counts.inserted} steps inserted, 64 rows sampled" in str(error.value)
        assert isinstance(error.value, TimeoutError)
        assert "a Writer waits for training" in caplog.text
        # The episode is open, and ends once training goes on.
        assert writer.open_episodes() == [0]
        next(training)
        next(training)
        writer.end_episode(terminated=True)
        assert read_counts(tmp_path / "live.rate").inserted == counts.inserted + STEPS
        # Nothing waits in `close`.
        writer.append(observations=[0.0], actions=0)
    assert gear_data.open(path).num_steps == counts.inserted + STEPS + 1
    assert read_counts(tmp_path / "live.rate").inserted == counts.inserted + STEPS + 1


def test_a_batch_of_steps_waits_as_a_whole(tmp_path: Path) -> None:
    limit = gear_data.RateLimit(min_steps=1, samples_per_insert=1.0, error=1.0, timeout=0.05)
    with gear_data.Writer(tmp_path / "live", rate_limit=limit) as writer:
        ends = np.array([True, True])
        writer.append_batch(actions=[0, 0], terminated=ends)
        writer.append_batch(actions=[0, 0], terminated=ends)
        with pytest.raises(RateLimitError):
            writer.append_batch(actions=[0, 0], terminated=ends)
        assert writer.open_episodes() == []
        writer.append_batch(actions=[0, 0])
        assert writer.open_episodes() == [0, 1]
        writer.discard(0)
        writer.discard(1)
    assert gear_data.open(tmp_path / "live").num_steps == 4


def test_other_threads_use_a_writer_that_waits(tmp_path: Path) -> None:
    limit = gear_data.RateLimit(min_steps=1, samples_per_insert=1.0, error=1.0, timeout=30.0)
    training = gear_data.rate_limited(batches(10), tmp_path / "live", limit)
    with gear_data.Writer(tmp_path / "live", rate_limit=limit) as writer:
        insert(writer, 1)
        writer.append(env_id=1, observations=[0.0], actions=0)
        waiting = threading.Thread(target=writer.end_episode, args=(1,))
        waiting.start()
        writer.append(env_id=2, observations=[0.0], actions=0)
        assert waiting.is_alive()
        next(training)
        waiting.join(120)
        assert writer.open_episodes() == [2]


def test_the_end_of_a_recorded_environment_does_not_wait(tmp_path: Path) -> None:
    """Training may have ended. `close` of the Writer does not wait, either."""
    limit = gear_data.RateLimit(min_steps=1, samples_per_insert=1.0, error=1.0, timeout=0.05)
    writer = gear_data.Writer(tmp_path / "live", rate_limit=limit)
    env = gear_data.record(gymnasium.make("CartPole-v1"), writer)
    for _ in range(2):
        env.reset(seed=0)
        for _ in range(3):
            env.step(0)
    with pytest.raises(RateLimitError):
        env.reset()
    env.close()
    assert gear_data.open(tmp_path / "live").episodes["length"].to_list() == [3, 3]


def test_training_that_waits_for_the_first_generation_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "live"
    writing = threading.Thread(target=write, args=(path, 40))  # it publishes at the end only
    writing.start()
    ds = gear_data.open(path, follow=True)
    assert ds.num_steps < 1000
    loader = gear_data.SequenceLoader(ds, batch_size=ROWS, steps=50)
    assert len(list(gear_data.rate_limited(loader, path, LIMIT))) == 50
    writing.join(120)
    assert gear_data.open(path).num_steps == 1000


def test_training_waits_for_min_steps(tmp_path: Path) -> None:
    limit = replace(LIMIT, timeout=0.05)
    training = gear_data.rate_limited(batches(3), tmp_path / "live", limit)
    with pytest.raises(RateLimitError, match=r"training waits for Writers \(none has started\): 0 steps"):
        next(training)
    with gear_data.Writer(tmp_path / "live", rate_limit=limit) as writer:
        insert(writer, 7)
        with pytest.raises(RateLimitError, match="175 steps inserted, 0 rows sampled"):
            next(gear_data.rate_limited(batches(3), tmp_path / "live", limit))
        insert(writer, 1)
        assert len(list(gear_data.rate_limited(batches(3), tmp_path / "live", limit))) == 3


@pytest.mark.processes
def test_counts_of_an_ended_process_stay(tmp_path: Path) -> None:
    path = tmp_path / "live"
    child = SPAWN.Process(target=write, args=(path, 8))
    child.start()
    child.join()
    for _ in gear_data.rate_limited(batches(6), path, LIMIT):
        pass
    with pytest.raises(RateLimitError, match=rf"Writers \(process {child.pid} on .* \(200, has ended\)\)"):
        list(gear_data.rate_limited(batches(3), path, replace(LIMIT, timeout=0.05)))
    assert read_counts(tmp_path / "live.rate") == Counts(200, 7 * ROWS)


@pytest.mark.processes
def test_a_writer_outlives_training_that_was_killed(tmp_path: Path) -> None:
    path, folder = tmp_path / "live", tmp_path / "live.rate"
    with gear_data.Writer(path, durability="os", rate_limit=replace(LIMIT, timeout=0.5)) as writer:
        insert(writer, 8)
        child = SPAWN.Process(target=train, args=(path,))
        child.start()
        assert eventually(lambda: read_counts(folder).sampled > 400)  # it waits at the end of its margin
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        before = read_counts(folder).sampled
        with pytest.raises(RateLimitError, match=rf"training \(process {child.pid} on .* \({before}, has ended\)\)"):
            insert(writer, 100)
        assert len(list(gear_data.rate_limited(batches(5), path, LIMIT))) == 5
        writer.end_episode(terminated=True)
        assert read_counts(folder).sampled == before + 5 * ROWS
        assert len(list(folder.glob("*.sampled"))) == 1


def test_a_new_dataset_forgets_the_counts_of_an_old_one(tmp_path: Path) -> None:
    write(tmp_path / "live", 8)
    for path in sorted((tmp_path / "live").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with gear_data.Writer(tmp_path / "live", rate_limit=LIMIT) as writer:
        insert(writer, 1)
        assert read_counts(tmp_path / "live.rate") == Counts(STEPS, 0)


def test_a_server_forgets_the_counts_of_an_old_dataset(tmp_path: Path) -> None:
    """It has a folder of journals before its first episode. A killed Writer leaves such a folder, too."""
    write(tmp_path / "live", 8)
    shutil.rmtree(tmp_path / "live")
    with only_server(tmp_path / "live"):
        with limiter.RateLimiter(tmp_path / "live", LIMIT, "inserted") as counted:
            assert read_counts(tmp_path / "live.rate") == Counts(0, 0)
            counted.add(STEPS)
        journal = tmp_path / "live.journal/000/000000.arrows"
        journal.parent.mkdir()
        journal.touch()
        with limiter.RateLimiter(tmp_path / "live", LIMIT, "inserted"):
            assert read_counts(tmp_path / "live.rate") == Counts(STEPS, 0)  # a Writer that died has episodes


def test_running_processes_need_one_limit(tmp_path: Path) -> None:
    other = replace(LIMIT, error=500.0)
    with gear_data.Writer(tmp_path / "live", rate_limit=LIMIT) as writer:
        with pytest.raises(InvalidArgumentError, match=r"error=500\.0.* is RateLimit\(min_steps=200.*error=400\.0"):
            gear_data.rate_limited(batches(1), tmp_path / "live", other)
        insert(writer, 8)
    assert len(list(gear_data.rate_limited(batches(1), tmp_path / "live", other))) == 1


def test_rows_of_one_dataset_of_a_mixture_count(tmp_path: Path) -> None:
    write(tmp_path / "live", 8)
    assert len(list(gear_data.rate_limited(batches(3), tmp_path / "live", LIMIT, source=1))) == 3
    assert read_counts(tmp_path / "live.rate").sampled == 3 * ROWS // 2
    with pytest.raises(InvalidArgumentError, match="no source"):
        next(gear_data.rate_limited([{"rewards": np.zeros(3)}], tmp_path / "live", LIMIT, source=1))


def test_ranks_count_their_own_rows(tmp_path: Path) -> None:
    write(tmp_path / "live", 8)
    ds = gear_data.open(tmp_path / "live")
    loaders = [gear_data.SequenceLoader(ds, batch_size=10, steps=2, rank=rank, world_size=3) for rank in range(3)]
    for loader in loaders:
        assert len(list(gear_data.rate_limited(loader, tmp_path / "live", LIMIT))) == 2
    assert read_counts(tmp_path / "live.rate").sampled == 20


def test_sharded_arrays_of_jax_count_once(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    mesh = jax.make_mesh((1,), ("data",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    batch = {"rewards": jax.device_put(np.zeros(12), rows), "source": jax.device_put(np.arange(12) % 3, rows)}
    write(tmp_path / "live", 8)
    list(gear_data.rate_limited([batch], tmp_path / "live", LIMIT))
    assert read_counts(tmp_path / "live.rate").sampled == 12
    list(gear_data.rate_limited([batch], tmp_path / "live", LIMIT, source=2))
    assert read_counts(tmp_path / "live.rate").sampled == 16


def test_a_url_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="needs a folder of this machine"):
        gear_data.rate_limited([], "s3://bucket/live", LIMIT)
