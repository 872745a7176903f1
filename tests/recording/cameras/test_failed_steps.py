"""Steps with frames that find too little memory, or no thread: the next try records them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.recording.cameras import encoding_threads, episode_video
from gear_data.recording.cameras.encoding_threads import EncodingThreads
from gear_data.recording.writer import Writer
from tests.support.cameras.filmed import moving_bar

pytestmark = pytest.mark.processes

CAMERA = "observations.front"
CAMERAS = {CAMERA: gear_data.Camera(fps=10, codec="mpeg4")}
FRAMES = moving_bar(6)


class Frame(np.ndarray[Any, Any]):
    """A frame of which no copy can be made, a few times."""

    failures = 0

    def copy(self, order: Any = "C") -> Any:
        if Frame.failures:
            Frame.failures -= 1
            raise MemoryError
        return np.array(self)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    with Writer(tmp_path / "recorded", cameras=CAMERAS) as writer:
        yield writer


def add(writer: Writer, t: int) -> None:
    writer.append(observations={"front": FRAMES[t]}, actions=t)


def check(writer: Writer, folder: Path) -> None:
    """Checks that the dataset has each step once, and that no bytes count as waiting."""
    writer.end_episode()
    writer.close()
    assert writer._cameras._threads._bytes == 0
    [episode] = gear_data.open(folder / "recorded")
    assert episode["actions"].tolist() == list(range(6))
    assert np.abs(episode[CAMERA][:].astype(int) - FRAMES).mean() < 15
    assert gear_data.verify(folder / "recorded", decode=True).ok


def test_frames_that_cannot_be_copied(writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their bytes do not wait: else a step that is larger than the limit would wait for ever."""
    monkeypatch.setattr(encoding_threads, "MOST_BYTES", 1)
    checked = writer._cameras.checked
    monkeypatch.setattr(
        writer._cameras,
        "checked",
        lambda *arguments: {name: each.view(Frame) for name, each in checked(*arguments).items()},
    )
    for t in range(6):
        if t % 2:
            Frame.failures = 1
            with pytest.raises(MemoryError):
                add(writer, t)
        add(writer, t)
    check(writer, tmp_path)


def test_a_frame_that_is_not_handed_over(writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding_threads, "MOST_BYTES", 1)
    for t in range(6):
        if t == 3:
            with monkeypatch.context() as patch, pytest.raises(MemoryError):
                patch.setattr(EncodingThreads, "submit", fail)
                add(writer, t)
        add(writer, t)
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(EncodingThreads, "submit", fail)
        writer.end_episode()
    check(writer, tmp_path)


def fail(*arguments: object) -> None:
    raise MemoryError


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
@pytest.mark.parametrize("part", ["thread", "encoder"])
def test_a_thread_or_an_encoder_that_cannot_start(
    part: str, error: type[Exception], writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    for _ in range(2):
        with monkeypatch.context() as patch:
            if part == "thread":
                patch.setattr(threading.Thread, "start", fail)
            else:
                patch.setattr(episode_video, "VideoEncoder", fail)
            with pytest.raises(error):
                add(writer, 0)
        assert list(tmp_path.rglob("*.mp4")) == []
    for t in range(6):
        add(writer, t)
    check(writer, tmp_path)


def test_threads_take_turns_after_one_could_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding_threads, "usable_cores", lambda: 3)
    threads, done = EncodingThreads(), list[int]()
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(threading.Thread, "start", fail)
        threads.choose()
    chosen = [threads.choose() for _ in range(7)]
    assert chosen == [0, 1, 2, 0, 1, 2, 0]
    for number in chosen:
        threads.submit(number, task(done, number))
    threads.close()
    assert sorted(done) == sorted(chosen)


def test_a_task_that_fails_does_not_end_its_thread(caplog: pytest.LogCaptureFixture) -> None:
    threads, done = EncodingThreads(), list[int]()
    number = threads.choose()
    threads.submit(number, fail)
    threads.submit(number, task(done, 1))
    threads.close()
    assert done == [1] and "MemoryError" in caplog.text


def task(done: list[int], number: int) -> Callable[[], None]:
    return lambda: done.append(number)
