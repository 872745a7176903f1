"""Cameras in batches, against plain loops over frames that were decoded in sequence."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import gear_data
from gear_data import Mixture, RandomCrop, Seconds, SequenceLoader
from gear_data.errors import InvalidArgumentError, UnknownNameError
from gear_data.storage.statistics import ColumnStatistics
from gear_data.video.indexing.demux import index_file
from gear_data.video.segments import VideoSegments
from tests.support.cameras.attached import attach_cameras
from tests.support.cameras.filmed import FRONT, WRIST, Filmed, moving_bar, write_video
from tests.support.command_line import run_json
from tests.support.feed.arguments import grouped

OPTIONS: dict[str, Any] = {"batch_size": 7, "context": 4, "seed": 5, "framework": "numpy"}


def first_batches(loader: SequenceLoader, count: int = 3) -> list[tuple[dict[str, Any], list[tuple[int, int, int]]]]:
    """Returns batches, and the (episode, start, length) of their rows."""
    found = []
    for step, batch in enumerate(itertools.islice(loader, count)):
        windows = loader.windows(step)
        rows = zip(*(windows[name].tolist() for name in ("episode_id", "start", "length")), strict=True)
        found.append(({key: np.array(value) for key, value in batch.items()}, list(rows)))
    return found


def steps_of(
    row: tuple[int, int, int], total: int, places: list[int], *, window: bool, padding: str
) -> list[int | None]:
    """Returns the step of each place relative to the window's start; None: padding of zeros."""
    _, start, length = row
    inside = range(start, start + length) if window else range(total)
    found: list[int | None] = []
    for place in places:
        step = start + place
        if step in inside:
            found.append(step)
        elif padding == "edge":
            found.append(min(max(step, inside[0]), inside[-1]))
        elif padding == "first":
            found.append(max(inside[0], start + min(0, *places)))
        else:
            found.append(None)
    return found


def golden(filmed: Filmed, camera: str, rows: list[tuple[int, int, int]], places: list[int], **how: Any) -> Any:
    frames = filmed.frames[camera]
    result = np.zeros((len(rows), len(places), *frames[0].shape[1:]), np.uint8)
    for number, row in enumerate(rows):
        for place, step in enumerate(steps_of(row, len(frames[row[0]]), places, **how)):
            if step is not None:
                result[number, place] = frames[row[0]][step]
    return result


@pytest.mark.parametrize("camera", [FRONT, WRIST])
def test_windows_of_frames(filmed: Filmed, dataset: gear_data.Dataset, camera: str) -> None:
    for batch, rows in first_batches(SequenceLoader(dataset, **grouped(**OPTIONS))):
        expected = golden(filmed, camera, rows, list(range(4)), window=True, padding="fill")
        assert batch[camera].dtype == np.uint8
        assert np.array_equal(batch[camera], expected)


def test_padding_on_the_left(filmed: Filmed, dataset: gear_data.Dataset) -> None:
    for batch, rows in first_batches(SequenceLoader(dataset, **grouped(preset="d3rlpy", columns=[FRONT], **OPTIONS))):
        for number, row in enumerate(rows):
            frames = filmed.frames[FRONT][row[0]][row[1] : row[1] + row[2]]
            assert np.array_equal(batch[FRONT][number, 4 - row[2] :], frames)
            assert not batch[FRONT][number, : 4 - row[2]].any()


def test_the_first_step_is_repeated(filmed: Filmed, dataset: gear_data.Dataset) -> None:
    loader = SequenceLoader(dataset, **grouped(preset="jat", preset_options={"roles": ["observation"]}, **OPTIONS))
    for batch, rows in first_batches(loader):
        expected = golden(filmed, WRIST, rows, list(range(4)), window=True, padding="first")
        assert np.array_equal(batch[WRIST], expected)


