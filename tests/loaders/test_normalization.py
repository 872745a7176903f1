"""Normalisation by quantiles and by the range, against plain NumPy and LeRobot's formulas."""

from __future__ import annotations

import copy

import numpy as np
import polars as pl
import pytest
import torch

from gear_data import BatchOptions, Mixture, SequenceLoader
from gear_data.errors import InvalidArgumentError, NonFiniteError, UnknownNameError
from tests.support.feed import data as feed_data

OPTIONS = {"batch_size": 16, "context": 5, "seed": 2, "columns": ["observations", "actions"]}


def lerobot(values, low, high):
    """Returns the formula of LeRobot's NormalizerProcessorStep, with its epsilon."""
    denominator = torch.where(high == low, torch.tensor(1e-8, dtype=high.dtype), high - low)
    return 2.0 * (values - low) / denominator - 1.0


def steps_of(dataset, column):
    return np.concatenate([dataset.steps(column, i, i + 1) for i in range(len(dataset))]).astype(np.float64)


def pairs(dataset, **options):
    """Yields (column, normalised values, raw values) of the valid steps of the same batch."""
    normalized = next(iter(SequenceLoader(dataset, **OPTIONS, **options)))
    raw = next(iter(SequenceLoader(dataset, **OPTIONS)))
    for column in OPTIONS["columns"]:
        yield column, normalized[column][raw["mask"]], raw[column][raw["mask"]].double()


@pytest.mark.parametrize("mode", ["quantiles", "minmax"])
@pytest.mark.parametrize("view", [False, True])
def test_modes_equal_lerobots_formulas(dataset, mode, view):
    dataset = dataset.filter("length > 19") if view else dataset
    for column, normalized, raw in pairs(dataset, normalize={"observations": mode, "actions": mode}):
        values = steps_of(dataset, column)
        bounds = np.quantile(values, (0.01, 0.99), axis=0) if mode == "quantiles" else (values.min(0), values.max(0))
        low, high = (torch.from_numpy(np.asarray(each)) for each in bounds)
        torch.testing.assert_close(normalized, lerobot(raw, low, high).to(normalized.dtype), rtol=1e-5, atol=1e-6)
        if mode == "minmax":
            assert normalized.abs().max() <= 1 + 1e-6


def test_a_mode_alone_is_for_observations(dataset):
    for column, normalized, raw in pairs(dataset, normalize="quantiles"):
        assert (normalized.double() == raw).all() == (column == "actions")
    spec = SequenceLoader(dataset, **OPTIONS, normalize="minmax").spec()["normalize"]
    values = steps_of(dataset, "observations")
    center, half = (np.array(each) for each in spec["observations"])
    np.testing.assert_allclose(center, (values.min(0) + values.max(0)) / 2)
    np.testing.assert_allclose(half, (values.max(0) - values.min(0)) / 2)
    by_name = SequenceLoader(dataset, **OPTIONS, normalize={"observations": "mean-std"}).spec()["normalize"]
    assert by_name == SequenceLoader(dataset, **OPTIONS, normalize=True).spec()["normalize"]


def test_constant_elements_become_minus_one(make_dataset, episodes):
    episodes = copy.deepcopy(episodes)
    for episode in episodes:
        episode["observations"][:, 0] = 3.5
        episode["observations"][:, 1] = 0
    episodes[3]["observations"][0, 1] = 1
    dataset = make_dataset(episodes)
    for mode in ("quantiles", "minmax"):
        loader = SequenceLoader(dataset, 64, context=1, batch=BatchOptions(preset_options={}), normalize=mode)
        values = torch.cat([loader.batch(step)["observations"][:, 0] for step in range(20)])
        assert (values[:, 0] == -1).all()
        if mode == "quantiles":
            # The rare value stays near.
            assert set(values[:, 1].tolist()) <= {-1.0, 0.0}
    assert values.isfinite().all()


def test_quantiles_are_stored_once_and_are_of_the_view(dataset, tmp_path):
    folder = dataset.path / "sidecars" / "quantiles"
    before = {path.name for path in folder.glob("*.json")}
    view = dataset.filter("length > 20")
    for each in (dataset, view):
        found = each.quantiles("rewards", (0.1, 0.5))
        np.testing.assert_array_equal(found[:, 0], np.quantile(steps_of(each, "rewards"), (0.1, 0.5)))
        assert (each.quantiles("rewards", (0.1, 0.5)) == found).all()
    assert len({path.name for path in folder.glob("*.json")} - before) == 2
    for wrong in ((), (1.5,), (float("nan"),), "half"):
        with pytest.raises(InvalidArgumentError, match="probabilities of quantiles"):
            dataset.quantiles("rewards", wrong)
    with pytest.raises(UnknownNameError, match="reward"):
        dataset.quantiles("reward")


