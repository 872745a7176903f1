"""Normalisation by quantiles and by the range, against plain NumPy and LeRobot's formulas."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from gear_data import BatchOptions, Mixture, SequenceLoader
from gear_data.errors import InvalidArgumentError, UnknownNameError

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


@pytest.mark.parametrize("mode", ["quantiles", "min-max"])
@pytest.mark.parametrize("view", [False, True])
def test_modes_equal_lerobots_formulas(dataset, mode, view):
    dataset = dataset.filter("length > 19") if view else dataset
    for column, normalized, raw in pairs(dataset, normalize={"observations": mode, "actions": mode}):
        values = steps_of(dataset, column)
        bounds = np.quantile(values, (0.01, 0.99), axis=0) if mode == "quantiles" else (values.min(0), values.max(0))
        low, high = (torch.from_numpy(np.asarray(each)) for each in bounds)
        torch.testing.assert_close(normalized, lerobot(raw, low, high).to(normalized.dtype), rtol=1e-5, atol=1e-6)
        if mode == "min-max":
            assert normalized.abs().max() <= 1 + 1e-6


def test_a_mode_alone_is_for_observations(dataset):
    for column, normalized, raw in pairs(dataset, normalize="quantiles"):
        assert (normalized.double() == raw).all() == (column == "actions")
    spec = SequenceLoader(dataset, **OPTIONS, normalize="min-max").spec()["normalize"]
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
    for mode in ("quantiles", "min-max"):
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
    with pytest.raises(UnknownNameError, match="minmax"):
        SequenceLoader(dataset, normalize="minmax")
    with pytest.raises(InvalidArgumentError, match="modes: mean-std, quantiles, min-max"):
        SequenceLoader(dataset, normalize={"observations": 3})


def test_each_dataset_of_a_mixture_has_its_own_quantiles(dataset):
    parts = [dataset.filter("length > 19"), dataset.filter("length < 20")]
    loader = SequenceLoader(Mixture([(part, 1) for part in parts]), **OPTIONS, normalize="quantiles")
    for part, spec in zip(parts, loader.spec()["datasets"], strict=True):
        low, high = part.quantiles("observations")
        np.testing.assert_allclose(spec["normalize"]["observations"][0], (low + high) / 2)