@pytest.mark.parametrize("offsets", [[-10, 0], [0, 3, -2, 3], (-2, 2), [30]])
@pytest.mark.parametrize("padding", ["edge", "first", "fill"])
def test_offsets_of_cameras(filmed: Filmed, dataset: gear_data.Dataset, offsets: Any, padding: str) -> None:
    loader = SequenceLoader(
        dataset, **grouped(offsets={FRONT: offsets}, preset_options={"padding": padding}, **OPTIONS)
    )
    places = offsets if isinstance(offsets, list) else list(range(*offsets))
    for batch, rows in first_batches(loader):
        assert np.array_equal(batch[FRONT], golden(filmed, FRONT, rows, places, window=False, padding=padding))
        steps = [[row[1] + place for place in places] for row in rows]
        valid = [
            [0 <= s < len(filmed.frames[FRONT][row[0]]) for s in each] for each, row in zip(steps, rows, strict=True)
        ]
        assert batch[f"{FRONT}_mask"].tolist() == valid


@pytest.mark.parametrize("dtype", [None, "float64", "float16", "bfloat16"])
def test_lerobots_frames_are_floats_with_channels_first(
    filmed: Filmed, dataset: gear_data.Dataset, dtype: str | None
) -> None:
    options = {**OPTIONS, "framework": "torch", "preset": "lerobot", "dtype": dtype}
    loader = SequenceLoader(dataset, **grouped(offsets={WRIST: [-1, 0], "actions": (0, 4)}, **options))
    for step, batch in enumerate(itertools.islice(loader, 2)):
        windows = loader.windows(step)
        rows = list(zip(*(windows[name].tolist() for name in ("episode_id", "start", "length")), strict=True))
        assert batch[FRONT].shape == (7, 3, 48, 64) and batch[WRIST].shape == (7, 2, 3, 32, 48)
        for camera, places in ((FRONT, [0]), (WRIST, [-1, 0])):
            frames = torch.from_numpy(golden(filmed, camera, rows, places, window=False, padding="edge"))
            # As `decode_video_frames` of LeRobot.
            expected = (frames / 255.0 if dtype != "float64" else frames.double() / 255.0).movedim(-1, -3)
            expected = expected if dtype is None else expected.to(getattr(torch, dtype))
            assert torch.equal(batch[camera], expected.reshape(batch[camera].shape))
        assert batch[f"{WRIST}_is_pad"].tolist() == [[row[1] == 0, False] for row in rows]
        assert f"{FRONT}_is_pad" not in batch


@pytest.mark.parametrize("form", ["uint8", "uint8_chw"])
def test_lerobots_frames_as_they_are(filmed: Filmed, dataset: gear_data.Dataset, form: str) -> None:
    """As `LeRobotDataset` with `return_uint8=True` reads them, if the channels are first."""
    loader = SequenceLoader(dataset, **grouped(preset="lerobot", preset_options={"camera_frames": form}, **OPTIONS))
    ((batch, rows),) = first_batches(loader, 1)
    frames = golden(filmed, FRONT, rows, [0], window=False, padding="edge")[:, 0]
    assert batch[FRONT].dtype == np.uint8
    assert np.array_equal(batch[FRONT], frames if form == "uint8" else frames.transpose(0, 3, 1, 2))


def channel_statistics(episodes: Any) -> ColumnStatistics:
    """Returns the statistics of each channel over all frames."""
    values = np.concatenate(list(episodes)).reshape(-1, 3).astype(np.float64)
    return ColumnStatistics(
        np.full(3, len(values)), values.mean(0), values.std(0), values.min(0), values.max(0), sampled_frames=1,
        quantiles=np.quantile(values, (0.01, 0.1, 0.5, 0.9, 0.99), axis=0),
    )  # fmt: skip


