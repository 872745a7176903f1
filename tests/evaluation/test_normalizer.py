"""Normalizers against a loader's batches, and through JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gear_data import Mixture, Normalizer, SequenceLoader
from gear_data.collection.output import RelativeTo
from gear_data.errors import InvalidArgumentError
from gear_data.evaluation.normalizer import AffineMap
from tests.support.feed.data import convert_episodes, locomotion

#: Column, key of the batch, and the factor of the batch without normalising.
_COLUMNS = (("observations", "states", 1), ("actions", "actions", 1), ("returns_to_go", "returns_to_go", 1000))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return convert_episodes(locomotion([9, 1, 30], seed=3), tmp_path_factory.mktemp("normalizer") / "dataset")


def test_both_ways_are_the_ways_of_batches(dataset, tmp_path):
    options = {"context": 1, "preset": "decision_transformer", "sampler": "fifo", "prefetch": 0}
    plain = SequenceLoader(dataset, 8, **options).batch(0)
    loader = SequenceLoader(dataset, 8, normalize=["observations", "actions"], **options)
    batch = loader.batch(0)
    path = tmp_path / "normalizer.json"
    loader.normalizer.save(path)
    normalizer = Normalizer.load(path)
    assert normalizer.to_json() == loader.normalizer.to_json()
    for column, key, factor in (
        ("observations", "states", 1),
        ("actions", "actions", 1),
        ("returns_to_go",) * 2 + (1000,),
    ):
        values = plain[key].numpy() * factor
        assert normalizer.normalize(column, values).dtype == np.float32
        np.testing.assert_allclose(normalizer.normalize(column, values), batch[key], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(normalizer.denormalize(column, batch[key]), values, rtol=1e-4, atol=1e-4)
    assert np.array_equal(normalizer.normalize("rewards", [1, 2]), [1, 2])


def test_a_mixture_has_a_normalizer_if_the_datasets_share_it(dataset, tmp_path):
    other = convert_episodes(locomotion([20], seed=9), tmp_path / "other")
    mixture = Mixture([(dataset, 0.5), (other, 0.5)])
    with pytest.raises(InvalidArgumentError, match="normalised differently"):
        _ = SequenceLoader(mixture, 8, normalize=True).normalizer
    shared = SequenceLoader(mixture, 8, normalize={"observations": (1.0, 2.0)}).normalizer
    assert shared.normalize("observations", np.full(4, 5.0)) == pytest.approx(2.0)


@pytest.mark.parametrize("way", ["normalize", "denormalize"])
def test_values_of_another_shape(way):
    """NumPy repeated them to the shape of the numbers, or failed."""
    numbers = np.zeros(3), np.full(3, 2.0)
    to = RelativeTo("observations", 4, (0, 1, 2))
    normalizer = Normalizer(
        {
            "actions": AffineMap(*numbers),
            "image": AffineMap(np.zeros((3, 1, 1)), np.ones((3, 1, 1))),
            "rewards": AffineMap(np.zeros(1), np.ones(1)),
            "relative": AffineMap(*numbers, to),
            "steps": AffineMap(np.zeros((4, 3)), np.ones((4, 3)), to),
        }
    )
    state = {"relative_to": np.zeros(4)}
    for column, shape, options, message in (
        ("actions", (2, 5, 8), {}, r"(?s)shape \(2, 5, 8\), and .* shape \(3,\).*values\[\.\.\., :3\]"),
        ("actions", (5, 1), {}, r"shape \(5, 1\)"),
        ("actions", (), {}, r"shape \(\)"),
        ("image", (4, 6, 5), {}, r"shape \(4, 6, 5\), and .* shape \(3, 1, 1\)"),
        ("relative", (5, 8), state, r"shape \(5, 8\)"),
        ("relative", (5, 3), {"relative_to": np.zeros((2, 4))}, r"relative_to has the shape \(2, 4\)"),
        ("relative", (3,), {"relative_to": np.zeros((2, 4))}, r"relative_to has the shape \(2, 4\)"),
        ("steps", (3,), state, r"shape \(3,\), and .* shape \(4, 3\)"),
        ("steps", (2, 5, 3), state, r"shape \(2, 5, 3\)"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            getattr(normalizer, way)(column, np.zeros(shape), **options)
    for column, shape, options in (
        ("actions", (2, 5, 3), {}), ("actions", (0, 3), {}), ("image", (2, 3, 6, 5), {}), ("rewards", (7, 2), {}),
        ("relative", (2, 5, 3), {"relative_to": np.zeros((2, 4))}), ("relative", (2, 5, 3), state),
        ("steps", (2, 4, 3), state),
    ):  # fmt: skip
        assert getattr(normalizer, way)(column, np.zeros(shape), **options).shape == shape


def test_deltas_of_one_step_each():
    """Each is relative to a state of its own; the steps of a chunk are not."""
    known = AffineMap(np.zeros(3), np.full(3, 2.0), RelativeTo("observations", 4, (0, -1, 2), delta=True))
    normalizer, random = Normalizer({"actions": known}), np.random.default_rng(0)
    actions, states = random.normal(size=(5, 3)), random.normal(size=(5, 4))
    before = np.where([True, False, True], states[:, :3], 0)
    there = normalizer.normalize("actions", actions, relative_to=states)
    np.testing.assert_allclose(there, 2 * (actions - before))
    np.testing.assert_allclose(normalizer.denormalize("actions", there, relative_to=states), actions)
    before = np.where([True, False, True], np.vstack([states[:1, :3], actions[:-1]]), 0)
    for state in (states[0], states[:1]):
        there = normalizer.normalize("actions", actions, relative_to=state)
        np.testing.assert_allclose(there, 2 * (actions - before))
        np.testing.assert_allclose(normalizer.denormalize("actions", there, relative_to=state), actions)


def test_what_is_no_normalizer(tmp_path):
    path = tmp_path / "normalizer.json"
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        Normalizer.load(path)
    good = {"version": 1, "columns": {"observations": {"mean": [1.0], "scale": [0.0], "shape": [1]}}}
    for bad, message in (
        ({**good, "version": 3}, "version 3 is not 1 or 2"),
        ({"version": 1}, "columns"),
        ({"version": 1, "columns": {"a": {"mean": [1.0], "scale": [1.0, 2.0], "shape": [1]}}}, "do not have the shape"),
    ):
        path.write_text(json.dumps(bad))
        with pytest.raises(InvalidArgumentError, match=message):
            Normalizer.load(path)
    with pytest.raises(InvalidArgumentError, match="multiplied by 0"):
        Normalizer.from_json(good).denormalize("observations", [1.0])
