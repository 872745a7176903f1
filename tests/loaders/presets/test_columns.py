"""Offsets and normalisation against plain loops."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import gear_data
from gear_data import Mixture, SequenceLoader
from gear_data.collection.output import Output, check_alike
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.presets.outputs import PRESETS
from tests.support.feed import reference as ref
from tests.support.feed.batches import CONTEXT, column, first_batch

# offsets


#: Batches of transitions have one step: test_transitions.py. Those of policies: video/test_policies.py.
sequences = pytest.mark.parametrize(
    "preset", [n for n in PRESETS if not PRESETS[n].tokens and not PRESETS[n].mapped and n != "transitions"]
)


@sequences
@pytest.mark.parametrize("span", [(-1, 1), (0, 16), (-8, -3), (5, 9), (-60, 60), (1, 2), (100, 101)])
def test_offsets_give_a_column_its_own_steps(dataset, episodes, preset, span):
    batch, windows = first_batch(dataset, preset=preset, offsets={"actions": span})
    lengths = [len(episode["actions"]) for episode in episodes]
    valid = ref.valid_places(lengths, windows, *span)
    expected = ref.right_padded(column(episodes, "actions"), windows, *span)
    if preset == "decision_transformer":
        expected[~valid] = -10
    for row, there in enumerate(valid):
        # jat repeats the first step, lerobot the nearest.
        if preset in ("jat", "lerobot") and there.any():
            first, last = there.argmax(), len(there) - 1 - there[::-1].argmax()
            expected[row, :first] = expected[row, first]
            expected[row, last + 1 :] = expected[row, first if preset == "jat" else last]
    key, mask = ("action", "action_is_pad") if preset == "lerobot" else ("actions", "actions_mask")
    assert np.array_equal(batch[key].numpy(), expected)
    assert batch[mask].dtype == torch.bool
    assert np.array_equal(batch[mask].numpy(), ~valid if preset == "lerobot" else valid)
    # Both ends of episodes are among the windows.
    assert {0} < {start for _, start, _ in windows}
    assert {start - lengths[episode] for episode, start, _ in windows} >= {-1, -2}


@sequences
@pytest.mark.parametrize("steps", [[-10, 0], [0, 2, 5], [3, -1, 3], [-60], [100, 99], [-40, 40]])
def test_offsets_give_a_column_listed_steps(dataset, episodes, preset, steps):
    batch, windows = first_batch(dataset, preset=preset, offsets={"actions": steps})
    actions = column(episodes, "actions")
    expected = np.zeros((len(windows), len(steps), *actions[0].shape[1:]), np.float32)
    valid = np.zeros(expected.shape[:2], np.bool_)
    for row, (episode, start, _) in enumerate(windows):
        for place, step in enumerate(steps):
            values, at = actions[episode], start + step
            valid[row, place] = 0 <= at < len(values)
            if valid[row, place]:
                expected[row, place] = values[at]
            elif preset == "lerobot":
                # As `LeRobotDataset`, which clips the index to the episode.
                expected[row, place] = values[min(max(at, 0), len(values) - 1)]
            elif preset == "jat":
                expected[row, place] = values[max(0, start + min(0, *steps))]
            elif preset == "decision_transformer":
                expected[row, place] = -10
    key, mask = ("action", "action_is_pad") if preset == "lerobot" else ("actions", "actions_mask")
    assert np.array_equal(batch[key].numpy(), expected)
    assert np.array_equal(batch[mask].numpy(), ~valid if preset == "lerobot" else valid)


def test_listed_offsets_are_part_of_the_specification(dataset):
    loader = SequenceLoader(dataset, offsets={"actions": [0, 2], "rewards": (0, 2)})
    assert loader.spec()["offsets"] == {"actions": {"steps": [0, 2]}, "rewards": [0, 2]}
    json.dumps(loader.spec(), allow_nan=False)
    ranged = SequenceLoader(dataset, offsets={"actions": (0, 2), "rewards": (0, 2)})
    assert ranged.spec() != loader.spec()
    # The windows are the same.
    ranged.load_state_dict(loader.state_dict())


def test_arrays_of_as_many_steps_fit_in_one_batch():
    # Datasets of other steps per second have other steps at the same times.
    listed = [
        Output("a", "a", "int8", (), min(steps), len(steps), steps=steps) for steps in [(0, 2), (0, 3), (0, 1, 2)]
    ]
    ranged = Output("a", "a", "int8", (), 0, 2)
    check_alike(listed[:1], listed[1:2])
    check_alike(listed[:1], [ranged])
    with pytest.raises(InvalidArgumentError, match="differ in 'a'"):
        check_alike(listed[:1], listed[2:])


def test_datasets_in_one_batch_share_listed_steps(dataset):
    both = Mixture([(dataset, 1), (dataset, 1)], join=True)
    (batch,) = SequenceLoader(both, 8, columns=["actions"], offsets={"actions": [0, 2]}, steps=1)
    (whole,) = SequenceLoader(both, 8, columns=["actions"], offsets={"actions": (0, 3)}, steps=1)
    assert torch.equal(batch["actions"], whole["actions"][:, [0, 2]])


def test_offsets_change_no_other_column_and_no_window(dataset):
    plain, windows = first_batch(dataset)
    batch, same = first_batch(dataset, offsets={"observations": (-1, 1), "actions": (0, 16)})
    assert same == windows
    assert set(batch) - set(plain) == {"observations_mask", "actions_mask"}
    assert batch["observations"].shape == (64, 2, 4)
    assert batch["actions"].shape == (64, 16, 3)
    for key in plain:
        assert key in ("observations", "actions") or torch.equal(batch[key], plain[key])


def test_offsets_and_normalisation_together(dataset, episodes):
    batch, windows = first_batch(dataset, offsets={"observations": (-2, 3)}, normalize={"observations": (1.0, 4.0)})
    raw = [episode["observations"].astype(np.float64) for episode in episodes]
    expected = ref.right_padded([(values - 1.0) / 4.0 for values in raw], windows, -2, 3)
    np.testing.assert_allclose(batch["observations"].numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "span",
    [
        (0, 0), (3, 2), (0,), (0, 1, 2), 5, None, (0.0, 2.0), ("0", "2"), (False, True), (-(2**40), 0), "01",
        [], [0.0], ["0"], [True], [0, 2**40], {0, 1}, range(2), np.arange(2), [0, 1 << 31],
    ],
)  # fmt: skip
def test_bad_offsets_are_refused(dataset, span):
    with pytest.raises(InvalidArgumentError):
        SequenceLoader(dataset, offsets={"actions": span})


def test_offsets_of_a_column_outside_the_batch_are_refused(dataset):
    for options in ({"columns": ["rewards"]}, {"preset": "decision_transformer"}):
        with pytest.raises(InvalidArgumentError) as error:
            SequenceLoader(dataset, offsets={"terminated": (0, 2)}, **options)
        assert error.value.column == "terminated"


# normalize


def normalised(episodes, name, mean, std):
    return [(episode[name].astype(np.float64) - mean) / std for episode in episodes]


@pytest.mark.parametrize("normalize", [True, "observations", ["observations"], ("observations", "actions", "rewards")])
def test_normalising_by_the_statistics_of_the_data(dataset, episodes, normalize):
    names = ("observations",) if normalize is True or normalize == "observations" else tuple(normalize)
    batch, windows = first_batch(dataset, normalize=normalize)
    plain, _ = first_batch(dataset)
    for name in ("observations", "actions", "rewards"):
        if name not in names:
            assert torch.equal(batch[name], plain[name])
            continue
        every = np.concatenate(column(episodes, name)).astype(np.float64)
        rows = normalised(episodes, name, every.mean(0), every.std(0))
        expected = ref.right_padded(rows, windows, 0, CONTEXT)
        assert batch[name].dtype == torch.float32
        np.testing.assert_allclose(batch[name].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_normalising_by_given_numbers(dataset, episodes):
    mean, std = [1.0, 2.0, 3.0, 4.0], np.array([0.5, 1.0, 2.0, 4.0])
    batch, windows = first_batch(dataset, normalize={"observations": (mean, std), "rewards": (10.0, 5.0)})
    for name, center, spread in (("observations", mean, std), ("rewards", 10.0, 5.0)):
        expected = ref.right_padded(normalised(episodes, name, center, spread), windows, 0, CONTEXT)
        np.testing.assert_allclose(batch[name].numpy(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("constant", [0.0, 3.0, 0.1, -123456.7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_constant_element_becomes_zero(make_dataset, episodes, constant, dtype):
    """Also where rounding leaves it a deviation that is not quite 0."""
    changed = [{**e, "observations": e["observations"].astype(dtype)} for e in episodes]
    for episode in changed:
        episode["observations"][:, 1] = constant
    batch, _ = first_batch(make_dataset(changed), normalize=True)
    assert batch["observations"][..., 1].abs().max() < 1e-9
    assert (batch["observations"][..., 0] != 0).any()
    assert all(torch.isfinite(tensor).all() for tensor in batch.values())


@pytest.mark.parametrize("dtype", ["int16", "uint8", "float16", "float64"])
@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_normalising_other_dtypes_and_matrices(make_dataset, episodes, dtype, shape):
    changed = [{**e, "observations": (e["observations"] * 3 + 50).astype(dtype).reshape(-1, *shape)} for e in episodes]
    batch, windows = first_batch(make_dataset(changed), normalize="observations")
    every = np.concatenate(column(changed, "observations")).astype(np.float64)
    axes = 0 if len(shape) == 1 else None  # a matrix has one mean for all its elements
    rows = normalised(changed, "observations", every.mean(axes), every.std(axes))
    expected = ref.right_padded(rows, windows, 0, CONTEXT)
    assert batch["observations"].dtype == (torch.float64 if dtype == "float64" else torch.float32)
    np.testing.assert_allclose(batch["observations"].numpy(), expected, rtol=1e-5, atol=1e-5)


def test_true_means_only_float_observations(make_dataset, episodes):
    changed = [
        {**e, "observations.image": (e["observations"] * 9).astype(np.uint8), "observations.depth": e["observations"]}
        for e in episodes
    ]
    dataset = make_dataset(changed)
    plain, _ = first_batch(dataset)
    batch, _ = first_batch(dataset, normalize=True)
    changed_keys = {key for key in batch if not torch.equal(batch[key], plain[key])}
    assert changed_keys == {"observations", "observations.depth"}
    unchanged, _ = first_batch(dataset, normalize=False)
    assert all(torch.equal(unchanged[key], plain[key]) for key in plain)


@pytest.mark.parametrize(
    "normalize",
    ["terminated", {"terminated": (0.0, 1.0)}, {"observations": ([0, 0], 1)}, {"observations": 3.0},
     {"observations": (0, 1, 2)}, {"observations": ("a", "b")}, 5],
)  # fmt: skip
def test_bad_normalisation_is_refused(dataset, normalize):
    with pytest.raises(InvalidArgumentError):
        SequenceLoader(dataset, normalize=normalize)


def test_columns_is_a_list_not_a_name(dataset):
    with pytest.raises(InvalidArgumentError, match="list of names"):
        SequenceLoader(dataset, columns="rewards")


def test_an_opened_folder_gives_the_batches_of_the_dataset(dataset):
    again = gear_data.open(dataset.path)
    one, other = first_batch(dataset)[0], first_batch(again)[0]
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_images_are_scaled_as_jat_scales_them(make_dataset, episodes):
    """`(to_tensor(image) - 0.5) / 0.5` in jat/processing_jat.py of huggingface/jat."""
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (len(e["rewards"]), 2, 3, 3)).astype(np.uint8) for e in episodes]
    dataset = make_dataset([{**e, "image_observations": f} for e, f in zip(episodes, frames, strict=True)])
    batch, windows = first_batch(dataset, preset="jat", normalize={"observations.image": (127.5, 127.5)})
    for row, (episode, start, n) in enumerate(windows):
        expected = (frames[episode][start : start + n].astype(np.float64) / 255.0 - 0.5) / 0.5
        np.testing.assert_allclose(batch["image_observations"][row, :n].numpy(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "columns", ["actions", 3, iter(["actions"]), ["actions", 3]], ids=["text", "number", "iterator", "mixed"]
)
def test_columns_are_a_list_of_names(dataset, columns):
    with pytest.raises(InvalidArgumentError, match="columns must be a list of names"):
        SequenceLoader(dataset, 4, context=2, columns=columns)
    with pytest.raises(InvalidArgumentError, match="columns must be a list of names"):
        SequenceLoader(Mixture([(dataset, 1, {"columns": columns})]), 4, context=2)
