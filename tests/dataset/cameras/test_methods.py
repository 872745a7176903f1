"""Methods of a dataset that take a column: a camera works, or the error says what to do."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest

import gear_data
from gear_data.errors import UnknownNameError, UnsupportedColumnError
from tests.support.cameras.filmed import FRONT, WRIST, Filmed

#: Method -> a call that gives it a camera, and the error; None if a camera works.
CALLS: dict[str, tuple[Callable[[Any], Any], type[Exception] | None]] = {
    "steps": (lambda ds: ds.steps(FRONT, 1, 3), None),
    "values": (lambda ds: ds.values(FRONT, 1, 3), UnsupportedColumnError),
    "quantiles": (lambda ds: ds.quantiles(FRONT), UnsupportedColumnError),
    "filter_steps": (lambda ds: ds.filter_steps(pl.col(FRONT).is_not_null()), UnsupportedColumnError),
    "drop_idle": (lambda ds: ds.drop_idle(FRONT, threshold=1.0, seconds=1.0), UnsupportedColumnError),
    "residency_plan": (lambda ds: ds.residency_plan(1 << 20, 1 << 20, columns=[FRONT]), UnsupportedColumnError),
    "to_polars": (lambda ds: ds.to_polars([FRONT]), UnsupportedColumnError),
    "to_hf": (lambda ds: ds.to_hf([FRONT]), UnsupportedColumnError),
    "to_torch_dataset": (lambda ds: ds.to_torch_dataset(columns=[FRONT])[1], None),
    "drop_duplicates": (lambda ds: ds.drop_duplicates([FRONT]), UnsupportedColumnError),
    "with_column": (lambda ds: ds.with_column("level", pl.col(FRONT)), UnsupportedColumnError),
    "rename": (lambda ds: ds.rename({FRONT: "observations.images.other"}), None),
    "drop": (lambda ds: ds.drop(FRONT), None),
    # The columns of these are the episode table's.
    "drop_outliers": (lambda ds: ds.drop_outliers({FRONT: 3.0}), UnknownNameError),
    "filter": (lambda ds: ds.filter(pl.col(FRONT) > 0), UnknownNameError),
    "evaluate": (lambda ds: ds.evaluate(pl.col(FRONT), "weight"), UnknownNameError),
    "split_by": (lambda ds: ds.split_by(FRONT), UnknownNameError),
}
#: Methods and properties without a column.
OTHERS = {
    "all_steps", "at_generation", "discount", "episode", "episode_ids", "episode_table", "episodes", "final",
    "fingerprint", "generation", "is_remote", "keep_ranges", "lengths", "num_episodes", "num_steps", "offsets",
    "place", "placement", "refresh", "report", "save", "schema", "select", "shards", "sizes", "split", "statistics",
    "step_mask", "step_mask_mode", "steps_left_out", "with_discount", "with_facts",
}  # fmt: skip


def test_all_public_methods_are_listed() -> None:
    public = {name for name, _ in inspect.getmembers(gear_data.Dataset) if not name.startswith("_")}
    assert public == CALLS.keys() | OTHERS


@pytest.mark.parametrize("method", [name for name, (_, error) in CALLS.items() if error is not None])
def test_a_camera_gives_an_error_that_says_what_to_do(filmed: Filmed, method: str) -> None:
    call, error = CALLS[method]
    with pytest.raises(error or Exception) as raised:
        call(gear_data.open(filmed.path))
    if error is UnsupportedColumnError:
        assert raised.value.column == FRONT
        assert "--videos frames" in str(raised.value)


def test_steps_are_decoded(filmed: Filmed) -> None:
    ds = gear_data.open(filmed.path)
    for camera in (FRONT, WRIST):
        expected = np.concatenate(filmed.frames[camera][1:4])
        np.testing.assert_array_equal(ds.steps(camera, 1, 4), expected)
    view = ds[[0, 3, 4]]
    expected = np.concatenate([filmed.frames[FRONT][i] for i in (3, 4)])
    np.testing.assert_array_equal(view.steps(FRONT, 1, 3), expected)
    assert view.steps(FRONT, 1, 1).shape == (0, 48, 64, 3)


def test_views_have_the_frames_of_their_episodes(filmed: Filmed) -> None:
    ds = gear_data.open(filmed.path)
    parts = ds.split({"train": 0.6, "test": 0.4}, seed=3)
    for view in (ds.select([1, 3]), ds.filter(pl.col("length") > 3), ds.filter_steps("rewards > 0"), *parts.values()):
        for episode in view:
            np.testing.assert_array_equal(episode[WRIST], filmed.frames[WRIST][episode.id])


@pytest.mark.parametrize("residency", ["mmap", "host"])
def test_cameras_stay_in_their_files_in_every_residency(filmed: Filmed, residency: str) -> None:
    ds = gear_data.open(filmed.path, residency)
    np.testing.assert_array_equal(ds[2][FRONT][:2], filmed.frames[FRONT][2][:2])
    again = pickle.loads(pickle.dumps(ds[1:]))
    np.testing.assert_array_equal(again[0][FRONT], filmed.frames[FRONT][1])


def test_another_discount_keeps_the_cameras(filmed: Filmed) -> None:
    ds = gear_data.open(filmed.path).with_discount(0.5)
    assert [spec.name for spec in ds.schema.videos] == [FRONT, WRIST]
    np.testing.assert_array_equal(ds[1][FRONT][0], filmed.frames[FRONT][1][0])
    assert ds[1]["returns_to_go"].shape == ds[1]["rewards"].shape


def test_cameras_leave_and_get_other_names(filmed: Filmed) -> None:
    ds = gear_data.open(filmed.path)
    renamed = ds.rename({FRONT: "observations.images.other"})
    assert {spec.name for spec in renamed.schema.videos} == {"observations.images.other", WRIST}
    np.testing.assert_array_equal(renamed[1]["observations.images.other"], filmed.frames[FRONT][1])
    dropped = ds.drop(FRONT)
    assert [spec.name for spec in dropped.schema.videos] == [WRIST]
    np.testing.assert_array_equal(dropped[1][WRIST], filmed.frames[WRIST][1])


def test_sizes_and_plans_are_about_the_shards(filmed: Filmed) -> None:
    ds = gear_data.open(filmed.path)
    assert ds.sizes(0, 5).tolist() == (ds.lengths * ds.schema.step_bytes).tolist()
    assert FRONT not in ds.residency_plan(1 << 20, 1 << 20).columns


def test_statistics_of_views_leave_cameras_out(filmed: Filmed) -> None:
    view = gear_data.open(filmed.path)[[0, 1]]
    assert view.statistics["rewards"].count[0] == view.num_steps
    assert FRONT not in view.statistics
