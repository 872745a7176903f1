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
#: Columns that only some of the datasets `unlike` have.
OWN, OTHER = "infos.x", "infos.y"


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


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> list[gear_data.Dataset]:
    """Datasets of which one has both columns, one the second, and one none; also of texts and of cameras."""
    made = []
    for number, having in enumerate(((OWN, OTHER), (OTHER,), ())):
        episodes = locomotion(LENGTHS, seed=number, observations=2)
        for episode in episodes:
            steps = len(episode["rewards"])
            for name in having:
                episode[name] = np.full((steps, 3), (number + 1) * (1 if name == OWN else -1), np.float32)
                text = np.array([f"{name} {number} {step}" for step in range(steps)], object)
                episode[f"infos.text_{name[-1]}"] = text
        folder = tmp_path_factory.mktemp("unlike") / str(number)
        convert_episodes(episodes, folder)
        if having:
            film(folder, LENGTHS)
        made.append(gear_data.open(folder))
    return made


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prefetch": 2},
        {"rank": 1, "world_size": 3},
        pytest.param({"num_workers": 1}, marks=pytest.mark.processes),
    ],
)
def test_a_dataset_draws_among_the_columns_that_it_has(unlike: Any, join: bool, options: dict[str, Any]) -> None:
    mixture = Mixture(unlike, join=join, pad_to={OWN: 4, OTHER: 4})
    own = {**OPTIONS, "steps": 9, "batch_size": 12, "columns": ["rewards"], **options}
    workers = own.pop("num_workers", 0)
    loader: Any = SequenceLoader(mixture, **grouped(**own, choose={"one": [OWN, OTHER]}))
    if workers:
        loader = torch.utils.data.DataLoader(loader, batch_size=None, num_workers=workers)
    rank, world = options.get("rank", 0), options.get("world_size", 1)
    rows, found = range(rank * 12 // world, (rank + 1) * 12 // world), set()
    for step, batch in enumerate(loader):
        assert not batch.keys() & {OWN, OTHER, f"{OWN}_present", f"{OTHER}_dim_mask"}
        both = numbers("one", step, 2, rows)
        for row, source in enumerate(np.asarray(batch["source"]).tolist()):
            # The first dataset has 1 and -1, the second -2, the third nothing.
            value = [(1, -1)[both[row]], -2, 0][source]
            valid, real = int(batch["valid_count"][row]), 0 if source == 2 else 3
            assert np.asarray(batch["one"][row, :valid, :real] == value).all()
            assert not np.asarray(batch["one"][row, :, real:]).any()
            assert np.asarray(batch["one_dim_mask"][row]).tolist() == [place < real for place in range(4)]
            assert bool(batch["one_present"][row]) == (source < 2)
            found.add(value)
    assert found == {1, -1, -2, 0}


def test_a_dataset_without_a_column_leaves_the_draws_of_others(unlike: Any) -> None:
    names = [OWN, OTHER]
    options = {**OPTIONS, "batch_size": 12, "columns": ["rewards", *names], "choose": {"one": names}}
    loader = SequenceLoader(Mixture(unlike, join=True, pad_to="largest"), **grouped(**options))
    alone = SequenceLoader(Mixture(unlike[:1] * 3, join=True), **grouped(**options))
    for batch, other in itertools.islice(zip(loader, alone, strict=False), 4):
        assert batch[f"{OWN}_present"].tolist() == (batch["source"] == 0).tolist()
        for row in np.flatnonzero(batch["source"] == 0).tolist():
            assert np.array_equal(batch["one"][row], other["one"][row])
        for row in np.flatnonzero(batch["source"] == 1).tolist():
            assert np.array_equal(batch["one"][row], batch[OTHER][row])


@pytest.mark.parametrize("decoded", [False, True])
def test_a_dataset_draws_among_the_texts_that_it_has(unlike: Any, decoded: bool) -> None:
    def lengths(texts: Any) -> Any:
        assert all(texts)
        return np.array([len(text) for text in texts])

    names = ["infos.text_x", "infos.text_y"]
    options = {**OPTIONS, "batch_size": 12, "columns": ["rewards"], "choose": {"one": names}, "steps": 4}
    loader = SequenceLoader(
        Mixture(unlike, join=True, pad_to="largest"),
        **grouped(**options, decoders={"one": lengths} if decoded else {}),
    )
    for step, batch in enumerate(loader):
        both, windows = numbers("one", step, 2, range(12)), loader.windows(step)
        for row, source in enumerate(batch["source"].tolist()):
            name = names[[both[row], 1, 0][source]].replace("text_", "")
            first, count = int(windows["start"][row]), int(windows["length"][row])
            texts = [f"{name} {source} {at}" for at in range(first, first + count)] if source < 2 else []
            assert batch["one_present"][row] == (source < 2)
            if decoded:
                expected = [len(text) for text in texts] + [0] * (4 - len(texts))
                assert batch["one"][row].tolist() == expected
            else:
                assert batch["one"][row] == texts


def test_absent_cameras_of_a_choice_are_black(unlike: Any) -> None:
    options = {**OPTIONS, "columns": ["rewards"], "resize": (24, 32), "batch_size": 12, "preset": "lerobot"}
    second = (unlike[1], 1, {"rename": {FRONT: "observations.images.side"}})
    mixture = Mixture([(unlike[0], 1), second, (unlike[2], 1)], join=True, pad_to="largest")
    every = SequenceLoader(mixture, **grouped(**{**options, "columns": ["rewards", FRONT, WRIST]}))
    loader = SequenceLoader(mixture, **grouped(**options, choose={"one": [FRONT, WRIST]}))
    for step, (batch, other) in enumerate(itertools.islice(zip(loader, every, strict=False), 3)):
        both = numbers("one", step, 2, range(12))
        for row, source in enumerate(batch["source"].tolist()):
            name = [FRONT, WRIST][[both[row], 1, 0][source]]
            assert np.array_equal(batch["one"][row], other[name][row])
            assert batch["one"][row].any() == (source < 2) == batch["one_present"][row]


def test_choices_of_several_kinds_name_the_datasets(unlike: Any) -> None:
    first = (unlike[0], 1, {"rename": {OTHER: "infos.z"}})
    second = (unlike[1], 1, {"rename": {"infos.text_y": "infos.v"}})
    options = {**OPTIONS, "columns": ["rewards"], "choose": {"one": ["infos.z", "infos.v"]}}
    with pytest.raises(InvalidArgumentError, match=r"'one'.*arrays in dataset 0 .*type string.* in dataset 1"):
        SequenceLoader(Mixture([first, second], join=True, pad_to="largest"), **grouped(**options))
    with pytest.raises(UnknownNameError, match=rf"'{OWN}'"):
        options["choose"] = {"one": [OWN, OTHER]}
        SequenceLoader(Mixture(unlike[:2], join=True), **grouped(**options))
