"""Tests of keys whose windows have one of several arrays, against batches that have all of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash

import gear_data
from gear_data import Mixture, RandomCrop, SequenceLoader
from gear_data.errors import InvalidArgumentError, UnknownNameError
from gear_data.kernels import cpu
from gear_data.loaders.video.camera_collector import CameraCollector, FrameRequests
from tests.support.cameras.filmed import FRONT, WRIST, film
from tests.support.feed.arguments import grouped
from tests.support.feed.data import convert_episodes, locomotion

OPTIONS: dict[str, Any] = {"batch_size": 7, "context": 4, "seed": 5, "framework": "numpy"}
LENGTHS = [7, 1, 12, 20, 3]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("choices") / "d"
    episodes = locomotion(LENGTHS, seed=4, observations=3)
    for episode in episodes:
        episode["observations.other"] = episode.pop("observations")
        episode["observations.own"] = 2 * episode["observations.other"]
        episode["infos.count"] = np.arange(len(episode["rewards"]))
    convert_episodes(episodes, folder)
    film(folder, LENGTHS)
    return folder


@pytest.fixture
def dataset(path: Path) -> gear_data.Dataset:
    return gear_data.open(path)


def numbers(key: str, step: int, count: int, rows: range) -> list[int]:
    """Which of the columns each row has, from the bits of the counter-based generator."""
    seed = np.uint64(cpu.random.word64(np.uint64(5), 13, 0, xxhash.xxh32_intdigest(key.encode()), 0))
    return [int(cpu.random.below(seed, 13, step, row, count)) for row in rows]


def check(data: Any, names: Sequence[str], masks: Sequence[str] = (), **options: Any) -> None:
    """Compares the key `one` with the arrays of a batch that has all columns."""
    columns = ["rewards"] if options.get("preset", "raw") in ("raw", "lerobot") else []
    options = {**OPTIONS, "steps": 4, **options}
    every = SequenceLoader(data, **grouped(**options, columns=[*columns, *names]))
    loader = SequenceLoader(data, **grouped(**options, columns=columns, choose={"one": names}))
    rank, world = options.get("rank", 0), options.get("world_size", 1)
    rows = range(rank * 7 // world, (rank + 1) * 7 // world)
    for step, (batch, other) in enumerate(zip(loader, every, strict=True)):
        drawn = numbers("one", step, len(names), rows)
        for new, keys in [("one", names), *([("one_is_pad", masks)] if masks else [])]:
            expected = np.stack([np.asarray(other[keys[number]])[row] for row, number in enumerate(drawn)])
            assert np.asarray(batch[new]).dtype == expected.dtype
            assert np.array_equal(np.asarray(batch[new]), expected)
        assert batch.keys() - {"one", "one_is_pad"} == other.keys() - {*names, *masks}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prefetch": 0, "rank": 1, "world_size": 3},
        {"preset": "decision_transformer", "preset_options": {"roles": [], "required_columns": ["actions"]}},
        {"normalize": True, "dtype": "float16"},
        {"preset": "lerobot"},
        {"preset": "lerobot", "offsets": {"observations.own": [-2, 0, 3], "observations.other": [-2, 0, 3]}},
    ],
)  # fmt: skip
def test_one_of_several_columns_of_numbers(dataset: gear_data.Dataset, options: dict[str, Any]) -> None:
    masks = ["observations.own_is_pad", "observations.other_is_pad"] if "offsets" in options else []
    check(dataset, ["observations.own", "observations.other"], masks, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"resize": (24, 32)},
        {"resize": (24, 32), "prefetch": 3, "preset": "lerobot", "rank": 1, "world_size": 2},
        {"resize": (24, 32), "preset": "d3rlpy", "preset_options": {"required_columns": ["actions"], "roles": []}},
    ],
)
def test_only_frames_of_the_camera_that_is_drawn_are_decoded(
    dataset: gear_data.Dataset, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    decode = CameraCollector._read

    def counted(self: CameraCollector, number: int, wanted: FrameRequests, ahead: Any, frames: Any) -> None:
        read.append(len(wanted.places))
        decode(self, number, wanted, ahead, frames)

    monkeypatch.setattr(CameraCollector, "_read", counted)
    columns = [] if options.get("preset") == "d3rlpy" else ["rewards"]
    sizes = []
    for names in ([FRONT, WRIST], [FRONT]):
        own = {**OPTIONS, **options, "columns": columns, "choose": {"one": names}, "prefetch": 0}
        read.clear()
        _ = list(itertools.islice(SequenceLoader(dataset, **grouped(**own)), 3))
        sizes.append(sum(read))
    assert sizes[0] == sizes[1] > 0
    check(dataset, [FRONT, WRIST], **options)


def test_mixtures_of_cameras(dataset: gear_data.Dataset) -> None:
    for join in (False, True):
        mixed = Mixture([dataset, dataset.filter("length > 5")], join=join)
        check(mixed, [FRONT, WRIST], resize=(24, 32), prefetch=2)


def test_datasets_of_joined_batches_draw_among_the_same_columns(dataset: gear_data.Dataset) -> None:
    options = {**OPTIONS, "columns": ["rewards"], "choose": {"one": ["observations.own", "observations.other"]}}
    for pad_to in (None, "largest"):
        other = (dataset, 1, {"choose": {"one": ["observations.other", "observations.own"]}})
        mixed = Mixture([(dataset, 1), other], join=True, pad_to=pad_to)
        with pytest.raises(InvalidArgumentError, match="draw among several columns"):
            SequenceLoader(mixed, **grouped(**options))


def test_an_augmentation_of_the_drawn_camera(dataset: gear_data.Dataset) -> None:
    options = {**OPTIONS, "columns": [], "choose": {"one": [FRONT, WRIST]}, "resize": (24, 32)}
    batch = next(iter(SequenceLoader(dataset, **grouped(**options, augment={"one": RandomCrop(16)}))))
    assert batch["one"].shape == (7, 4, 16, 16, 3)
    with pytest.raises(UnknownNameError, match="known: one"):
        next(iter(SequenceLoader(dataset, **grouped(**options, augment={FRONT: RandomCrop(16)}))))


def test_tensors_and_columns_that_stay(dataset: gear_data.Dataset) -> None:
    """`raw` without columns has all of them, and the key is one more."""
    names = ["observations.own", "observations.other"]
    options = {**OPTIONS, "framework": "torch", "resize": (24, 32)}
    plain = next(iter(SequenceLoader(dataset, **grouped(**options))))
    batch = next(iter(SequenceLoader(dataset, **grouped(**options, choose={"one": names}))))
    assert [*batch] == [*plain, "one"]
    for row, number in enumerate(numbers("one", 0, 2, range(7))):
        assert torch.equal(batch["one"][row], batch[names[number]][row])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"choose": {"one": [FRONT, "rewards"]}}, f"of one form.* of {FRONT}, .* of rewards"),
        ({"choose": {"one": ["observations.own", "infos.count"]}}, "of one form"),
        ({"choose": {"rewards": ["observations.own", "observations.other"]}}, "the key 'rewards'"),
        ({"choose": {"one": ["observations.own"]}, "preset": "gato", "columns": None}, "makes tokens"),
        ({"choose": {"one": ["observations.own"]}, "preset": "transitions", "columns": None, "context": 1}, "two"),
        ({"choose": {"one": ["infos.count", "rewards"]}, "offsets": {"infos.count": (0, 2)}}, "of one form"),
    ],
)  # fmt: skip
def test_columns_of_several_forms_are_refused(
    dataset: gear_data.Dataset, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        SequenceLoader(dataset, **grouped(**{**OPTIONS, "columns": ["rewards"], **options}))
