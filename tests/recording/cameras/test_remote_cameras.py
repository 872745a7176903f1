"""Writers with cameras send their videos to a server."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import gear_data
from gear_data.cluster.writing import connection
from gear_data.errors import InvalidArgumentError, NodeRefusedError
from gear_data.recording.writer import Writer
from gear_data.storage.journal.videos import video_file
from tests.recording.cameras.test_broken_recordings import CAMERA, CAMERAS, check, frames_of
from tests.support.cluster.writers import WriteServerProcess

pytestmark = pytest.mark.processes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WriteServerProcess]:
    process = WriteServerProcess(tmp_path / "sent", ["--max-episode", "64K"])
    process.wait()
    yield process
    process.kill()


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def add(to: Writer, number: int) -> None:
    for t, frame in enumerate(frames_of(number)):
        to.append(observations={"front": frame}, actions=t)
    to.end_episode(terminated=True, number=number)


def test_the_dataset_is_that_of_a_recording_here(
    tmp_path: Path, server: WriteServerProcess, own_temporary_folder: Path
) -> None:
    """Also when the server is killed again and again."""
    with Writer(tmp_path / "here", cameras=CAMERAS) as writer:
        for number in range(40):
            add(writer, number)
    expected = gear_data.open(tmp_path / "here")
    with Writer(server.url, cameras=CAMERAS, durability="flush") as writer:
        for number in range(40):
            add(writer, number)
            if number % 9 == 8:
                server.kill()
                server.begin()
                server.wait()
        for t in range(3):
            writer.append(observations={"front": frames_of(0)[t]}, actions=t)
        writer.discard()
    assert [*own_temporary_folder.iterdir()] == []
    assert server.end()["episodes"] == 40
    ds = gear_data.open(tmp_path / "sent")
    check(ds, 40)
    assert ds.fingerprint == expected.fingerprint
    assert gear_data.verify(tmp_path / "sent").ok
    assert not (tmp_path / "sent.journal").exists()


def test_several_writers_of_a_dataset_that_has_cameras(tmp_path: Path, server: WriteServerProcess) -> None:
    def record(first: int) -> None:
        with Writer(server.url, cameras=CAMERAS, durability="flush") as writer:
            for number in range(first, 30, 3):
                add(writer, number)

    threads = [threading.Thread(target=record, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.end()
    again = WriteServerProcess(tmp_path / "sent")
    again.wait()
    with Writer(again.url, cameras=CAMERAS) as writer:
        for number in range(30, 35):
            add(writer, number)
    again.end()
    ds = gear_data.open(tmp_path / "sent")
    order = ds.episodes["number"].to_list()
    assert sorted(order) == list(range(35)) and order[30:] == list(range(30, 35))
    for position, number in enumerate(order):
        assert np.abs(ds[position][CAMERA][:].astype(int) - frames_of(number)).max() <= 12
    assert gear_data.verify(tmp_path / "sent").ok


def test_cameras_that_are_refused(tmp_path: Path, server: WriteServerProcess) -> None:
    with Writer(server.url, cameras=CAMERAS) as writer:
        add(writer, 0)
        for t, frame in enumerate(np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8)):
            writer.append(observations={"front": frame}, actions=t, env_id=1)
        for other, expected in (
            ({"observations": {"front": np.zeros((32, 48, 3), np.uint8)}, "actions": 0}, r"\[32, 48, 3\]"),
            ({"observations": {"side": np.zeros((32, 32, 3), np.uint8)}, "actions": 0}, "missing"),
        ):
            name = f"observations.{next(iter(other['observations']))}"  # type: ignore[call-overload]
            with pytest.raises(InvalidArgumentError, match=expected):
                Writer(server.url, cameras={name: CAMERAS[CAMERA]}).append(**other)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="and the server's other episodes have a camera of uint8"):
            Writer(server.url).append(observations={"front": np.zeros((32, 32, 3), np.uint8)}, actions=0)
        writer.end_episode(1, terminated=True, number=1)
        for t, frame in enumerate(np.random.default_rng(0).integers(0, 256, (900, 32, 32, 3), np.uint8)):
            writer.append(observations={"front": frame}, actions=t)
        with pytest.raises(InvalidArgumentError, match="and the server takes at most 65,536"):
            writer.end_episode(terminated=True, number=2)
        writer.discard()
    server.end()
    assert gear_data.open(tmp_path / "sent").episodes["length"].to_list() == [5, 20]


def test_videos_that_change_on_the_way(
    tmp_path: Path, server: WriteServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = connection.video_chunks

    def changed(change: str, path: Path) -> Iterator[bytes]:
        data = b"".join(chunks(path))
        data = {"cut": data[:-1], "longer": data + b"x", "other": data[:100] + b"?" + data[101:]}[change]
        return (data[first : first + 1000] for first in range(0, len(data), 1000))

    for number, change in enumerate(("cut", "longer", "other")):
        with Writer(server.url, cameras=CAMERAS) as writer:
            with monkeypatch.context() as patch:
                patch.setattr(connection, "video_chunks", partial(changed, change))
                with pytest.raises(NodeRefusedError, match=r"received a.*(video|episode)"):
                    add(writer, number)
            assert len([*(tmp_path / "sent.journal").glob("*/videos/*/*")]) == number
    server.end()
    check(gear_data.open(tmp_path / "sent"), 3)


def test_names_of_cameras_stay_in_their_folder() -> None:
    for name in (".", "..", "../..", "/", "a/../..", "\0"):
        assert len(Path(video_file(name, 3)).parts) == 3 and ".." not in Path(video_file(name, 3)).parts
