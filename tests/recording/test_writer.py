from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gear_data
from gear_data.errors import DestinationExistsError, InvalidArgumentError, StorageFullError, UnsupportedColumnError
from gear_data.recording import sealing
from gear_data.recording.sinks.journal_sink import JournalSink
from gear_data.storage.journal.record import RecordedEpisode
from tests.support.running.warm_python import INTERPRETER

Episode = dict[str, Any]


def episodes(count: int, seed: int = 0) -> list[Episode]:
    """Returns episodes as `convert` takes them from memory.

    They have T + 1 observations, and one end flag of each kind.
    """
    random = np.random.default_rng(seed)
    found = []
    for number in range(count):
        steps = int(random.integers(1, 40))
        found.append(
            {
                "observations": {
                    "position": random.random((steps + 1, 3)),
                    "image": random.integers(0, 256, (steps + 1, 4, 5, 3), np.uint8),
                },
                "actions": random.random((steps, 2), np.float32),
                "rewards": random.random(steps),
                "infos": {"contact": random.random(steps) < 0.5, "words": [f"step {t}" for t in range(steps)]},
                "terminated": bool(number % 2),
                "truncated": not number % 2,
                "seed": number,
                "task": "lift" if number % 3 else "öffnen",
            }
        )
    return found


def step_of(episode: Episode, t: int) -> dict[str, Any]:
    return {
        "observations": {name: values[t] for name, values in episode["observations"].items()},
        "actions": episode["actions"][t],
        "rewards": episode["rewards"][t],
        "infos": {name: values[t] for name, values in episode["infos"].items()},
    }


def final_of(episode: Episode) -> dict[str, npt.NDArray[Any]]:
    return {name: values[-1] for name, values in episode["observations"].items()}


def end(writer: gear_data.Writer, episode: Episode, env_id: int = 0) -> None:
    facts = {name: episode[name] for name in ("terminated", "truncated", "seed", "task")}
    writer.end_episode(env_id, final=final_of(episode), **facts)


def record(writer: gear_data.Writer, recorded: list[Episode]) -> None:
    for episode in recorded:
        for t in range(len(episode["rewards"])):
            writer.append(**step_of(episode, t))
        end(writer, episode)


def test_the_dataset_is_that_of_a_conversion(tmp_path: Path) -> None:
    recorded = episodes(60)
    with gear_data.Writer(tmp_path / "recorded") as writer:
        record(writer, recorded)
    report = gear_data.convert(recorded, tmp_path / "converted")
    ds, expected = gear_data.open(tmp_path / "recorded"), gear_data.open(tmp_path / "converted")
    assert ds.fingerprint == report.fingerprint
    assert ds.episodes["seed"].to_list() == list(range(60))
    assert ds.episodes["task"].to_list() == expected.episodes["task"].to_list()
    assert ds.episodes["return"].to_list() == expected.episodes["return"].to_list()
    assert gear_data.verify(tmp_path / "recorded").ok
    assert sorted(path.name for path in tmp_path.iterdir()) == ["converted", "recorded"]


def test_environments_may_take_turns(tmp_path: Path) -> None:
    """Episodes are in the order of their ends."""
    recorded = episodes(12)
    with gear_data.Writer(tmp_path / "recorded", durability="os") as writer:
        for first in range(0, 12, 4):
            group = recorded[first : first + 4]
            for t in range(max(len(each["rewards"]) for each in group)):
                for number, episode in enumerate(group):
                    if t < len(episode["rewards"]):
                        writer.append(env_id=number, **step_of(episode, t))
            for number, episode in enumerate(group):
                end(writer, episode, env_id=number)
    assert gear_data.open(tmp_path / "recorded").fingerprint == gear_data.convert(recorded, tmp_path / "c").fingerprint


