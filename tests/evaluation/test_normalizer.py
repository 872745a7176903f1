"""Normalizers against a loader's batches, and through JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gear_data import Mixture, Normalizer, SequenceLoader
from gear_data.errors import InvalidArgumentError
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
