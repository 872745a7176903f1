"""Writers of relative paths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gear_data
from gear_data.errors import DestinationExistsError
from gear_data.recording.object_store.local_journals import journal_base
from gear_data.recording.writer import Writer


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes an empty folder the current one."""
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def add(writer: Writer, number: int) -> None:
    writer.append(actions=number)
    writer.end_episode(terminated=True)


@pytest.mark.parametrize("limited", [False, True])
def test_the_current_folder_may_change(limited: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = gear_data.RateLimit(min_steps=100) if limited else None
    with Writer("live/", rate_limit=limit) as writer:
        add(writer, 0)
        monkeypatch.chdir("/")
        add(writer, 1)
        publication = writer.seal()
        assert publication is not None and publication.total_episodes == 2
        add(writer, 2)
    assert [int(each["actions"][0]) for each in gear_data.open(folder / "live")] == [0, 1, 2]
    assert not (folder / "live.journal").exists() and (folder / "live.rate").exists() == limited


def test_training_may_change_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = gear_data.RateLimit(min_steps=1)
    with Writer(folder / "live", rate_limit=limit) as writer:
        batches = gear_data.rate_limited([{"actions": np.zeros(2)}] * 3, "live", limit)
        add(writer, 0)
        next(batches)
        monkeypatch.chdir("/")
        assert len(list(batches)) == 2


@pytest.mark.parametrize("path", [".", "./", "../folder/."])
def test_the_current_folder_is_a_dataset(path: str, folder: Path) -> None:
    for number in range(2):
        with Writer(path) as writer:
            assert (folder.parent / "folder.journal").exists()
            add(writer, number)
    assert [int(each["actions"][0]) for each in gear_data.open(".")] == [0, 1]
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]


def test_the_current_folder_holds_other_files(folder: Path) -> None:
    (folder / "notes").touch()
    limit = gear_data.RateLimit(min_steps=1)
    for path in (".", "/"):
        with pytest.raises(DestinationExistsError, match="is not a dataset"):
            Writer(path)
    with pytest.raises(DestinationExistsError, match="is not a dataset"):
        Writer(".", rate_limit=limit)


def test_a_link_is_followed_as_the_system_does(folder: Path) -> None:
    """The folder above a link is that of its target."""
    (folder / "elsewhere" / "inner").mkdir(parents=True)
    (folder / "link").symlink_to(folder / "elsewhere" / "inner")
    with Writer("link/../live") as writer:
        add(writer, 0)
    assert len(gear_data.open("link/../live")) == len(gear_data.open("elsewhere/live")) == 1
    assert not Path("live").exists()


@pytest.mark.processes
def test_only_the_episode_with_a_damaged_video_is_set_aside(folder: Path) -> None:
    """The search for it converts parts of the journal, elsewhere, with the videos of the journal."""
    writer = Writer("live/", cameras={"observations.front": gear_data.Camera(fps=10, codec="mpeg4")})
    for number in range(5):
        for _ in range(3):
            writer.append(observations={"front": np.full((32, 32, 3), 40 * number, np.uint8)}, actions=number)
        writer.end_episode(terminated=True)
    videos = sorted(folder.rglob("*.mp4"))
    videos[3].write_bytes(b"damage")
    writer.close()
    assert [int(each["actions"][0]) for each in gear_data.open("live")] == [0, 1, 2, 4]
    assert len(list((folder / "live.quarantine").iterdir())) == 1


def test_the_journals_of_a_bucket(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEAR_DATA_JOURNALS", "journals/")
    assert journal_base("s3://bucket/runs").parent == folder / "journals"
