"""Processes that record are killed, and others continue."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gear_data
from gear_data.errors import DatasetNotFoundError
from gear_data.growing.folder import generations
from gear_data.growing.folder.generations import FolderGenerations
from gear_data.recording.journal_folder import JournalFolder
from gear_data.recording.writer import Writer
from gear_data.storage.journal.reading import read_journal
from gear_data.storage.writing.staging import StagedDataset

pytestmark = pytest.mark.processes

ENVIRONMENTS = 3


def steps_of(episode: int) -> np.ndarray:
    """Returns the actions of an episode, which depend on its number."""
    return episode * 1000 + np.arange(1 + episode * 7 % 50)


def record_for_ever(folder: Path, acknowledged: int) -> None:
    """Records episodes that continue the earlier ones, and publishes generations."""
    with open(acknowledged, "wb", buffering=0) as pipe:
        writer = Writer(folder, durability="os")
        published = len(gear_data.open(folder)) if (folder / "manifest.json").exists() else 0
        number = published + writer.episodes
        while number < 400:
            if number % 20 == 0:
                writer.seal()
            for action in steps_of(number):
                writer.append(env_id=number % ENVIRONMENTS, actions=action, observations=np.full(64, action, np.uint8))
            writer.end_episode(number % ENVIRONMENTS, terminated=True, final=np.zeros(64, np.uint8), number=number)
            number += 1
            pipe.write(number.to_bytes(4, "little"))
        writer.close()


def killed(folder: Path, seconds: float) -> int:
    """Kills a process that records. Returns the number of episodes that it finished."""
    reader, writer = os.pipe()
    child = multiprocessing.get_context("fork").Process(target=record_for_ever, args=(folder, writer))
    child.start()
    os.close(writer)
    time.sleep(seconds)
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    with open(reader, "rb") as pipe:
        found = pipe.read()
    return int.from_bytes(found[-4:], "little")


def recorded_numbers(folder: Path) -> list[int]:
    """Returns the numbers of all finished episodes: of the dataset, then of the journals that it lacks."""
    found, growth = [], None
    if (folder / "manifest.json").exists():
        ds = gear_data.open(folder)
        found = ds.episodes["number"].to_list()
        growth = ds.manifest.growth
    for path in sorted(folder.parent.glob("recorded.journal/000/*.arrows")):
        journal = read_journal(path)
        if growth is None or not growth.has_journal(journal.series, int(path.stem)):
            found += [int(episode.facts["number"]) for episode in journal.episodes]
    return found


def test_finished_episodes_outlive_the_process(tmp_path: Path) -> None:
    """Processes are killed while they record, seal and publish."""
    folder = tmp_path / "recorded"
    with Writer(tmp_path / "imports") as writer:  # else the children spend their time on imports
        add_episode(writer, 0)
    choose = random.Random(3)
    finished = 0
    for _ in range(12):
        finished = max(finished, killed(folder, choose.uniform(0.02, 0.6)))
        found = recorded_numbers(folder)
        assert found == list(range(len(found)))
        assert finished <= len(found) <= finished + 1
    with Writer(folder):
        pass
    ds = gear_data.open(folder)
    assert finished <= len(ds) <= finished + 1
    assert ds.episodes["number"].to_list() == list(range(len(ds)))
    for number in range(len(ds)):
        np.testing.assert_array_equal(ds[number]["actions"], steps_of(number))
    assert gear_data.verify(folder, deep=True).ok
    assert not (tmp_path / "recorded.journal").exists()


def in_a_child(function: Callable[[], None]) -> None:
    """Calls a function in a forked process, which ends by `os._exit`."""
    child = multiprocessing.get_context("fork").Process(target=function)
    child.start()
    child.join()
    assert child.exitcode == 9


def add_episode(writer: Writer, number: int) -> None:
    for action in steps_of(number):
        writer.append(actions=action)
    writer.end_episode(terminated=True, number=number)


def test_killed_inside_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shards are there, and the manifest is not. More episodes follow."""

    def record_and_die() -> None:
        writer = Writer(tmp_path / "recorded")
        add_episode(writer, 0)
        monkeypatch.setattr(StagedDataset, "finish", lambda *_: os._exit(9))
        writer.seal()

    in_a_child(record_and_die)
    assert (tmp_path / "recorded.journal/000/000000.part/shards").exists()
    with pytest.raises(DatasetNotFoundError, match=r"gear-data convert .*recorded\.journal .*recorded"):
        gear_data.open(tmp_path / "recorded")
    with Writer(tmp_path / "recorded") as writer:
        add_episode(writer, 1)
    assert gear_data.open(tmp_path / "recorded").episodes["number"].to_list() == [0, 1]


