"""VideoFrames: a lazy array of an episode's frames."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.dataset.cameras.video_frames import VideoFrames
from gear_data.errors import UnknownNameError
from gear_data.video.decoding.frame_reader import FrameReader
from tests.support.cameras.filmed import FRONT, WRIST, Filmed


@pytest.fixture
def episode(filmed: Filmed) -> int:
    """The id of the longest episode."""
    return int(np.argmax(gear_data.open(filmed.path).lengths))


@pytest.mark.parametrize("camera", [FRONT, WRIST])
def test_all_episodes_equal_sequential_decoding(filmed: Filmed, camera: str) -> None:
    ds = gear_data.open(filmed.path)
    for found, expected in zip(ds, filmed.frames[camera], strict=True):
        np.testing.assert_array_equal(found[camera], expected)


@pytest.mark.parametrize(
    "key",
    [
        0,
        -1,
        np.int64(2),
        slice(None),
        slice(2, 5),
        slice(None, None, -2),
        slice(3, 3),
        [1, 1, -1, 0],
        np.array([[0, 1], [2, 0]]),
        np.array([], np.int64),
        Ellipsis,
        (Ellipsis, 0),
        None,
        (3, slice(None, None, 2), slice(4, 9), 1),
        (slice(1, 4), 7),
        (slice(None), slice(None), slice(None), [2, 0]),
        ([2, 2, 0], [1, 2, 3]),
        ([[2], [0]], slice(None), [5, 6]),
    ],
)
def test_indices_are_numpys(filmed: Filmed, episode: int, key: Any) -> None:
    frames = gear_data.open(filmed.path).episode(episode)[FRONT]
    expected = filmed.frames[FRONT][episode][key]
    found = frames[key]
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)


def test_a_mask_of_frames(filmed: Filmed, episode: int) -> None:
    frames = gear_data.open(filmed.path).episode(episode)[FRONT]
    mask = np.arange(len(frames)) % 3 == 1
    np.testing.assert_array_equal(frames[mask], filmed.frames[FRONT][episode][mask])
    np.testing.assert_array_equal(frames[mask, 4:6], filmed.frames[FRONT][episode][mask, 4:6])


@pytest.mark.parametrize("key", [12345, -12345, [0, 12345], "1", 1.0, (0, 0, 0, 0, 0)])
def test_wrong_indices_are_index_errors(filmed: Filmed, episode: int, key: Any) -> None:
    with pytest.raises(IndexError):
        gear_data.open(filmed.path).episode(episode)[FRONT][key]


def test_only_the_frames_that_are_indexed_are_decoded(
    filmed: Filmed, episode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    read = FrameReader.read_into

    def counted(self: FrameReader, out: Any, file: Any, frame: Any, *arguments: Any, **more: Any) -> None:
        asked.extend(frame.tolist())
        read(self, out, file, frame, *arguments, **more)

    monkeypatch.setattr(FrameReader, "read_into", counted)
    ds = gear_data.open(filmed.path)
    frames = ds.episode(episode)[FRONT]
    first = int(ds.store.videos.segments[FRONT].first_frame[episode])
    assert frames.shape == filmed.frames[FRONT][episode].shape
    assert len(frames) == frames.shape[0]
    repr(frames)
    assert asked == []
    _ = frames[2:4], frames[[5, 5], 0]
    assert asked == [first + 2, first + 3, first + 5]


def test_it_looks_like_an_array(filmed: Filmed, episode: int) -> None:
    frames = gear_data.open(filmed.path).episode(episode)[WRIST]
    expected = filmed.frames[WRIST][episode]
    assert isinstance(frames, VideoFrames)
    assert (frames.dtype, frames.ndim, frames.size, frames.nbytes) == (np.uint8, 4, expected.size, expected.nbytes)
    assert repr(frames) == f"VideoFrames('{WRIST}', episode {episode}, {len(expected)} x 32 x 48 x 3 uint8)"
    assert np.asarray(frames, np.float32).dtype == np.float32
    np.testing.assert_array_equal(np.array(frames), expected)
    np.testing.assert_array_equal(np.stack(list(frames)), expected)
    with pytest.raises(ValueError, match="copy=False"):
        frames.__array__(copy=False)
    # Each access gives a new array, which the caller may change.
    first = frames[0]
    first[:] = 0
    np.testing.assert_array_equal(frames[0], expected[0])


def test_it_can_be_pickled(filmed: Filmed, episode: int) -> None:
    frames = pickle.loads(pickle.dumps(gear_data.open(filmed.path)[episode][WRIST]))
    np.testing.assert_array_equal(frames[1], filmed.frames[WRIST][episode][1])


def test_an_episode_lists_its_cameras(filmed: Filmed, episode: int) -> None:
    found = gear_data.open(filmed.path).episode(episode)
    assert FRONT in found
    assert {FRONT, WRIST} <= set(found)
    assert len(found) == len(list(found)) == len(dict(found))
    with pytest.raises(UnknownNameError, match=f"did you mean '{FRONT}'"):
        found["observations.images.fron"]
