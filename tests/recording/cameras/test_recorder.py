"""Recorded cameras against a plain encoding of the same frames by PyAV."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import gymnasium
import numpy as np
import numpy.typing as npt
import pytest

import gear_data
from gear_data.errors import InvalidArgumentError, UnknownNameError, UnsupportedColumnError
from gear_data.recording.cameras import encoding_threads
from gear_data.recording.cameras.encoding_threads import EncodingThreads
from gear_data.recording.cameras.recorder import CameraRecorder
from gear_data.video.encoding.encoder import open_encoder
from tests.support.cameras.filmed import decoded, moving_bar

pytestmark = pytest.mark.processes

FRONT, WRIST = "observations.images.front", "observations.images.wrist"
ENCODERS = {"h264": "libx264", "av1": "libsvtav1", "mpeg4": "mpeg4"}
Frames = npt.NDArray[np.uint8]


#: Options with which a codec gives the same bytes each time. x264's weights of macroblocks differ now and then.
EXACT: dict[str, dict[str, str]] = {"h264": {"x264-params": "mbtree=0"}}


def plain(path: Path, frames: Frames, camera: gear_data.Camera) -> Frames:
    """Returns frames that PyAV encoded and decoded."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(ENCODERS[camera.codec], int(camera.fps), options=camera.encoder_options)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        open_encoder(stream.codec_context)
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return decoded(path)


def psnr(found: Frames, expected: Frames) -> float:
    """Returns the peak signal-to-noise ratio in dB."""
    return float(10 * np.log10(255**2 / np.mean((found.astype(float) - expected) ** 2)))


def frames_of(number: int, camera: str = FRONT) -> Frames:
    """Returns the frames of an episode, which differ between episodes and cameras."""
    height, width = (48, 64) if camera == FRONT else (64, 128)
    return np.roll(moving_bar(9 + number % 5, height, width), 5 * number, axis=2)


@pytest.mark.parametrize("codec", ["h264", "mpeg4", "av1"])
def test_frames_are_those_of_a_plain_encoding(tmp_path: Path, codec: Any) -> None:
    """Two cameras, bit for bit. Frames that change after the call do not count."""
    exact = EXACT.get(codec, {})
    cameras = {
        FRONT: gear_data.Camera(codec=codec, options=exact),
        WRIST: gear_data.Camera(codec=codec, options={**exact, "g": "4"}),
    }
    with gear_data.Writer(tmp_path / "recorded", cameras=cameras) as writer:
        for number in range(3):
            for t, (front, wrist) in enumerate(zip(frames_of(number), frames_of(number, WRIST), strict=True)):
                front, wrist = front.copy(), wrist.copy()
                writer.append(observations={"state": [0.0, t], "images": {"front": front, "wrist": wrist}}, actions=t)
                front[:] = wrist[:] = 0
            writer.end_episode(terminated=True, final={"state": [1.0, 1.0], "images": {"front": front, "wrist": wrist}})
    ds = gear_data.open(tmp_path / "recorded")
    assert not (tmp_path / "recorded.journal").exists()
    assert gear_data.verify(tmp_path / "recorded", decode=True).ok
    assert ds.schema[WRIST].shape == (64, 128, 3)
    video = ds.schema[FRONT].video
    assert video is not None and video.fps == 30
    for number in range(3):
        for name, camera in cameras.items():
            expected = frames_of(number, name)
            found = ds[number][name][:]
            np.testing.assert_array_equal(found, plain(tmp_path / "plain.mp4", expected, camera))
            assert psnr(found, expected) > 30
        assert ds[number]["actions"].tolist() == list(range(len(ds[number]["actions"])))
    final = ds.final(1)
    assert final is not None and list(final) == ["observations.state"]


def test_batches_of_environments(tmp_path: Path) -> None:
    """Episodes of environments take turns, and end at different steps."""
    camera = gear_data.Camera(fps=10, options=EXACT["h264"])
    lengths = {number: len(frames_of(number)) for number in range(8)}
    episodes = list(range(8))
    running = {env: episodes.pop(0) for env in range(3)}
    at = dict.fromkeys(running, 0)
    order = []
    with gear_data.Writer(tmp_path / "recorded", cameras={FRONT: camera}, durability="os") as writer:
        while running:
            ended = np.array([at[env] + 1 == lengths[number] for env, number in running.items()])
            writer.append_batch(
                list(running),
                observations={"images": {"front": np.stack([frames_of(n)[at[e]] for e, n in running.items()])}},
                actions=np.array([100 * n + at[e] for e, n in running.items()]),
                terminated=ended,
            )
            for env, is_last in zip([*running], ended, strict=True):
                at[env] += 1
                if is_last:
                    order.append(running.pop(env))
                    at[env] = 0
                    if episodes:
                        running[env] = episodes.pop(0)
    ds = gear_data.open(tmp_path / "recorded")
    assert sorted(order) == list(range(8))
    for row, number in enumerate(order):
        assert ds[row]["actions"].tolist() == [100 * number + t for t in range(lengths[number])]
        expected = plain(tmp_path / "plain.mp4", frames_of(number), camera)
        np.testing.assert_array_equal(ds[row][FRONT][:], expected)