def test_wrong_modes_are_refused(dataset):
    with pytest.raises(UnknownNameError, match="normalisation 'quantile'"):
        SequenceLoader(dataset, normalize={"observations": "quantile"})
    for mode in ("min-max", "min_max", {"observations": "min-max"}):
        with pytest.raises(UnknownNameError, match="did you mean 'minmax'"):
            SequenceLoader(dataset, normalize=mode)
    with pytest.raises(InvalidArgumentError, match="modes: mean-std, quantiles, minmax, imagenet"):
        SequenceLoader(dataset, normalize={"observations": 3})
    with pytest.raises(InvalidArgumentError, match=r"the mean and std must be numbers: .*detach"):
        SequenceLoader(dataset, normalize={"observations": (torch.zeros(1, requires_grad=True), 1.0)})


@pytest.fixture
def pictures(make_dataset, episodes):
    """Images of both layouts, grey images, discrete actions and float states; numbers that are no images."""
    episodes, rng = copy.deepcopy(episodes), np.random.default_rng(4)
    for episode in episodes:
        length = len(episode["rewards"])
        for name, shape in (("rgb", (5, 6, 3)), ("planes", (3, 5, 6)), ("grey", (5, 6)), ("memory", (7,))):
            episode[f"observations.{name}"] = rng.integers(0, 200, (length, *shape)).astype(np.uint8)
        episode["actions.button"] = rng.integers(0, 4, length)
    return make_dataset(episodes)


def test_all_is_states_actions_and_images(pictures):
    """Compares each number with a plain loop over the raw batch."""
    options = {"batch_size": 16, "context": 3, "seed": 2}
    raw = next(iter(SequenceLoader(pictures, **options)))
    batch = next(iter(SequenceLoader(pictures, **options, normalize="all")))
    images = {"observations.rgb", "observations.planes", "observations.grey"}
    valid = raw["mask"]
    for column in pictures.schema.names:
        values = raw[column][valid].numpy()
        if column in images | {"observations", "actions"}:
            every = steps_of(pictures, column)
            axis = None if column in images else 0  # one mean and std for all numbers of an image
            values = ((values - every.mean(axis)) / every.std(axis)).astype(np.float32)
        found = batch[column][valid].numpy()
        assert found.dtype == values.dtype
        np.testing.assert_allclose(found, values, rtol=1e-5, atol=1e-6)
    assert not batch["observations.rgb"][~valid].any()


@pytest.mark.parametrize("normalize_padding", [False, True])
def test_imagenets_mean_and_std_of_each_channel(pictures, normalize_padding):
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    columns = ["observations.rgb", "observations.planes"]
    options = {"batch_size": 32, "context": 9, "seed": 2, "columns": columns}
    raw = next(iter(SequenceLoader(pictures, **options)))
    loader = SequenceLoader(
        pictures, **options, normalize=dict.fromkeys(columns, "imagenet"),
        batch=BatchOptions(preset_options={"normalize_padding": normalize_padding}),
    )  # fmt: skip
    batch, normalizer = next(iter(loader)), loader.normalizer
    assert not raw["mask"].all()
    for column in columns:
        expected = np.empty(raw[column].shape)
        for row, step in np.ndindex(expected.shape[:2]):
            image = raw[column][row, step].numpy() / 255
            if column == columns[0]:
                expected[row, step] = (image - mean) / std
            else:
                for channel in range(3):
                    expected[row, step, channel] = (image[channel] - mean[channel]) / std[channel]
            np.testing.assert_allclose(
                normalizer.normalize(column, raw[column][row, step].numpy()), expected[row, step], rtol=1e-9, atol=1e-9
            )
            if not raw["mask"][row, step] and not normalize_padding:
                expected[row, step] = 0
        assert batch[column].dtype == torch.float32
        np.testing.assert_allclose(batch[column].numpy(), expected, rtol=1e-5, atol=1e-6)
    # Numbers of the user are of bytes, and may be for each channel, too.
    own = {columns[0]: (255 * mean, 255 * std), columns[1]: (255 * mean, 255 * std)}
    assert SequenceLoader(pictures, **options, normalize=own).spec()["normalize"] == loader.spec()["normalize"]
    for wrong in ("observations.grey", "observations.memory", "observations"):
        with pytest.raises(InvalidArgumentError, match="uint8 images of three channels"):
            SequenceLoader(pictures, normalize={wrong: "imagenet"})
    with pytest.raises(InvalidArgumentError, match="2 means and 2 deviations for 90 elements"):
        SequenceLoader(pictures, normalize={columns[0]: (np.zeros(2), np.ones(2))})


def test_each_dataset_of_a_mixture_has_its_own_quantiles(dataset):
    parts = [dataset.filter("length > 19"), dataset.filter("length < 20")]
    loader = SequenceLoader(Mixture([(part, 1) for part in parts]), **OPTIONS, normalize="quantiles")
    for part, spec in zip(parts, loader.spec()["datasets"], strict=True):
        low, high = part.quantiles("observations")
        np.testing.assert_allclose(spec["normalize"]["observations"][0], (low + high) / 2)