@pytest.mark.parametrize("preset", ["raw", "lerobot"])
@pytest.mark.parametrize("view", [False, True])
def test_normalised_cameras(
    filmed: Filmed, dataset: gear_data.Dataset, monkeypatch: pytest.MonkeyPatch, preset: str, view: bool
) -> None:
    """Each frame is (value - mean) / std of its channel, as float32 [3, H, W]; padding stays 0."""
    source = dataset[2:] if view else dataset
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    # A converted dataset has statistics of a sample; a recorded one has none.
    sample = {camera: channel_statistics(filmed.frames[camera]) for camera in (FRONT, WRIST)}
    monkeypatch.setattr(dataset.store, "statistics", {**dataset.store.statistics, **sample})
    low, high = sample[WRIST].quantiles[[0, -1]]  # type: ignore[index]
    for normalize, affine in (
        ("all", {camera: (sample[camera].mean, sample[camera].std) for camera in (FRONT, WRIST)}),
        ({FRONT: "imagenet", WRIST: "quantiles"}, {
            FRONT: (255 * mean, 255 * std), WRIST: ((low + high) / 2, (high - low) / 2),
        }),
        ({FRONT: (7.0, 3.0)}, {FRONT: (np.full(3, 7.0), np.full(3, 3.0)), WRIST: None}),
    ):  # fmt: skip
        loader = SequenceLoader(source, preset=preset, normalize=normalize, **OPTIONS)
        lerobot = preset == "lerobot"
        how = {"window": False, "padding": "edge"} if lerobot else {"window": True, "padding": "fill"}
        for batch, rows in first_batches(loader, 2):
            for camera in (FRONT, WRIST):
                frames = golden(filmed, camera, rows, [0] if lerobot else list(range(4)), **how)
                if affine[camera] is None:
                    assert np.array_equal(batch[camera].dtype, np.float32 if lerobot else np.uint8)
                    continue
                expected = np.empty((*frames.shape[:2], 3, *frames.shape[2:4]))
                center, spread = affine[camera]
                for channel in range(3):
                    expected[:, :, channel] = (frames[..., channel] - center[channel]) / spread[channel]
                if not lerobot:
                    expected[~batch["mask"]] = 0
                assert batch[camera].dtype == np.float32
                np.testing.assert_allclose(batch[camera], expected.reshape(batch[camera].shape), rtol=1e-5, atol=1e-6)
                back = loader.normalizer.denormalize(camera, np.moveaxis(batch[camera], -3, -1).astype(np.float64))
                if lerobot:
                    np.testing.assert_allclose(back, frames[:, 0], atol=1e-3)


def test_times_of_cameras(dataset: gear_data.Dataset) -> None:
    def first(offsets: Any) -> Any:
        return next(iter(SequenceLoader(dataset, **grouped(offsets={FRONT: offsets}, **OPTIONS))))

    held = first(Seconds([-0.1, 0, 0.05, 0.1, 0.19], fill="hold", fps=10))
    listed = first([-1, 0, 0, 1, 1])
    assert held.keys() == listed.keys() and all(np.array_equal(held[key], listed[key]) for key in held)
    with pytest.raises(InvalidArgumentError, match="fill='interpolate' needs floats") as caught:
        first(Seconds([0, 0.05], fill="interpolate", fps=10))
    assert caught.value.column == FRONT


@pytest.mark.parametrize("n_step", [None, 3])
@pytest.mark.parametrize("options", [{}, {"offsets": {FRONT: [-2, 0]}}])
def test_next_frames_of_transitions(
    filmed: Filmed, dataset: gear_data.Dataset, n_step: int | None, options: dict[str, Any]
) -> None:
    loader = SequenceLoader(
        dataset, 20, **grouped(preset="transitions", n_step=n_step, seed=2, framework="numpy", **options)
    )
    places = options["offsets"][FRONT] if options else [0]
    seen = set()
    for batch, rows in first_batches(loader):
        shape = batch[FRONT].shape
        assert np.array_equal(
            batch[FRONT], golden(filmed, FRONT, rows, places, window=False, padding="edge").reshape(shape)
        )
        assert batch[FRONT].dtype == np.uint8
        for number, (episode, start, _) in enumerate(rows):
            frames = filmed.frames[FRONT][episode]
            after = start + (1 if n_step is None else int(batch["intervals"][number]))
            seen.add(after < len(frames))
            wanted = [frames[max(0, after + place)] if after < len(frames) else 0 * frames[0] for place in places]
            assert np.array_equal(batch[f"next_{FRONT}"][number], np.array(wanted).reshape(shape[1:]))
    assert True in seen