def test_cameras_load_like_others(tmp_path: Path) -> None:
    with gear_data.Writer(tmp_path / "recorded", cameras={FRONT: gear_data.Camera()}) as writer:
        for number in range(4):
            for frame in frames_of(number):
                writer.append(observations={"images": {"front": frame}}, actions=0.0, rewards=0.0)
            writer.end_episode()
    ds = gear_data.open(tmp_path / "recorded")
    loader = gear_data.SequenceLoader(ds, 4, context=3, steps=3, columns=["actions", FRONT], preset="raw")
    for batch in loader:
        assert batch[FRONT].shape == (4, 3, 48, 64, 3)
        assert (batch[FRONT] > 150).any()


def test_discarded_episodes_leave_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "recorded.journal"
    with gear_data.Writer(tmp_path / "recorded", cameras={FRONT: gear_data.Camera()}) as writer:
        for number in range(6):
            for frame in frames_of(number):
                writer.append(observations={"images": {"front": frame}}, actions=number)
            if number % 2:
                writer.discard()
            else:
                writer.end_episode()
            assert len(list(folder.rglob("*.mp4"))) == number // 2 + 1
        writer.append(observations={"images": {"front": frames_of(0)[0]}}, actions=9)
    ds = gear_data.open(tmp_path / "recorded")
    assert [each["actions"][0] for each in ds] == [0, 2, 4, 9]  # the open episode was truncated
    assert [len(each[FRONT]) for each in ds] == [9, 11, 13, 1]
    assert len(list((tmp_path / "recorded").rglob("*.mp4"))) == 4


def test_wrong_frames_leave_the_episode_as_it_is(tmp_path: Path) -> None:
    frame = frames_of(0)[0]
    with gear_data.Writer(tmp_path / "recorded", cameras={FRONT: gear_data.Camera()}) as writer:
        with pytest.raises(InvalidArgumentError, match=r"the first step lacks observations\.images\.front"):
            writer.append(actions=1)
        with pytest.raises(UnsupportedColumnError, match=r"not float64 \[48, 64, 3\]"):
            writer.append(observations={"images": {"front": frame / 255}}, actions=1)
        with pytest.raises(InvalidArgumentError, match="no columns of numbers, text or bytes"):
            writer.append(observations={"images": {"front": frame}})
        writer.append(observations={"images": {"front": frame}}, actions=1)
        for wrong, message in (
            (frame[:-2], r"step 1 .* has uint8 \[46, 64, 3\], and the camera has uint8 \[48, 64, 3\]"),
            (frame.astype(np.int16), r"has int16"),
            (None, r"step 1 of the open episode of environment 0 lacks observations\.images\.front"),
        ):
            step: dict[str, Any] = {"actions": 1} if wrong is None else {
                "actions": 1, "observations": {"images": {"front": wrong}}
            }  # fmt: skip
            with pytest.raises(InvalidArgumentError, match=message):
                writer.append(**step)
        with pytest.raises(InvalidArgumentError, match="column 'actions'"):
            writer.append(observations={"images": {"front": frame}}, actions="left")
        writer.append(observations={"images": {"front": frame}}, actions=2)
    ds = gear_data.open(tmp_path / "recorded")
    assert ds[0]["actions"].tolist() == [1, 2]
    assert len(ds[0][FRONT]) == 2


def test_cameras_that_cannot_be_encoded(tmp_path: Path) -> None:
    """The first step says so. Nothing stays on disk."""
    for camera, shape, message in (
        (gear_data.Camera(), (31, 64, 3), "height and width must be even"),
        (gear_data.Camera(options={"crf": "high"}), (48, 64, 3), "correct the options"),
        (gear_data.Camera(options={"krf": "3"}), (48, 64, 3), "has no option krf"),
    ):
        writer = gear_data.Writer(tmp_path / "recorded", cameras={FRONT: camera})
        with pytest.raises(InvalidArgumentError, match=message):
            writer.append(**{FRONT: np.zeros(shape, np.uint8)}, actions=1)
        writer.close()
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(UnknownNameError, match="did you mean 'h264'"):
        gear_data.Camera(codec="h265")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="fps must be above 0"):
        gear_data.Camera(fps=0)
    with pytest.raises(InvalidArgumentError, match="options must be text"):
        gear_data.Camera(options={"crf": 3})  # type: ignore[dict-item]
    with pytest.raises(InvalidArgumentError, match=r"gear_data\.Camera"):
        gear_data.Writer(tmp_path / "recorded", cameras={FRONT: "h264"})  # type: ignore[dict-item]


