"""Disks that fail, and servers that end, while video files are placed."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data.errors import BadEpisodeError, RemoteError, SourceChangedError, StorageFullError
from gear_data.ingest.videos import placing, staged_index
from gear_data.storage.remote.object_store import ObjectStore
from tests.support.checks import folder_contents
from tests.support.remote import upload
from tests.support.rollouts import make_rollouts

pytest.importorskip("av")
from tests.support.cameras.robots import FRONT, check_frames, frames_of, write_robot

pytestmark = pytest.mark.processes

OPTIONS: dict[str, Any] = {"progress": False, "jobs": 1}
Robot = tuple[Path, dict[str, list[Path]]]


@pytest.fixture
def robot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Robot:
    """Four episodes of one camera; two files for each part of the index."""
    monkeypatch.setattr(staged_index, "_PART_FILES", 2)
    return tmp_path / "robot", write_robot(tmp_path / "robot", make_rollouts(4, seed=3), [FRONT])


def fail_at(count: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes the disk full at a copied file, and returns the names of the copies."""
    names: list[str] = []

    def copy(source: Path, path: Path) -> None:
        names.append(path.name)
        data = source.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        if len(names) == count:
            raise OSError(errno.ENOSPC, "No space left on device")
        path.write_bytes(data)

    monkeypatch.setattr(placing, "link_file", lambda *_: False)
    monkeypatch.setattr(shutil, "copyfile", copy)
    return names


def test_a_full_disk_keeps_finished_video_files(robot: Robot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = robot
    gear_data.convert(source, tmp_path / "whole", **OPTIONS)
    names = fail_at(4, monkeypatch)
    with pytest.raises(StorageFullError, match=r"(?s)episode_000003.*video files are kept: --resume") as caught:
        gear_data.convert(source, tmp_path / "out", **OPTIONS)
    assert str(tmp_path / "out/videos") in str(caught.value.file)
    assert not list((tmp_path / "out").rglob("*.tmp"))
    gear_data.convert(source, tmp_path / "out", resume=True, **OPTIONS)
    assert len(names) == 6  # the first part was finished
    assert folder_contents(tmp_path / "out") == folder_contents(tmp_path / "whole")


def test_what_a_failure_leaves(robot: Robot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing, unless the same conversion may succeed later."""
    source, files = robot
    gear_data.convert(source, tmp_path / "old", **OPTIONS)
    expected = folder_contents(tmp_path / "old")
    with monkeypatch.context() as patch:
        fail_at(1, patch)
        with pytest.raises(StorageFullError, match=r"another disk$"):  # no part is finished
            gear_data.convert(source, tmp_path / "out", **OPTIONS)
        assert not (tmp_path / "out").exists()
    with monkeypatch.context() as patch:
        fail_at(4, patch)
        with pytest.raises(StorageFullError, match=r"another disk$"):
            gear_data.convert(source, tmp_path / "old", overwrite=True, **OPTIONS)
    assert folder_contents(tmp_path / "old") == expected
    files[FRONT][3].write_bytes(b"no video")
    with pytest.raises(BadEpisodeError):
        gear_data.convert(source, tmp_path / "out", **OPTIONS)
    assert not (tmp_path / "out").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"robot", "old"}


def test_a_file_that_is_removed_meanwhile(robot: Robot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, files = robot
    place = staged_index.place

    def remove(*arguments: Any) -> None:
        files[FRONT][2].unlink(missing_ok=True)
        place(*arguments)

    monkeypatch.setattr(staged_index, "place", remove)
    with pytest.raises((SourceChangedError, BadEpisodeError)) as caught:
        gear_data.convert(source, tmp_path / "out", **OPTIONS)
    assert "episode_000002.mp4" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_to_a_url_and_from_a_url(
    robot: Robot, tmp_path: Path, memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files at a URL are downloaded to the system's folder for temporary files."""
    source, files = robot
    upload(source, f"{memory_url}/source")
    send, sent = ObjectStore.upload, []

    def fails(self: ObjectStore, path: Path, file: str) -> None:
        if file.endswith(".mp4"):
            sent.append(file)
            if len(sent) == 4:
                raise RemoteError("the server is gone", file=file)
        send(self, path, file)

    monkeypatch.setattr(ObjectStore, "upload", fails)
    with pytest.raises(RemoteError, match=r"(?s)the server is gone.*video files are kept"):
        gear_data.convert(f"{memory_url}/source", f"{memory_url}/to", **OPTIONS)
    gear_data.convert(f"{memory_url}/source", f"{memory_url}/to", resume=True, **OPTIONS)
    assert len(sent) == 6
    check_frames(f"{memory_url}/to", frames_of(files))  # type: ignore[arg-type]

    def full(source: Any, target: Any, *_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(StorageFullError, match=r"gear-data-scratch.*no space left on the device"):
        gear_data.convert(f"{memory_url}/source", tmp_path / "out", **OPTIONS)
    assert not (tmp_path / "out").exists()