def test_the_next_step_of_a_camera(filmed: Filmed, dataset: gear_data.Dataset) -> None:
    loader = SequenceLoader(dataset, **grouped(columns=["actions", f"next_{FRONT}"], **OPTIONS))
    for batch, rows in first_batches(loader):
        for number, (episode, start, length) in enumerate(rows):
            frames = filmed.frames[FRONT][episode]
            for place in range(4):
                there = place < length and start + place + 1 < len(frames)
                expected = frames[start + place + 1] if there else 0 * frames[0]
                assert np.array_equal(batch[f"next_{FRONT}"][number, place], expected)
                assert batch[f"next_{FRONT}_mask"][number, place] == there


def test_only_cameras(filmed: Filmed, dataset: gear_data.Dataset) -> None:
    for batch, rows in first_batches(SequenceLoader(dataset, **grouped(preset="lerobot", columns=[FRONT], **OPTIONS))):
        expected = golden(filmed, FRONT, rows, [0], window=False, padding="edge")[:, 0]
        assert np.array_equal(batch[FRONT], (expected / np.float32(255)).transpose(0, 3, 1, 2))


def test_resized_cameras(filmed: Filmed, dataset: gear_data.Dataset) -> None:
    both = SequenceLoader(dataset, **grouped(resize=(24, 16), **OPTIONS))
    one = SequenceLoader(dataset, **grouped(resize={FRONT: (24, 16)}, **OPTIONS))
    (batch, rows), (other, _) = first_batches(both, 1)[0], first_batches(one, 1)[0]
    assert batch[FRONT].shape == (7, 4, 24, 16, 3) and batch[WRIST].shape == (7, 4, 24, 16, 3)
    assert np.array_equal(other[FRONT], batch[FRONT])
    assert np.array_equal(other[WRIST], golden(filmed, WRIST, rows, list(range(4)), window=True, padding="fill"))
    # Scaled frames are near the means of whole pixels.
    valid = batch["mask"]
    whole = golden(filmed, FRONT, rows, list(range(4)), window=True, padding="fill")[valid]
    means = whole.reshape(-1, 24, 2, 16, 4, 3).mean(axis=(2, 4))
    assert np.abs(batch[FRONT][valid] - means).mean() < 8
    assert not batch[FRONT][~valid].any()
    assert one.spec() != both.spec()
    one.load_state_dict(both.state_dict())  # the windows are the same