def test_batches_of_environments(tmp_path: Path) -> None:
    """Steps of all environments at once give the same episodes as single steps."""
    random = np.random.default_rng(1)
    count, steps = 5, 300
    observations = random.random((steps + 1, count, 3), np.float32)
    actions, rewards = random.integers(0, 4, (steps, count)), random.random((steps, count))
    terminated, truncated = random.random((steps, count)) < 0.02, random.random((steps, count)) < 0.02
    expected: list[Episode] = []
    begun = [0] * count
    with gear_data.Writer(tmp_path / "recorded") as writer:
        for t in range(steps):
            writer.append_batch(
                observations=observations[t], actions=actions[t], rewards=rewards[t],
                terminated=terminated[t], truncated=truncated[t], final=observations[t + 1],
            )  # fmt: skip
            for number in range(count):
                if terminated[t, number] or truncated[t, number]:
                    part = slice(begun[number], t + 1)
                    expected.append(
                        {
                            "observations": observations[begun[number] : t + 2, number],
                            "actions": actions[part, number],
                            "rewards": rewards[part, number],
                            "terminated": bool(terminated[t, number]),
                            "truncated": bool(truncated[t, number]),
                        }
                    )
                    begun[number] = t + 1
        assert writer.episodes == len(expected) > 20
        for number in range(count):
            writer.discard(number)
    assert gear_data.open(tmp_path / "recorded").fingerprint == gear_data.convert(expected, tmp_path / "c").fingerprint


def test_open_episodes_are_truncated_at_the_end(tmp_path: Path) -> None:
    with gear_data.Writer(tmp_path / "recorded") as writer:
        for t in range(600):
            writer.append(observations=np.full(2, t, np.float32), actions=t)
    ds = gear_data.open(tmp_path / "recorded")
    assert ds.episodes.select("length", "truncated", "terminated").rows() == [(600, True, False)]
    assert ds.final(0) is None
    assert ds[0]["observations"][:, 0].tolist() == list(range(600))


def test_an_earlier_writer_is_continued(tmp_path: Path) -> None:
    recorded = episodes(9)
    earlier = gear_data.Writer(tmp_path / "recorded")
    record(earlier, recorded[:4])
    earlier.append(**step_of(recorded[4], 0))  # lost with the process
    kill(earlier)
    with gear_data.Writer(tmp_path / "recorded") as writer:
        assert writer.episodes == 4
        record(writer, recorded[4:])
    assert gear_data.open(tmp_path / "recorded").fingerprint == gear_data.convert(recorded, tmp_path / "c").fingerprint


def kill(writer: gear_data.Writer) -> None:
    """Ends a Writer as the end of its process would."""
    writer._sink._journals._stack.close()


def test_several_writers_of_one_dataset(tmp_path: Path) -> None:
    """Each has its own journals. The order is that of the generations."""
    recorded = episodes(12)
    first, second = gear_data.Writer(tmp_path / "recorded"), gear_data.Writer(tmp_path / "recorded")
    record(first, recorded[0:2])
    record(second, recorded[4:6])
    first.seal()
    record(first, recorded[6:9])
    publication = second.seal()
    assert publication is not None
    assert (publication.generation, publication.episodes, publication.total_episodes) == (2, 2, 4)
    record(second, recorded[9:])
    first.close()
    second.close()
    expected = [*recorded[0:2], *recorded[4:6], *recorded[6:9], *recorded[9:]]
    ds = gear_data.open(tmp_path / "recorded")
    assert ds.generation == 4
    assert ds.fingerprint == gear_data.convert(expected, tmp_path / "c").fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "recorded"]


def test_journals_of_a_dead_writer_are_published(tmp_path: Path) -> None:
    recorded = episodes(9)
    alive, dead = gear_data.Writer(tmp_path / "recorded"), gear_data.Writer(tmp_path / "recorded")
    record(alive, recorded[:4])
    record(dead, recorded[4:])
    kill(dead)
    alive.close()
    ds = gear_data.open(tmp_path / "recorded")
    assert ds.fingerprint == gear_data.convert(recorded, tmp_path / "c").fingerprint


