"""Encoded images and text in batches of transitions, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from gear_data import Mixture, SequenceLoader
from gear_data.loaders.decoding.images import ImageDecoder
from tests.support.feed import variable as data
from tests.support.feed.arguments import grouped
from tests.support.feed.variable import IMAGE, TEXT

EPISODES = data.make_episodes()
for _episode in EPISODES:
    # The decoder gives channels first.
    _episode["pixels"] = np.moveaxis(_episode["pixels"], -1, 1)
NEXT_IMAGE, NEXT_TEXT = f"next_{IMAGE}", f"next_{TEXT}"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return data.convert(EPISODES, tmp_path_factory.mktemp("frames") / "d", shard_bytes=1024)


def loaded(dataset, **options):
    loader = SequenceLoader(
        dataset,
        64,
        **grouped(preset="transitions", decoders={IMAGE: ImageDecoder()}, framework="numpy", seed=2, **options),
    )
    windows = loader.windows(0)
    return next(iter(loader)), list(zip(windows["episode_id"].tolist(), windows["start"].tolist(), strict=True))


def state(episode, step, n):
    """The next state of a step of an episode that was cut off; None: there is none."""
    taken = min(n, len(episode["rewards"]) - 1 - step)
    return step + taken if taken else None


@pytest.mark.parametrize("n_step", [None, 1, 3])
def test_the_next_image_and_text_are_those_of_the_next_state(dataset, n_step):
    batch, rows = loaded(dataset, n_step=n_step)
    for row, (e, t) in enumerate(rows):
        episode, after = EPISODES[e], state(EPISODES[e], t, n_step or 1)
        assert np.array_equal(batch[IMAGE][row], episode["pixels"][t])
        assert np.array_equal(batch[NEXT_IMAGE][row], episode["pixels"][after])
        assert np.array_equal(batch["next_observations"][row], episode["observations"][after])
        assert (batch[TEXT][row], batch[NEXT_TEXT][row]) == (episode[TEXT][t], episode[TEXT][after])


@pytest.mark.parametrize("padding", ["edge", "fill"])
@pytest.mark.parametrize("n_step", [None, 2])
def test_stacks_of_images(dataset, n_step, padding):
    offsets = {"observations": (-2, 1), IMAGE: (-2, 1)}
    batch, rows = loaded(dataset, n_step=n_step, offsets=offsets, preset_options={"padding": padding})
    assert batch[NEXT_IMAGE].shape == (64, 3, 3, 4, 5)
    for row, (e, t) in enumerate(rows):
        pixels = EPISODES[e]["pixels"]
        for key, last in ((IMAGE, t), (NEXT_IMAGE, state(EPISODES[e], t, n_step or 1))):
            for place, step in enumerate(range(last - 2, last + 1)):
                zeros = padding == "fill" and step < 0
                expected = np.zeros_like(pixels[0]) if zeros else pixels[max(step, 0)]
                assert np.array_equal(batch[key][row, place], expected)
                assert batch[f"{key}_mask"][row, place] == (step >= 0)
    assert np.array_equal(batch[f"{IMAGE}_mask"], batch["observations_mask"])


def test_listed_steps_are_those_of_the_range(dataset):
    whole, _ = loaded(dataset, offsets={"observations": (-2, 1), IMAGE: (-2, 1)})
    some, _ = loaded(dataset, offsets={"observations": [0, -2], IMAGE: [0, -2]})
    for key in ("observations", "next_observations", IMAGE, NEXT_IMAGE, "observations_mask", f"{IMAGE}_mask"):
        assert np.array_equal(some[key], whole[key][:, [2, 0]]), key


def test_marked_rows_have_zeros(dataset):
    batch, rows = loaded(dataset, preset_options={"transitions": {"missing_next": "mark"}})
    there = np.array([state(EPISODES[e], t, 1) is not None for e, t in rows])
    assert there.any() and not there.all()
    assert np.array_equal(batch[f"{NEXT_IMAGE}_mask"], there)
    assert not batch[NEXT_IMAGE][~there].any()
    assert [text is not None for text in batch[NEXT_TEXT]] == there.tolist()


def test_datasets_that_share_batches(dataset):
    both = Mixture([(dataset, 1), (dataset, 1)], join=True)
    batch, rows = loaded(both, n_step=2)
    assert len(set(batch["source"].tolist())) == 2
    for row, (e, t) in enumerate(rows):
        assert np.array_equal(batch[NEXT_IMAGE][row], EPISODES[e]["pixels"][state(EPISODES[e], t, 2)])


def test_every_frame_is_decoded_once(dataset):
    decoded = []

    def decode(values):
        decoded.extend(values)
        return np.zeros((len(values), 1), np.float32)

    options = {"decoders": {IMAGE: decode}, "offsets": {IMAGE: (-2, 1)}, "steps": 1, "prefetch": 0}
    next(iter(SequenceLoader(dataset, 64, **grouped(preset="transitions", **options))))
    assert len(decoded) == len(set(decoded))