def test_a_schema_has_the_sizes_of_frames(tmp_path: Path) -> None:
    schema = {"actions": ("int64", ()), FRONT: ("uint8", (48, 64, 3))}
    cameras = {FRONT: gear_data.Camera(fps=10)}
    with gear_data.Writer(tmp_path / "first", schema=schema, cameras=cameras) as writer:
        with pytest.raises(InvalidArgumentError, match=r"step 0 .* the camera has uint8 \[48, 64, 3\]"):
            writer.append(**{FRONT: np.zeros((64, 64, 3), np.uint8)}, actions=1)
        writer.append(**{FRONT: np.zeros((48, 64, 3), np.uint8)}, actions=1)
    first = gear_data.open(tmp_path / "first").schema
    with gear_data.Writer(tmp_path / "second", schema=first, cameras=cameras) as writer:
        writer.append(**{FRONT: np.zeros((48, 64, 3), np.uint8)}, actions=1)
    assert gear_data.open(tmp_path / "second").schema == first
    with pytest.raises(InvalidArgumentError, match=r"schema lacks observations\.images\.wrist"):
        gear_data.Writer(tmp_path / "third", schema=first, cameras={**cameras, WRIST: gear_data.Camera()})
    with pytest.raises(InvalidArgumentError, match="give cameras="):
        gear_data.Writer(tmp_path / "third", schema=first)


def test_frames_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that hands over frames waits for the encoder."""
    monkeypatch.setattr(encoding_threads, "MOST_BYTES", 100)
    threads = EncodingThreads()
    number = threads.choose()
    gate, taken, done = threading.Event(), [], threading.Event()

    def hand_over() -> None:
        for frame in range(9):
            threads.reserve(30)
            taken.append(frame)
            threads.submit(number, lambda: (gate.wait(), threads.release(30)))  # type: ignore[arg-type, return-value]
        threads.reserve(1000)  # a step that is larger than the limit waits alone
        done.set()

    thread = threading.Thread(target=hand_over)
    thread.start()
    assert not done.wait(0.3)
    assert taken == [0, 1, 2]
    gate.set()
    assert done.wait(60)
    thread.join()
    threads.release(1000)
    threads.close()
    assert taken == list(range(9))


class Film(gymnasium.Env[Any, Any]):
    """Has image observations, and renders others."""

    observation_space = gymnasium.spaces.Dict(
        {"image": gymnasium.spaces.Box(0, 255, (48, 64, 3), np.uint8), "t": gymnasium.spaces.Discrete(100)}
    )
    action_space = gymnasium.spaces.Discrete(2)

    def _observation(self) -> dict[str, Any]:
        return {"image": self.frames[self.t], "t": np.int64(self.t)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.frames, self.t = moving_bar(8), 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._observation(), 1.0, self.t == 7, False, {}


@pytest.mark.parametrize("vector", [False, True])
def test_environments_with_images(tmp_path: Path, vector: bool) -> None:
    camera = gear_data.Camera(fps=10, options=EXACT["h264"])
    env: Any = gymnasium.vector.SyncVectorEnv([Film, Film]) if vector else Film()
    env = gear_data.record(env, tmp_path / "recorded", cameras={"observations.image": camera})
    for _ in range(2):
        env.reset()
        for _ in range(7):
            env.step(np.zeros(2, np.int64) if vector else 0)
    env.close()
    ds = gear_data.open(tmp_path / "recorded")
    assert len(ds) == (4 if vector else 2)
    expected = plain(tmp_path / "plain.mp4", moving_bar(8)[:7], camera)
    for episode in ds:
        np.testing.assert_array_equal(episode["observations.image"][:], expected)
        assert episode["observations.t"].tolist() == list(range(7))
    assert ds.final(0) == {"observations.t": 7}


def test_videos_of_environments_that_end_together_are_completed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, real = list[list[int]](), CameraRecorder.begin_finish

    def begin_finish(recorder: CameraRecorder, slots: Sequence[int], *, sync: bool) -> None:
        begun.extend([[*slots]] if slots else [])
        real(recorder, slots, sync=sync)

    monkeypatch.setattr(CameraRecorder, "begin_finish", begin_finish)
    plain_env = gymnasium.vector.SyncVectorEnv([Film, Film])
    env = gear_data.record(plain_env, tmp_path / "recorded", cameras={"observations.image": gear_data.Camera(fps=10)})
    env.reset()
    for _ in range(7):
        env.step(np.zeros(2, np.int64))
    assert begun[0] == [0, 1]
    env.close()
    assert len(gear_data.open(tmp_path / "recorded")) == 2