def test_a_converted_dataset_grows(tmp_path: Path) -> None:
    recorded = episodes(9)
    gear_data.convert(recorded[:5], tmp_path / "ds")
    before = gear_data.open(tmp_path / "ds")
    with gear_data.Writer(tmp_path / "ds") as writer:
        record(writer, recorded[5:])
    ds = gear_data.open(tmp_path / "ds")
    assert ds.fingerprint == gear_data.convert(recorded, tmp_path / "c").fingerprint
    assert (before.generation, len(before), ds.generation, len(ds)) == (0, 5, 1, 9)
    np.testing.assert_array_equal(before[4]["actions"], recorded[4]["actions"])
    assert gear_data.verify(tmp_path / "ds", deep=True).ok


def test_other_columns_cannot_join(tmp_path: Path) -> None:
    recorded = episodes(2)
    gear_data.convert(recorded, tmp_path / "ds")
    with gear_data.Writer(tmp_path / "ds") as writer:
        step = step_of(recorded[0], 0)
        with pytest.raises(UnsupportedColumnError, match="column 'rewards': cannot be recorded: the first step lacks"):
            writer.append(**{name: value for name, value in step.items() if name != "rewards"})
        with pytest.raises(UnsupportedColumnError, match=r"has float64 \[2\], and the dataset has float32 \[2\]"):
            writer.append(**{**step, "actions": np.zeros(2)})
        writer.append(**step)
    assert len(gear_data.open(tmp_path / "ds")) == 3


def test_generations_are_published_by_a_thread(tmp_path: Path) -> None:
    recorded = episodes(40)
    with gear_data.Writer(tmp_path / "ds", publish_every=0.05, durability="os") as writer:
        record(writer, recorded[:20])
        ds = gear_data.open(tmp_path / "ds", follow=True)
        deadline = time.monotonic() + 30
        while len(ds) < 20 and time.monotonic() < deadline:
            ds = ds.refresh()
        assert len(ds) == 20
        record(writer, recorded[20:])
    assert len(ds.refresh()) == 40
    assert ds.refresh().fingerprint == gear_data.convert(recorded, tmp_path / "c").fingerprint


def test_a_writer_without_steps_leaves_nothing(tmp_path: Path) -> None:
    with gear_data.Writer(tmp_path / "recorded") as writer:
        assert writer.seal() is None
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DestinationExistsError, match="is not a dataset"):
        gear_data.Writer(tmp_path)
    with pytest.raises(DestinationExistsError, match="is not a dataset"):
        gear_data.Writer(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "step, message",
    [
        ({"actions": 1.0}, "step 1 of the open episode of environment 0 lacks observations"),
        ({"observations": np.zeros(2, np.float32), "actions": 1.0, "more": 3}, "has another column: more"),
        ({"observations": np.zeros(2), "actions": 1.0}, r"has float64 \[2\], and the column has float32 \[2\]"),
        ({"observations": np.zeros(3, np.float32), "actions": 1.0}, r"has float32 \[3\]"),
        ({"observations": np.zeros(2, np.float32), "actions": "left"}, "column 'actions'"),
        ({"observations": np.zeros(2, np.float32), "actions": True}, "has bool"),
        ({"observations": [[1.0], [2.0, 3.0]], "actions": 1.0}, "has a value that is no array"),
    ],
)
def test_wrong_steps_leave_the_episode_as_it_is(tmp_path: Path, step: dict[str, Any], message: str) -> None:
    right = {"observations": np.ones(2, np.float32), "actions": 0.5}
    with gear_data.Writer(tmp_path / "recorded") as writer:
        writer.append(**right)
        with pytest.raises(InvalidArgumentError, match=message):
            writer.append(**step)
        writer.append(**{**right, "actions": 2})  # a whole number fits into a float
        with pytest.raises(InvalidArgumentError, match="the final observation of environment 0"):
            writer.end_episode(terminated=True, final=np.ones(3, np.float32))
        writer.end_episode(terminated=True, final=np.full(2, 3, np.float32))
    ds = gear_data.open(tmp_path / "recorded")
    assert ds[0]["actions"].tolist() == [0.5, 2.0]
    assert ds.final(0)["observations"].tolist() == [3, 3]


