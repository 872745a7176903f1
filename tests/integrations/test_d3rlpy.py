"""Batches of transitions in d3rlpy's algorithms, and beside its own batches."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gear_data import BatchOptions, ReturnOptions, SequenceLoader
from gear_data.errors import MissingColumnError
from gear_data.integrations.d3rlpy import to_mini_batch
from tests.support.feed import transitions as golden

d3rlpy = pytest.importorskip("d3rlpy")


@pytest.fixture(scope="module")
def episodes():
    """Without final observations and flags inside, which d3rlpy does not have."""
    made = golden.episodes_of_every_end()
    for episode in made:
        episode["final"] = None
        episode["terminated"][:-1] = False
    return made


@pytest.fixture(scope="module")
def dataset(episodes, tmp_path_factory):
    return golden.convert(episodes, tmp_path_factory.mktemp("d3rlpy") / "dataset")


@pytest.fixture(scope="module")
def theirs(episodes):
    return [
        d3rlpy.dataset.Episode(e["observations"], e["actions"], e["rewards"][:, None], bool(e["terminated"][-1]))
        for e in episodes
    ]


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("n_step", [None, 4])
def test_every_row_is_d3rlpys(dataset, theirs, n_step, frames):
    if frames > 1 and n_step:
        pytest.skip("d3rlpy has no stacks of several steps")
    options = {"offsets": {"observations": (1 - frames, 1)}, "batch": BatchOptions(preset_options={"padding": "fill"})}
    options = options if frames > 1 else {}
    discount = 0.9 if n_step else 1.0
    loader = SequenceLoader(
        dataset, 64, preset="transitions", sampler="shuffle", epochs=1,
        returns=ReturnOptions(n_step=n_step, discount=discount), columns=["next_actions"], **options,
    )  # fmt: skip
    ours, windows = to_mini_batch(next(iter(loader))), loader.windows(0)
    pick = d3rlpy.dataset.BasicTransitionPicker()
    if n_step:
        pick = d3rlpy.dataset.MultiStepTransitionPicker(n_step, 0.9)
    rows = list(zip(windows["episode_id"].tolist(), windows["start"].tolist(), strict=True))
    # Every row that d3rlpy counts is drawn, and no other.
    assert sorted(rows) == [(e, t) for e, episode in enumerate(theirs) for t in range(episode.transition_count)]
    if frames > 1:
        # Its stacks are of images: [T, channels, height, width].
        pick = d3rlpy.dataset.FrameStackTransitionPicker(frames)
        theirs = [dataclasses.replace(each, observations=each.observations.reshape(-1, 1, 2, 2)) for each in theirs]
    wanted = d3rlpy.dataset.TransitionMiniBatch.from_transitions([pick(theirs[e], t) for e, t in rows])
    for name in ("observations", "actions", "rewards", "next_observations", "next_actions", "terminals", "intervals"):
        got, expected = getattr(ours, name), getattr(wanted, name)
        assert got.dtype == expected.dtype, name
        np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=1e-6, err_msg=name)


def test_updates_of_algorithms(dataset):
    batch = next(
        iter(SequenceLoader(dataset, 32, preset="transitions", returns=ReturnOptions(n_step=2, discount=0.99)))
    )
    mini = to_mini_batch(batch)
    assert np.isnan(mini.next_actions).all()
    for config in (d3rlpy.algos.IQLConfig(batch_size=32), d3rlpy.algos.TD3PlusBCConfig(batch_size=32)):
        algorithm = config.create(device="cpu:0")
        algorithm.create_impl((4,), 3)
        assert all(np.isfinite(value) for value in algorithm.update(mini).values())


def test_several_observations_and_discrete_actions(dataset):
    batch = next(iter(SequenceLoader(dataset, 8, preset="transitions")))
    batch["observations.image"], batch["next_observations.image"] = batch["actions"], batch["actions"]
    mini = to_mini_batch({**batch, "actions": batch["terminated"].long()})
    assert [array.shape for array in mini.observations] == [(8, 4), (8, 3)] and len(mini.next_observations) == 2
    assert mini.actions.shape == (8, 1)


def test_masks_of_steps_are_no_observations_and_masks_of_actions_are(dataset):
    loader = SequenceLoader(dataset, 8, preset="transitions", offsets={"observations": (-1, 1)})
    batch = next(iter(loader))
    assert {"observations_mask", "next_observations_mask"} <= {*batch}
    for key in ("observations", "next_observations"):
        batch[f"{key}.image"], batch[f"{key}.image_mask"] = batch[key], batch[f"{key}_mask"]
        batch[f"{key}.action_mask"] = batch[f"{key}_mask"]
    mini = to_mini_batch(batch)
    assert [array.shape for array in mini.observations] == [(8, 2, 4), (8, 2, 4), (8, 2)]
    assert [array.shape for array in mini.next_observations] == [(8, 2, 4), (8, 2, 4), (8, 2)]


def test_other_batches_are_refused():
    with pytest.raises(MissingColumnError, match="preset='transitions'"):
        to_mini_batch({"observations": np.zeros(3)})