def test_augmentations_and_transforms_see_cameras(filmed: Filmed, dataset: gear_data.Dataset) -> None:
    def dark(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {**batch, "dark": batch[FRONT] // 2}

    augment = {FRONT: RandomCrop((40, 60))}
    for batch, rows in first_batches(SequenceLoader(dataset, **grouped(augment=augment, transform=dark, **OPTIONS))):
        assert batch[FRONT].shape == (7, 4, 40, 60, 3)
        assert np.array_equal(batch["dark"], batch[FRONT] // 2)
        whole = golden(filmed, FRONT, rows, list(range(4)), window=True, padding="fill")
        for cut, full in zip(batch[FRONT], whole, strict=True):
            places = itertools.product(range(48 - 40 + 1), range(64 - 60 + 1))
            assert any(np.array_equal(cut, full[:, y : y + 40, x : x + 60]) for y, x in places)


def test_metrics_count_frames(dataset: gear_data.Dataset) -> None:
    loader = SequenceLoader(dataset, **grouped(columns=[FRONT], steps=4, **OPTIONS))
    valid = sum(int(batch["mask"].sum()) for batch in loader)
    frame, numbers = 48 * 64 * 3, 8 + 1  # a step's number and mask
    padding = loader.metrics()["pad_fraction"]
    assert padding == pytest.approx(1 - valid * (frame + numbers) / (4 * 7 * 4 * (frame + numbers)), abs=1e-3)


# Mixtures


@pytest.mark.parametrize("join", [True, False])
def test_mixtures(filmed: Filmed, dataset: gear_data.Dataset, rollouts_path: Any, join: bool) -> None:
    other = gear_data.open(rollouts_path)
    both = Mixture([(dataset, 1), (dataset.filter("length > 3"), 2)], join=join)
    loader = SequenceLoader(both, **grouped(**OPTIONS))
    for batch, rows in first_batches(loader, 4):
        assert np.array_equal(batch[FRONT], golden(filmed, FRONT, rows, list(range(4)), window=True, padding="fill"))
    without = Mixture([(dataset, 1), (other, 1)], join=join)
    found = [FRONT in batch for batch, _ in first_batches(SequenceLoader(without, **grouped(**OPTIONS)), 4)]
    assert not any(found) if join else sorted(set(found)) == [False, True]
    if join:
        with pytest.raises(UnknownNameError):
            SequenceLoader(without, **grouped(columns=["actions", FRONT], **OPTIONS))


def test_renamed_cameras(filmed: Filmed, dataset: gear_data.Dataset) -> None:
    renamed = Mixture([(dataset, 1, {"rename": {FRONT: WRIST, WRIST: "observations.images.hand"}})])
    for options in ({}, {"resize": {WRIST: (48, 64)}}):
        for batch, rows in first_batches(SequenceLoader(renamed, **grouped(**OPTIONS, **options))):
            assert FRONT not in batch
            assert np.array_equal(
                batch[WRIST], golden(filmed, FRONT, rows, list(range(4)), window=True, padding="fill")
            )
            hand = golden(filmed, WRIST, rows, list(range(4)), window=True, padding="fill")
            assert np.array_equal(batch["observations.images.hand"], hand)


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("preset", ["raw", "lerobot", "transitions"])
def test_absent_cameras_are_black(
    filmed: Filmed, dataset: gear_data.Dataset, rollouts_path: Any, preset: str, join: bool
) -> None:
    both = Mixture([(gear_data.open(rollouts_path), 1), (dataset, 1)], join=join, pad_to="largest")
    options = {**OPTIONS, "preset": preset, "context": 1 if preset == "transitions" else 4}
    loader = SequenceLoader(both, **grouped(**options))
    for step, (batch, rows) in enumerate(first_batches(loader)):
        source = loader.windows(step)["dataset"]
        assert batch[f"{FRONT}_present"].tolist() == (source == 1).tolist()
        assert not batch[FRONT][source == 0].any()
        own = np.flatnonzero(source == 1)
        places, padding = ([0], "edge") if preset == "lerobot" else (list(range(options["context"])), "fill")
        expected = golden(filmed, FRONT, [rows[row] for row in own], places, window=True, padding=padding)
        if preset == "lerobot":
            values = expected[:, 0].transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
        else:
            values = expected[:, 0] if preset == "transitions" else expected
        assert np.array_equal(batch[FRONT][own], values)


def test_cameras_of_several_sizes_need_resize(dataset: gear_data.Dataset, sources: Any, tmp_path: Any) -> None:
    source = sources.write_d4rl(tmp_path / "source.hdf5", sources.make_rollouts(2, seed=4))
    gear_data.convert(source, tmp_path / "small")
    small = gear_data.open(tmp_path / "small")
    write_video(small.path / "videos/front.mp4", moving_bar(int(small.lengths.sum()), 32, 48))
    segments = VideoSegments(np.zeros(2, np.int64), small.offsets[:-1])
    attach_cameras(small.path, [index_file(small.path / "videos/front.mp4", "videos/front.mp4")], {FRONT: segments})
    small = gear_data.open(small.path)
    for pad_to in (None, "largest"):
        both = Mixture([(dataset, 1), (small, 1)], join=True, pad_to=pad_to)
        columns = ["actions", FRONT]
        with pytest.raises(InvalidArgumentError, match=r"(?s)shape of a frame.*48, 64.*32, 48.*resize="):
            SequenceLoader(both, **grouped(columns=columns, **OPTIONS))
        batch = next(iter(SequenceLoader(both, **grouped(columns=columns, resize=(8, 12), **OPTIONS))))
        assert batch[FRONT].shape[2:] == (8, 12, 3)


# Refusals


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"normalize": FRONT}, InvalidArgumentError, "no statistics of this camera"),
        ({"normalize": "all"}, InvalidArgumentError, "no statistics of this camera"),
        ({"normalize": {FRONT: ([1.0, 2.0], 1.0)}}, InvalidArgumentError, "2 means and 1 deviations for 3 elements"),
        ({"preset": "transitions", "context": None, "goals": gear_data.Goals(goal_column=FRONT)}, InvalidArgumentError,
         "goals cannot be frames"),
        ({"stack": {"seen": [FRONT, "observations"]}}, gear_data.GearError, FRONT),
        ({"resize": (0, 5)}, InvalidArgumentError, "resize must be"),
        ({"resize": {FRONT: 5}}, InvalidArgumentError, "resize must be"),
        ({"resize": (8, 8, "crop")}, InvalidArgumentError, "resize must be"),
        ({"resize": {"front": (5, 5)}}, UnknownNameError, "camera 'front'"),
        ({"threads": 0}, InvalidArgumentError, "threads must be"),
        ({"threads": 1.5}, InvalidArgumentError, "threads must be"),
        ({"cache_bytes": -1}, InvalidArgumentError, "cache_bytes must be"),
        ({"video": None}, InvalidArgumentError, "video must be VideoOptions"),
        ({"backend": "opencv"}, UnknownNameError, "backend 'opencv'"),
        ({"preset": "corl", "preset_options": {"roles": ["observation"]}}, InvalidArgumentError, "columns="),
        ({"decoders": {FRONT: len}}, UnknownNameError, "decoders"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)  # fmt: skip
def test_what_cameras_cannot_do(
    dataset: gear_data.Dataset, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        SequenceLoader(dataset, **grouped(**{**OPTIONS, **options}))


def test_resize_needs_a_camera(rollouts_path: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="no cameras"):
        SequenceLoader(gear_data.open(rollouts_path), resize=(8, 8))


def test_the_specification_names_the_decoder(dataset: gear_data.Dataset) -> None:
    spec = SequenceLoader(dataset, **grouped(resize=(8, 10), **OPTIONS)).spec()
    assert spec["video_decoder"].startswith("pyav ")
    (shape,) = [output["shape"] for output in spec["outputs"] if output["key"] == FRONT]
    assert shape == [8, 10, 3]
    assert "video_decoder" not in SequenceLoader(dataset, **grouped(columns=["actions"], **OPTIONS)).spec()


# Other uses of the specification


def test_a_rollout_has_the_environments_frames(filmed: Filmed, dataset: gear_data.Dataset) -> None:
    for preset in ("lerobot", "raw"):
        options = {**OPTIONS, "context": 1, "columns": ["actions", FRONT], "offsets": {FRONT: [-2, 0]}}
        loader = SequenceLoader(dataset, **grouped(preset=preset, **options))
        ((batch, rows),) = first_batches(loader, 1)
        rollout = gear_data.Rollout.from_spec(loader.spec())
        for number, (episode, start, _) in enumerate(rows):
            frames = filmed.frames[FRONT][episode]
            rollout.reset({FRONT: frames[0]})
            for step in range(start):
                rollout.update(
                    np.zeros(batch["action" if preset == "lerobot" else "actions"].shape[-1]),
                    0.0,
                    {FRONT: frames[step + 1]},
                )
            assert np.array_equal(rollout.inputs()[FRONT][0], batch[FRONT][number])
    with pytest.raises(InvalidArgumentError, match="the frame is an array of float64"):
        rollout = gear_data.Rollout.from_spec(SequenceLoader(dataset, **grouped(preset="lerobot", **options)).spec())
        rollout.reset({FRONT: frames[0] / 255})
        rollout.inputs()


def test_the_command_resizes(filmed: Filmed, capsys: pytest.CaptureFixture[str]) -> None:
    def padded(*options: str) -> float:
        facts = run_json(capsys, "feed", filmed.path, "--steps", 2, "--batch-size", 4, "--context", 2, *options)
        return facts["padded_bytes_per_s"] / facts["windows_per_s"]

    frames = 2 * 3 * (48 * 64 + 32 * 48 - 2 * 16 * 20)
    assert padded() - padded("--resize", "16x20", "--decode-threads", "1") == pytest.approx(frames)
    with pytest.raises(SystemExit):
        run_json(capsys, "feed", filmed.path, "--resize", "16")