def test_wrong_batches_add_no_step(tmp_path: Path) -> None:
    rows = {"observations": np.zeros((3, 2)), "actions": np.zeros(3, np.int64)}
    with gear_data.Writer(tmp_path / "recorded") as writer:
        writer.append_batch(**rows)
        for change, message in (
            ({"observations": np.zeros((3, 4))}, "a step of 3 environments"),
            ({"actions": np.zeros(2, np.int64)}, r"column 'actions'"),
            ({"env_id": [0, 1]}, "3 different ints"),
            ({"env_id": [0, 1, 1]}, "3 different ints"),
            ({"terminated": [1, 0, 0]}, r"terminated must be bool \[3\]"),
            ({"final": np.zeros((2, 2)), "terminated": np.ones(3, bool)}, "a step of 3 environments"),
            ({"observations": [[1.0], [2.0, 3.0], [4.0]]}, "a step of 3 environments has a value that is no array"),
            ({"actions": 1}, "column 'actions': is int, not an array with a row for each environment"),
            ({"actions": np.int64(1)}, "column 'actions': is int64, not an array"),
            ({"observations": np.zeros(())}, "column 'observations': is ndarray, not an array"),
            ({"actions": []}, "column 'actions': is list, not an array"),
            ({"terminated": [[True], [True, False], [True]]}, "terminated"),
            ({"actions": [1, 2, 1 << 70]}, "column 'actions'"),
        ):
            with pytest.raises(InvalidArgumentError, match=message):
                writer.append_batch(**{**rows, **change})
        writer.append_batch(**rows, terminated=np.ones(3, bool))
    assert gear_data.open(tmp_path / "recorded").episodes["length"].to_list() == [2, 2, 2]


def test_arguments_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="durability must be one of"):
        gear_data.Writer(tmp_path / "a", durability="always")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="has no conditional puts"):
        gear_data.Writer("memory://bucket/dataset")
    for wrong in ({"max_steps": 0}, {"max_bytes": -1}, {"publish_every": 0}, {"shard_bytes": 10}):
        with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
            gear_data.Writer(tmp_path / "a", **wrong)  # type: ignore[arg-type]
    with gear_data.Writer(tmp_path / "b") as writer:
        with pytest.raises(UnsupportedColumnError, match="dtype object"):
            writer.append(actions=object())
        with pytest.raises(InvalidArgumentError, match="has no open episode"):
            writer.end_episode(terminated=True)
        writer.append(actions=1)
        for fact in (float("nan"), [1], None):
            with pytest.raises(InvalidArgumentError, match="the fact x is"):
                writer.end_episode(x=fact)
    with pytest.raises(InvalidArgumentError, match="is closed"):
        writer.append(actions=1)


def test_discarded_episodes_are_not_recorded(tmp_path: Path) -> None:
    with gear_data.Writer(tmp_path / "recorded") as writer:
        for number in range(6):
            for t in range(3):
                writer.append(actions=10 * number + t, infos={"note": "é" * t})
            if number % 2:
                writer.discard()
            else:
                writer.end_episode()
    ds = gear_data.open(tmp_path / "recorded")
    assert ds.episodes["truncated"].all()
    assert [ds[i]["actions"][0] for i in range(len(ds))] == [0, 20, 40]
    assert ds[2]["infos.note"].tolist() == ["", "é", "éé"]


@pytest.mark.processes
def test_recording_imports_nothing() -> None:
    """Imports would delay a robot. They come before the first step."""
    program = """
import sys, tempfile
import gear_data
with gear_data.Writer(tempfile.mkdtemp() + "/d") as writer:
    before = set(sys.modules)
    for step in range(3):
        writer.append(observations=[0.5, 1.5], actions=step)
    writer.end_episode(terminated=True, final=[0.5, 1.5])
    assert not (new := set(sys.modules) - before), new
"""
    subprocess.run([sys.executable, "-c", program], check=True)


