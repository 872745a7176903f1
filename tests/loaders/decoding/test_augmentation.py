"""Shifts and crops of images against plain padding and slicing."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import torch

from gear_data import (
    BatchOptions,
    ColorJitter,
    Mixture,
    RandomCrop,
    RandomResizedCrop,
    RandomShift,
    SequenceLoader,
)
from gear_data.errors import InvalidArgumentError, UnknownNameError, UnsupportedColumnError
from gear_data.loaders.decoding.augmenter import Augmenter
from gear_data.loaders.decoding.images import ImageDecoder
from tests.support.feed import data as feed_data
from tests.support.feed import variable
from tests.support.feed.arguments import grouped
from tests.support.feed.batches import same, take

IMAGE = "observations.image"
COLUMNS = [IMAGE, f"next_{IMAGE}", "rewards"]
OPTIONS = {"batch_size": 10, "context": 4, "seed": 5, "columns": COLUMNS}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    episodes = feed_data.locomotion([9, 14, 6, 30], seed=2)
    rng = np.random.default_rng(0)
    for episode in episodes:
        length = len(episode["rewards"])
        episode[IMAGE] = rng.integers(1, 255, (length, 12, 15, 3)).astype(np.uint8)
    return feed_data.convert_episodes(episodes, tmp_path_factory.mktemp("images") / "d")


def places(before, after, pad, valid):
    """Returns for each row every (top, left) at which plain cutting gives the augmented steps, [B] sets."""
    padded = np.pad(before, [(0, 0), (0, 0), (pad, pad), (pad, pad), (0, 0)], mode="edge")
    height, width = after.shape[2:4]
    found = []
    for row in range(len(before)):
        steps = valid[row]
        found.append(
            {
                (top, left)
                for top in range(padded.shape[2] - height + 1)
                for left in range(padded.shape[3] - width + 1)
                if (padded[row, steps, top : top + height, left : left + width] == after[row, steps]).all()
            }
        )
    return found


@pytest.mark.parametrize(
    ("augmentation", "pad", "shape"),
    [
        (RandomShift(3), 3, (12, 15)),
        (RandomShift(20), 20, (12, 15)),
        (RandomCrop((7, 9)), 0, (7, 9)),
        (RandomCrop(12, pad=2), 2, (12, 12)),
    ],
)
def test_rows_are_cut_at_one_place(images, augmentation, pad, shape):
    drawn = []
    loader, plain = (
        SequenceLoader(images, **grouped(**OPTIONS, augment=augmentation)),
        SequenceLoader(images, **grouped(**OPTIONS)),
    )
    for step in range(6 if pad < 20 else 1):
        after, before = (
            {key: value.numpy() for key, value in each.batch(step).items() if "mask" not in key}
            for each in (loader, plain)
        )
        valid = plain.batch(step)["mask"].numpy()
        assert after[IMAGE].shape == (10, 4, *shape, 3)
        assert (after["rewards"] == before["rewards"]).all()
        of_now = places(before[IMAGE], after[IMAGE], pad, valid)
        of_next = places(before[f"next_{IMAGE}"], after[f"next_{IMAGE}"], pad, valid)
        # One place for all steps, and the same for the next observations.
        assert all(now & following for now, following in zip(of_now, of_next, strict=True))
        drawn += [next(iter(each)) for each in of_now]
    if pad < 20:
        assert len(set(drawn)) > 15
        tops = sum(top for top, _ in drawn) / len(drawn)
        assert abs(tops - (12 + 2 * pad - shape[0]) / 2) < 1


def test_apart_columns_shift_apart(images):
    loader = SequenceLoader(images, **grouped(**OPTIONS, augment=RandomShift(3, together=False)))
    after, before = loader.batch(0), SequenceLoader(images, **grouped(**OPTIONS)).batch(0)
    valid = before["mask"].numpy()
    now, following = (places(before[key].numpy(), after[key].numpy(), 3, valid) for key in (IMAGE, f"next_{IMAGE}"))
    assert all(now) and all(following)
    assert sum(bool(a & b) for a, b in zip(now, following, strict=True)) < 4


def test_places_do_not_depend_on_ranks_prefetching_or_resuming(images):
    options = {**OPTIONS, "augment": RandomShift(2, probability=0.5)}
    whole = take(SequenceLoader(images, **grouped(**options, prefetch=0)), 20)
    ranks = [take(SequenceLoader(images, **grouped(**options, rank=rank, world_size=3)), 20) for rank in range(3)]
    parts = zip(*ranks, strict=True)
    same([{key: torch.cat([part[key] for part in group]) for key in group[0]} for group in parts], whole)
    same([SequenceLoader(images, **grouped(**options)).batch(17)], [whole[17]])
    plain = take(SequenceLoader(images, **grouped(**OPTIONS)), 20)
    changed = [not torch.equal(a[IMAGE], b[IMAGE]) for a, b in zip(whole, plain, strict=True)]
    assert 4 <= sum(changed) <= 16
    spec = SequenceLoader(images, **grouped(**options)).spec()
    assert json.loads(json.dumps(spec))["augment"]["probability"] == 0.5
    arrays = SequenceLoader(images, **grouped(**options, framework="numpy"))
    assert all((arrays.batch(step)[IMAGE] == whole[step][IMAGE].numpy()).all() for step in range(20))


@pytest.mark.parametrize(
    "augment", [RandomShift(2), [RandomCrop(9), ColorJitter(hue=0.1)], RandomResizedCrop(size=(6, 7))], ids=str
)
def test_a_rank_without_rows_has_the_same_keys(images, augment):
    """59 steps in batches of 29: the last batch has one row, and rank 0 of 2 has none."""
    options = {**OPTIONS, "batch_size": 29, "sampler": "shuffle", "epochs": 1, "augment": augment}
    nothing, last = (
        list(SequenceLoader(images, **grouped(**options, rank=rank, world_size=2)))[-1] for rank in range(2)
    )
    assert nothing.keys() == last.keys()
    for key, value in nothing.items():
        assert (value.dtype, value.shape) == (last[key].dtype, (0, *last[key].shape[1:]))


@pytest.mark.parametrize(
    ("augment", "digest"),
    [
        (RandomShift(3), "444dbd26977375bc"),
        (RandomShift(3, together=False, probability=0.6), "11293731fb7a26ea"),
        (RandomCrop((7, 9), pad=1), "821aba2a1f318c3e"),
        ({f"next_{IMAGE}": RandomShift(2, together=False)}, "46f976cf5d678183"),
    ],
)
def test_draws_stay_as_they_were(images, augment, digest):
    """The digests are of the first version that shifted images."""
    found = hashlib.sha256()
    for batch in take(SequenceLoader(images, **grouped(**OPTIONS, augment=augment)), 4):
        for key in sorted(batch):
            found.update(batch[key].numpy().tobytes())
    assert found.hexdigest()[:16] == digest


def test_channels_first_equals_drqs_padding():
    rng = np.random.default_rng(1)
    for channels, shape in ((None, (9, 14, 14)), ("first", (9, 5, 8)), (None, (3, 20, 11))):
        for dtype in (np.uint8, np.float32):
            before = (rng.random((16, *shape)) * 255).astype(dtype)
            batch = {"pixels": before}
            Augmenter(RandomShift(4, channels=channels), {"pixels": None}, 3)(7, 0, batch)
            padded = torch.nn.functional.pad(torch.from_numpy(before).float(), (4, 4, 4, 4), "replicate").numpy()
            for row in range(16):
                height, width = shape[1:]
                assert any(
                    (padded[row, :, top : top + height, left : left + width] == batch["pixels"][row]).all()
                    for top in range(9)
                    for left in range(9)
                )
            assert batch["pixels"].dtype == dtype


def test_decoded_images_mappings_and_mixtures(images, tmp_path):
    encoded = variable.convert(variable.make_episodes(), tmp_path / "encoded")
    options = {"batch_size": 6, "context": 3, "decoders": {variable.IMAGE: ImageDecoder()}}
    before = SequenceLoader(encoded, **grouped(**options)).batch(2)
    after = SequenceLoader(encoded, **grouped(**options, augment={variable.IMAGE: RandomCrop((2, 3))})).batch(2)
    assert before[variable.IMAGE].shape[2:] == (3, 4, 5)
    assert after[variable.IMAGE].shape[2:] == (3, 2, 3)
    same([{k: v for k, v in before.items() if k == "mask"}], [{k: v for k, v in after.items() if k == "mask"}])
    joined = Mixture([(images, 1), (images, 1)], join=True)
    both = SequenceLoader(joined, **grouped(**{**OPTIONS, "columns": [IMAGE]}, augment=RandomShift(1))).batch(0)
    assert both[IMAGE].shape == (10, 4, 12, 15, 3)


def test_wrong_augmentations_are_refused(images, dataset):
    for wrong in (4, "shift", RandomShift, {IMAGE: 4}):
        with pytest.raises(InvalidArgumentError, match="augment must be"):
            SequenceLoader(images, **grouped(**OPTIONS, augment=wrong))
    with pytest.raises(UnknownNameError, match="rewards"):
        next(iter(SequenceLoader(images, **grouped(**OPTIONS, augment={"rewards": RandomShift(4)}))))
    with pytest.raises(InvalidArgumentError, match="the batch has no images"):
        next(iter(SequenceLoader(dataset, columns=["rewards"], batch=BatchOptions(augment=RandomShift(4)))))
    with pytest.raises(InvalidArgumentError, match="a crop of 13 x 13 does not fit images of 12 x 15"):
        next(iter(SequenceLoader(images, **grouped(**OPTIONS, augment=RandomCrop(13)))))
    for make in (
        lambda: RandomShift(0),
        lambda: RandomCrop((3,)),
        lambda: RandomCrop(0),
        lambda: RandomCrop(3, pad=-1),
    ):
        with pytest.raises(InvalidArgumentError):
            make()
    with pytest.raises(InvalidArgumentError, match="probability"):
        RandomShift(probability=1.5)
    with pytest.raises(UnknownNameError, match="axis of channels 'middle'"):
        RandomShift(channels="middle")
    with pytest.raises(UnsupportedColumnError, match="a list"):
        Augmenter(RandomShift(), {"pixels": None}, 0)(0, 0, {"pixels": [np.zeros((3, 4, 4))]})