@pytest.fixture
def gaps(make_dataset, episodes):
    """NaN in the first element of one observation of episode 3; an infinite action in episode 6."""
    episodes = copy.deepcopy(episodes)
    episodes[3]["observations"][12, 0] = np.nan
    episodes[6]["actions"][0, 2] = -np.inf
    return make_dataset(episodes, shard_bytes=1024)


@pytest.mark.parametrize("mode", ["mean-std", "quantiles", "minmax"])
def test_nan_in_a_normalised_column_is_refused_by_its_place(gaps, mode):
    with pytest.raises(NonFiniteError) as error:
        SequenceLoader(gaps, **OPTIONS, normalize=mode)
    place = (error.value.file, error.value.column)
    assert place == (str(gaps.path), "observations")
    assert "step 12 of episode 3 has NaN" in error.value.message and "1 of 9 episodes" in error.value.message
    with pytest.raises(NonFiniteError, match="step 0 of episode 6"):
        SequenceLoader(gaps.filter("episode_id > 3"), **OPTIONS, normalize={"actions": mode})
    with pytest.raises(NonFiniteError, match="step 12 of episode 3"):
        SequenceLoader(Mixture([(gaps, 1), (gaps, 1)]), **OPTIONS, normalize=mode)
    SequenceLoader(gaps, **OPTIONS)


def test_the_remedies_for_nan_work(gaps):
    """Each remedy that the message names."""
    with pytest.raises(NonFiniteError) as error:
        SequenceLoader(gaps, **OPTIONS, normalize=True)
    hint = error.value.hint
    assert "ds.filter('episode_id not in (3)')" in hint
    assert "(ds.statistics['observations'].mean, ds.statistics['observations'].std)" in hint
    left = gaps.filter("episode_id not in (3)")
    assert len(left) == 8
    values = steps_of(left, "observations")
    loader = SequenceLoader(left, **OPTIONS, normalize=True)
    np.testing.assert_allclose(loader.spec()["normalize"]["observations"], [values.mean(0), values.std(0)], rtol=1e-6)
    found = gaps.statistics["observations"]
    loader = SequenceLoader(gaps, 64, context=1, normalize={"observations": (found.mean, found.std)})
    batches = torch.cat([loader.batch(step)["observations"] for step in range(20)])
    assert batches.isnan().any() and batches[..., 1:].isfinite().all()


def test_nan_that_no_batch_has_may_stay(gaps):
    """In steps that a filter excludes, and in elements that no part of a stack has."""
    finite = pl.col("observations").arr.get(0).is_finite()
    SequenceLoader(gaps.filter_steps(finite, mode="all"), **OPTIONS, normalize=True)
    with pytest.raises(NonFiniteError):  # windows may go on to these steps
        SequenceLoader(gaps.filter_steps(finite), **OPTIONS, normalize=True)
    parts = {"state": [{"column": "observations", "elements": [1, 4]}]}
    loader = SequenceLoader(gaps, 16, context=5, batch=BatchOptions(stack=parts), normalize={"state": "mean-std"})
    assert loader.batch(0)["state"].isfinite().all()
    with pytest.raises(NonFiniteError, match="step 12 of episode 3"):
        parts["state"][0]["elements"] = [0, 2]
        SequenceLoader(gaps, 16, context=5, batch=BatchOptions(stack=parts), normalize={"state": "mean-std"})


def test_many_episodes_with_nan_are_counted(make_dataset, episodes):
    episodes = [copy.deepcopy(episodes[2]) for _ in range(15)]
    for number, episode in enumerate(episodes):
        episode["observations"] += number
        episode["observations"][number % 3 :, 3] = np.nan if number > 2 else 0
    with pytest.raises(NonFiniteError, match=r"step 0 of episode 3 .*; 12 of 15 episodes") as error:
        SequenceLoader(make_dataset(episodes), normalize="all")
    assert "ds.filter" not in error.value.hint and "ds.statistics['observations'].mean" in error.value.hint


def test_absent_values_are_no_nan(episodes, tmp_path):
    """A source lacks the column. Its steps have no value, which statistics leave out, too."""
    torque = [{**episode, "torque": episode["rewards"] + 1} for episode in copy.deepcopy(episodes[:4])]
    whole = feed_data.convert_parts([torque, episodes[4:]], tmp_path / "whole")
    spec = SequenceLoader(whole, normalize={"torque": "mean-std"}).spec()
    values = np.concatenate([episode["torque"] for episode in torque]).astype(np.float64)
    np.testing.assert_allclose(spec["normalize"]["torque"], [[values.mean()], [values.std()]], rtol=1e-6)
    torque[2]["torque"][9] = np.nan
    damaged = feed_data.convert_parts([torque, episodes[4:]], tmp_path / "damaged")
    with pytest.raises(NonFiniteError, match=r"step 9 of episode 2 .*; 1 of 9 episodes"):
        SequenceLoader(damaged, normalize={"torque": "mean-std"})