LEFT_OPEN = """
import sys, gear_data
writer = gear_data.Writer(sys.argv[1], publish_every=float(sys.argv[2]) if sys.argv[2] else None)
for number in range(3):
    writer.append(actions=number)
    writer.end_episode(terminated=True, number=number)
writer.append(actions=9)
"""


def test_a_writer_that_is_collected_warns_and_leaves_its_episodes(tmp_path: Path) -> None:
    writer = gear_data.Writer(tmp_path / "live")
    for number in range(3):
        writer.append(actions=number)
        writer.end_episode(terminated=True, number=number)
    writer.append(actions=9)
    with pytest.warns(ResourceWarning, match=r"live was not closed: .* Call close\(\)"):
        del writer
        gc.collect()
    with gear_data.Writer(tmp_path / "live") as later:
        assert later.episodes == 3
    assert gear_data.open(tmp_path / "live").episodes["number"].to_list() == [0, 1, 2]


@pytest.mark.processes
@pytest.mark.parametrize("every", ["", "60"])
def test_a_writer_that_is_open_at_the_end_of_the_process(every: str, tmp_path: Path) -> None:
    # The tests' own interpreter leaves out what Python does at its end.
    command = [INTERPRETER, "-W", "always::ResourceWarning", "-c", LEFT_OPEN, str(tmp_path / "live"), every]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "was not closed" in ended.stderr
    assert "Exception ignored" not in ended.stderr and "Traceback" not in ended.stderr
    with gear_data.Writer(tmp_path / "live") as later:
        assert later.episodes == 3
    assert gear_data.open(tmp_path / "live").episodes["number"].to_list() == [0, 1, 2]