@pytest.mark.parametrize("has_links", [True, False], ids=["links", "no-links"])
def test_killed_before_each_rename(has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the first generation has its temporary name for good. Another Writer goes on."""
    if not has_links:
        monkeypatch.setattr(generations, "link_file", lambda *_: False)

    def record_and_die(folder: Path, survived: int) -> None:
        left = iter(range(survived))
        writer = Writer(folder)
        add_episode(writer, 0)
        with monkeypatch.context() as patch:
            replace = os.replace
            patch.setattr(os, "replace", lambda *names: os._exit(9) if next(left, None) is None else replace(*names))
            writer.seal()
        os._exit(9 if next(left, None) is None else 0)

    renames, found = 0, set[str]()
    while True:
        folder = tmp_path / str(renames)
        child = multiprocessing.get_context("fork").Process(target=record_and_die, args=(folder, renames))
        child.start()
        child.join()
        if child.exitcode == 0:
            break
        assert child.exitcode == 9
        found |= {path.name for path in folder.glob(".*.tmp")}
        with Writer(folder) as writer:
            add_episode(writer, 1)
        assert gear_data.open(folder).episodes["number"].to_list() == [0, 1]
        assert not list(folder.glob(".*.tmp"))
        renames += 1
    assert {name.split(".")[1] for name in found} == {"manifest", "README"}


def test_killed_before_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shards and tables of the generation are there, and the manifest is not."""

    def record_and_die() -> None:
        writer = Writer(tmp_path / "recorded")
        add_episode(writer, 0)
        writer.seal()
        add_episode(writer, 1)
        monkeypatch.setattr(FolderGenerations, "replace", lambda *_: os._exit(9))
        writer.seal()

    in_a_child(record_and_die)
    assert gear_data.open(tmp_path / "recorded").episodes["number"].to_list() == [0]
    with Writer(tmp_path / "recorded") as writer:
        assert writer.episodes == 1
        add_episode(writer, 2)
    assert gear_data.open(tmp_path / "recorded").episodes["number"].to_list() == [0, 1, 2]


def test_killed_before_the_first_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The advice works, though no conversion can write into the folder."""

    def record_and_die() -> None:
        writer = Writer(tmp_path / "recorded")
        add_episode(writer, 0)
        monkeypatch.setattr(FolderGenerations, "replace", lambda *_: os._exit(9))
        writer.seal()

    in_a_child(record_and_die)
    with pytest.raises(DatasetNotFoundError, match=r"gear_data\.Writer\('.*recorded'\)\.close\(\)"):
        gear_data.open(tmp_path / "recorded")
    Writer(tmp_path / "recorded").close()
    assert gear_data.open(tmp_path / "recorded").episodes["number"].to_list() == [0]


def test_killed_before_the_journal_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is recorded twice."""

    def record_and_die() -> None:
        writer = Writer(tmp_path / "recorded")
        add_episode(writer, 0)
        monkeypatch.setattr(JournalFolder, "remove", lambda *_: os._exit(9))
        writer.seal()

    in_a_child(record_and_die)
    assert list(tmp_path.glob("recorded.journal/000/*.arrows"))
    with Writer(tmp_path / "recorded") as writer:
        assert writer.episodes == 0
    assert not (tmp_path / "recorded.journal").exists()
    assert len(gear_data.open(tmp_path / "recorded")) == 1
