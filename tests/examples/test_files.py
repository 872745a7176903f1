"""The datasets of the package."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import gear_data
from gear_data.demo.rollouts import make_rollouts
from scripts.make_examples import EPISODES, SEED


def test_an_example_has_the_rollouts_of_its_script() -> None:
    found = pl.read_parquet(gear_data.example("pendulum"))
    made = make_rollouts(EPISODES, SEED)
    assert found.columns == list(made)
    for name, values in made.items():
        np.testing.assert_allclose(np.array(found[name].to_list()), values, rtol=1e-4, atol=1e-4, err_msg=name)


def test_an_example_is_small_and_converts_without_findings() -> None:
    path = gear_data.example("pendulum")
    assert path.stat().st_size < 400_000
    ds = gear_data.open(path)
    assert (ds.num_episodes, ds.num_steps, ds.manifest.findings) == (60, 12_000, ())
    totals = pl.read_parquet(path)["rewards"].list.eval(pl.element().cast(pl.Float64)).list.sum()
    np.testing.assert_allclose(ds.episodes["return"], totals)


def test_an_unknown_example_is_named_with_those_that_exist() -> None:
    with pytest.raises(gear_data.errors.UnknownNameError, match=r"unknown example 'hopper'[\s\S]*known: pendulum"):
        gear_data.example("hopper")
    with pytest.raises(gear_data.errors.UnknownNameError):
        gear_data.example("../examples/pendulum")