def test_a_closed_writer_and_one_that_could_not_be_made_do_not_warn(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gear_data.Writer(tmp_path / "live").close()
        with pytest.raises(InvalidArgumentError):
            gear_data.Writer(tmp_path / "live", durability="never")  # type: ignore[arg-type]
        gc.collect()


def test_a_closed_writer_leaves_the_journals_of_the_next_one(tmp_path: Path) -> None:
    """They have the same folder. A publication that an interrupted `seal` began may wait for `close`."""
    with gear_data.Writer(tmp_path / "live") as closed:
        pass
    with pytest.raises(InvalidArgumentError, match="the Writer is closed"):
        closed.flush()
    with gear_data.Writer(tmp_path / "live") as writer:
        for number in range(2):
            writer.append(actions=number)
            writer.end_episode(terminated=True, number=number)
            assert closed._sink.seal() is None
    assert gear_data.open(tmp_path / "live").episodes["number"].to_list() == [0, 1]


PUBLISHES_LATE = """
import concurrent.futures, sys, threading, gear_data
from gear_data.recording import sealing

def convert_late(*args, convert=sealing.convert, **options):
    begun.set()
    while True:
        try:
            threads.submit(int)
        except RuntimeError:  # no thread begins to work any more: the main thread has ended
            return convert(*args, **options)

begun, threads, sealing.convert = threading.Event(), concurrent.futures.ThreadPoolExecutor(1), convert_late
writer = gear_data.Writer(sys.argv[1], publish_every=0.01)
for number in range(3):
    writer.append(actions=number)
    writer.end_episode(terminated=True, number=number)
begun.wait()
"""


@pytest.mark.processes
def test_the_process_ends_before_the_conversion_of_a_publication(tmp_path: Path) -> None:
    command = [INTERPRETER, "-c", PUBLISHES_LATE, str(tmp_path / "live")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "Traceback" not in ended.stderr
    gear_data.Writer(tmp_path / "live").close()
    assert gear_data.open(tmp_path / "live").episodes["number"].to_list() == [0, 1, 2]


def test_an_unexpected_error_of_a_publication_is_raised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed, again = threading.Event(), threading.Event()

    def fail(*args: Any, **options: Any) -> None:
        (again if failed.is_set() else failed).set()
        raise RuntimeError("a fault of a library")

    monkeypatch.setattr("gear_data.recording.sealing.convert", fail)
    with gear_data.Writer(tmp_path / "live", publish_every=0.01) as writer:
        writer.append(actions=0)
        writer.end_episode(terminated=True, number=0)
        assert failed.wait(60) and again.wait(60)  # the thread goes on
        monkeypatch.undo()
        writer.append(actions=1)
        with pytest.raises(RuntimeError, match="a fault of a library"):
            writer.end_episode(terminated=True, number=1)
        writer.end_episode(terminated=True, number=1)
    assert gear_data.open(tmp_path / "live").episodes["number"].to_list() == [0, 1]


def test_close_is_not_about_an_earlier_error_of_a_publication(tmp_path: Path) -> None:
    """It publishes, and records the episode that is open."""
    with gear_data.Writer(tmp_path / "live") as writer:
        writer.append(actions=0)
        writer.end_episode(terminated=True)
        writer.append(actions=1)
        writer._sink._error = RuntimeError("a fault of a library")  # type: ignore[attr-defined]  # of the thread
    assert gear_data.open(tmp_path / "live").episodes.select("length", "truncated").rows() == [(1, False), (1, True)]


def test_close_ends_all_episodes_but_one_that_cannot_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = JournalSink.append

    def append(sink: JournalSink, episode: RecordedEpisode) -> None:
        if episode.columns["actions"][0] == 1:
            raise InvalidArgumentError("cannot be recorded")
        real(sink, episode)

    writer = gear_data.Writer(tmp_path / "live")
    writer.append_batch(actions=[0, 1, 2])
    monkeypatch.setattr(JournalSink, "append", append)
    with pytest.raises(InvalidArgumentError, match="cannot be recorded"):
        writer.close()
    assert writer.open_episodes() == [1] and writer.episodes == 2
    writer.discard(1)
    writer.close()
    assert gear_data.open(tmp_path / "live").num_steps == 2


def test_a_full_disk_has_room_again_when_readers_have_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that only they read leave, also if the disk has no room to seal a journal before."""
    real = sealing.convert

    def convert(*arguments: Any, **options: Any) -> Any:
        if (tmp_path / "live/generations/000001.json").exists():
            raise StorageFullError("no space left on the device")
        return real(*arguments, **options)

    def add(writer: gear_data.Writer) -> None:
        writer.append(actions=0)
        writer.end_episode(terminated=True)
        writer.seal()

    with gear_data.Writer(tmp_path / "live") as writer:
        add(writer)
        ds = gear_data.open(tmp_path / "live")
        add(writer)
        monkeypatch.setattr(sealing, "convert", convert)
        with pytest.raises(StorageFullError):
            add(writer)
        del ds
        gc.collect()
        writer.seal()
        assert gear_data.open(tmp_path / "live").num_steps == 3


def test_a_full_disk_has_no_room_for_the_first_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards, real = tmp_path / "live/shards", os.mkdir

    def mkdir(path: Any, *arguments: Any, **options: Any) -> None:
        if Path(path) == shards:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, *arguments, **options)

    with gear_data.Writer(tmp_path / "live") as writer:
        writer.append(actions=0)
        writer.end_episode(terminated=True)
        with monkeypatch.context() as patch:
            patch.setattr(os, "mkdir", mkdir)
            with pytest.raises(StorageFullError, match="live/shards"):
                writer.seal()
    assert gear_data.open(tmp_path / "live").num_steps == 1


PUBLISHES = """
import sys, threading, time, gear_data
from gear_data.recording.sinks.journal_sink import JournalSink

def publish(sink, progress):
    begun.set()
    time.sleep(0.5)
    print("published")

begun, JournalSink._publish = threading.Event(), publish
writer = gear_data.Writer(sys.argv[1], publish_every=0.01)
begun.wait()
"""


@pytest.mark.processes
def test_the_end_of_the_process_waits_for_a_publication(tmp_path: Path) -> None:
    """A thread that comes back from a compiled call after the end aborts the process."""
    command = [INTERPRETER, "-c", PUBLISHES, str(tmp_path / "live")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert ended.stdout == "published\n"
