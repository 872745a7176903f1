"""Augmentations that compute pixels, against torchvision's functions with numbers from a plain generator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gear_data
from gear_data import ColorJitter, Mixture, RandomCrop, RandomResizedCrop, RandomRotation, RandomShift, SequenceLoader
from gear_data.errors import InvalidArgumentError, UnknownNameError, UnsupportedColumnError
from gear_data.loaders.decoding.augmenter import Augmenter
from tests.support.cameras.filmed import FRONT, WRIST, film
from tests.support.feed import data as feed_data
from tests.support.feed.arguments import grouped
from tests.support.feed.batches import same, take
from tests.support.feed.torchvision_pixels import augmented, check_rounded, drawn

SEED, BATCH = 5, 7
OPTIONS: dict[str, Any] = {"batch_size": BATCH, "context": 3, "seed": SEED, "columns": [FRONT, WRIST]}
JITTER = ColorJitter(brightness=0.1, contrast=0.1, saturation=0.1, hue=0.05)
#: As Octo and openpi augment a camera of the scene, and one at the wrist.
OCTO = [RandomResizedCrop(scale=(0.8, 1.0), ratio=(0.9, 1.1)), JITTER]
OPENPI = [
    RandomResizedCrop(scale=(0.95**2, 0.95**2), ratio=(1, 1)),
    RandomRotation(5),
    ColorJitter(brightness=0.3, contrast=0.4, saturation=0.5),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lengths = [7, 1, 12, 20, 3]
    folder = tmp_path_factory.mktemp("pixels") / "d"
    feed_data.convert_episodes(feed_data.locomotion(lengths, seed=4), folder)
    film(folder, lengths)
    return folder


@pytest.fixture
def dataset(path: Path) -> gear_data.Dataset:
    return gear_data.open(path)


def arrays(loader: SequenceLoader, count: int) -> list[dict[str, np.ndarray]]:
    return [{key: tensor.numpy() for key, tensor in batch.items()} for batch in take(loader, count)]


def check(
    before: np.ndarray, after: np.ndarray, augment: Sequence[Any], key: str, step: int, rows: range, seed: int = SEED
) -> None:
    """Compares the images [B, K, H, W, C] of a key."""
    height, width = before.shape[2:4]
    for found, images, row in zip(after, before, rows, strict=True):
        operations = drawn(augment, key, height, width, seed, step, row)
        expected = augmented(np.ascontiguousarray(images.transpose(0, 3, 1, 2)), operations)
        check_rounded(found, expected.transpose(0, 2, 3, 1))


@pytest.mark.parametrize(
    "augment",
    [
        {FRONT: OCTO, WRIST: JITTER},
        {FRONT: OPENPI, WRIST: OPENPI[-1]},
        [RandomResizedCrop(size=(20, 30), together=True), ColorJitter(contrast=2.0)],
        [ColorJitter(hue=0.5), ColorJitter(saturation=0.5), RandomRotation(180), RandomResizedCrop(ratio=(0.5, 2.0))],
    ],
    ids=["octo", "openpi", "together", "another order"],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_batches_are_those_of_torchvision(dataset: gear_data.Dataset, augment: Any, rank: int) -> None:
    options = {**OPTIONS, "rank": rank, "world_size": 2, "prefetch": rank}
    changed = arrays(SequenceLoader(dataset, **grouped(**options, augment=augment)), 3)
    plain = arrays(SequenceLoader(dataset, **grouped(**options)), 3)
    rows = range(rank * BATCH // 2, (rank + 1) * BATCH // 2)
    for step, (after, before) in enumerate(zip(changed, plain, strict=True)):
        for key in (FRONT, WRIST):
            own = augment[key] if isinstance(augment, dict) else augment
            check(before[key], after[key], own if isinstance(own, list) else [own], key, step, rows)
            assert not after[key][~before["mask"]].any()  # padding stays black
        assert np.array_equal(before["mask"], after["mask"])


def test_draws_differ_by_seed_step_row_and_key(dataset: gear_data.Dataset) -> None:
    """All windows are alike, so what differs is drawn. `together` gives both cameras of a row one draw."""
    window = np.random.default_rng(0).integers(0, 256, (1, 2, 24, 24, 3), np.uint8)
    for together in (False, True):
        found = []
        for seed, step in ((0, 0), (0, 1), (1, 0)):
            batch = {"front": window.repeat(4, 0), "wrist": window.repeat(4, 0)}
            Augmenter(RandomRotation(90, together=together), dict.fromkeys(batch), seed)(step, 0, batch)
            found += [batch["front"][row].tobytes() for row in range(4)]
            if together:
                assert np.array_equal(batch["wrist"], batch["front"])
            else:
                found += [batch["wrist"][row].tobytes() for row in range(4)]
        assert len({*found}) == len(found)


@pytest.mark.processes
def test_batches_do_not_depend_on_workers_ranks_or_resuming(dataset: gear_data.Dataset) -> None:
    options = {**OPTIONS, "augment": {FRONT: OPENPI, WRIST: JITTER}, "steps": 8}
    whole = take(SequenceLoader(dataset, **grouped(**options, prefetch=0)), 8)
    same(list(SequenceLoader(dataset, **grouped(**options)).dataloader(num_workers=2)), whole)
    ranks = [take(SequenceLoader(dataset, **grouped(**options, rank=rank, world_size=3)), 8) for rank in range(3)]
    same(
        [{key: torch.cat([part[key] for part in group]) for key in group[0]} for group in zip(*ranks, strict=True)],
        whole,
    )
    loader = SequenceLoader(dataset, **grouped(**options))
    _ = take(loader, 3)
    resumed = SequenceLoader(dataset, **grouped(**options))
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    same(list(resumed), whole[3:])


def test_the_range_of_draws() -> None:
    """Areas, ratios, places, angles and factors reach both ends of their ranges, and not beyond."""
    draws = np.random.default_rng(3).random((20_000, 4))
    places = RandomResizedCrop(scale=(0.25, 0.81), ratio=(0.5, 2.0)).numbers(draws, 400, 600)[:, 0]
    tops, lefts, heights, widths = places.T
    assert (tops.min(), lefts.min()) == (0, 0)
    assert (tops + heights).max() == 400 and (lefts + widths).max() == 600
    areas, ratios = heights * widths / (400 * 600), (widths / 600) / (heights / 400)
    assert 0.245 < areas.min() < 0.255 and 0.79 < areas.max() <= 0.81
    assert 0.49 < ratios.min() < 0.51 and 1.9 < ratios.max() < 2.02
    assert abs(np.log(ratios).mean()) < 0.02
    # A side that does not fit is the image's.
    wide = RandomResizedCrop(scale=(1.0, 1.0), ratio=(4.0, 4.0)).numbers(draws[:1], 400, 600)[0, 0]
    assert wide.tolist() == [float(np.floor(draws[0, 2] * 201)), 0.0, 200.0, 600.0]
    # openpi cuts int(0.95 * side) pixels.
    assert OPENPI[0].numbers(draws[:1], 224, 640)[0, 0, 2:].tolist() == [212.0, 608.0]
    cosines, sines = RandomRotation(30).numbers(draws, 1, 1)[:, 0, :2].T
    angles = np.degrees(np.arctan2(sines, cosines))
    assert -30 <= angles.min() < -29.9 and 29.9 < angles.max() <= 30 and abs(angles.mean()) < 0.5
    factors = ColorJitter(contrast=1.5, hue=0.25).numbers(draws, 1, 1)[..., 0]
    assert factors.shape == (20_000, 2)
    assert (factors.min(axis=0) > [-0.001, -0.2501]).all() and (factors.max(axis=0) > [2.49, 0.249]).all()


def test_copies_and_changes_follow_each_other(dataset: gear_data.Dataset) -> None:
    """A shift before colours is the shift alone, and then the colours, at the second place of the list."""
    shift, jitter = RandomShift(3), ColorJitter(brightness=0.5)

    def images(*augment: Any) -> np.ndarray:
        return SequenceLoader(dataset, **grouped(**OPTIONS, augment={FRONT: list(augment)})).batch(2)[FRONT].numpy()

    shifted, both = images(shift), images(shift, jitter)
    height, width = shifted.shape[2:4]
    for row in range(BATCH):
        (_, (factor,)) = (operations := drawn([RandomRotation(), jitter], FRONT, height, width, SEED, 2, row))[1]
        assert len(operations) == 2
        check_rounded(both[row], np.clip(shifted[row] * factor, 0, 255))
    # Two shifts of a list are drawn apart.
    plain = SequenceLoader(dataset, **grouped(**OPTIONS)).batch(2)[FRONT].numpy()
    assert not np.array_equal(images(shift, shift), shifted) and not np.array_equal(images(shift, shift), plain)


@pytest.mark.parametrize("join", [True, False])
def test_mixtures(dataset: gear_data.Dataset, join: bool) -> None:
    options = {**OPTIONS, "columns": [FRONT], "prefetch": 2}
    mixture = Mixture([(dataset, 1), (dataset.filter("length > 5"), 2)], join=join)
    changed = arrays(SequenceLoader(mixture, **grouped(**options, augment=OCTO)), 4)
    plain = arrays(SequenceLoader(mixture, **grouped(**options)), 4)
    for step, (after, before) in enumerate(zip(changed, plain, strict=True)):
        check(before[FRONT], after[FRONT], OCTO, FRONT, step, range(BATCH))


def test_images_with_channels_first() -> None:
    before = np.random.default_rng(2).integers(0, 256, (6, 2, 3, 20, 26), np.uint8)
    for augment in ([RandomResizedCrop(size=9), JITTER], [RandomShift(2, channels="first"), RandomRotation(20)]):
        batch, last = {"pixels": before}, {"pixels": before.transpose(0, 1, 3, 4, 2)}
        Augmenter(augment, dict.fromkeys(batch), 1)(3, 0, batch)
        turned = [RandomShift(2) if isinstance(each, RandomShift) else each for each in augment]
        Augmenter(turned, dict.fromkeys(batch), 1)(3, 0, last)
        assert np.array_equal(batch["pixels"], last["pixels"].transpose(0, 1, 4, 2, 3))


def test_the_specification_names_the_order(dataset: gear_data.Dataset) -> None:
    loader = SequenceLoader(dataset, **grouped(**OPTIONS, augment={FRONT: OPENPI, WRIST: RandomShift()}))
    augment = json.loads(json.dumps(loader.spec()))["augment"]
    assert [each["name"] for each in augment[FRONT]] == ["random_resized_crop", "random_rotation", "color_jitter"]
    assert augment[FRONT][2]["saturation"] == 0.5
    assert augment[WRIST]["name"] == "random_shift"


def test_what_cannot_be_augmented_is_refused_at_construction(dataset: gear_data.Dataset) -> None:
    def loader(augment: Any, **options: Any) -> SequenceLoader:
        return SequenceLoader(dataset, **grouped(**{**OPTIONS, **options}, augment=augment))

    for options in ({"preset": "lerobot"}, {"normalize": {FRONT: "imagenet"}}):
        with pytest.raises(UnsupportedColumnError, match=f"{FRONT}.*RandomRotation changes images of uint8.*float32"):
            loader({FRONT: RandomRotation(5)}, **options)
    loader(JITTER, preset="lerobot", preset_options={"camera_frames": "uint8"})
    with pytest.raises(InvalidArgumentError, match="a crop of 30 x 30 does not fit images of 20 x 20"):
        loader([RandomResizedCrop(size=20), RandomCrop(30)])
    with pytest.raises(UnknownNameError, match="rewards"):
        loader({"rewards": JITTER})
    with pytest.raises(UnsupportedColumnError, match="red, green and blue, and these images have 9 channels"):
        Augmenter(JITTER, {"pixels": (np.dtype(np.uint8), (9, 84, 84))}, 0)
    with pytest.raises(UnsupportedColumnError, match="float32"):  # what a decoder returns is known in the batch
        Augmenter(JITTER, {"pixels": None}, 0)(0, 0, {"pixels": np.zeros((1, 1, 8, 8, 3), np.float32)})
    for wrong in ([], [JITTER, 4], {FRONT: []}, {FRONT: [JITTER, None]}):
        with pytest.raises(InvalidArgumentError, match="augment must be augmentations"):
            loader(wrong)
    with pytest.raises(InvalidArgumentError, match="channels='first' and channels='last'"):
        loader([RandomShift(channels="first"), RandomCrop(4, channels="last")])


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (RandomResizedCrop, {"scale": (0, 1)}, r"scale must be \(lowest, highest\), above 0 and at most 1"),
        (RandomResizedCrop, {"scale": (0.9, 0.8)}, "scale"),
        (RandomResizedCrop, {"scale": 0.9}, "scale"),
        (RandomResizedCrop, {"ratio": (0.5, float("inf"))}, r"ratio must be \(lowest, highest\), above 0, not"),
        (RandomResizedCrop, {"ratio": (True, 2)}, "ratio"),
        (RandomResizedCrop, {"size": (3,)}, "size"),
        (RandomResizedCrop, {"size": 0}, "size"),
        (RandomRotation, {"degrees": 181}, "degrees must be a number from 0 to 180"),
        (RandomRotation, {"degrees": 0}, "degrees is 0"),
        (RandomRotation, {"degrees": "5"}, "degrees"),
        (ColorJitter, {}, "brightness, contrast, saturation, hue of ColorJitter are all 0"),
        (ColorJitter, {"hue": 0.6}, "hue must be a number from 0 to 0.5"),
        (ColorJitter, {"brightness": -0.1}, "brightness must be a number of at least 0"),
        (ColorJitter, {"contrast": float("nan")}, "contrast"),
        (ColorJitter, {"saturation": (0.5, 1.5)}, "saturation"),
    ],
)
def test_fields_out_of_their_range(kind: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        kind(**fields)
