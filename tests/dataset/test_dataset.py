"""Dataset: episodes, table, schema and pickling of an opened dataset."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import gear_data
from gear_data.errors import InvalidArgumentError, UnknownArgumentError, UnknownNameError


def test_episodes_by_number(rollouts: list[Any], rollouts_path: Path, sources: Any) -> None:
    sources.check_dataset(rollouts_path, rollouts, final=True)
    ds = gear_data.open(str(rollouts_path))
    for index in (-1, len(rollouts), 10**12):
        with pytest.raises(InvalidArgumentError, match=f"0 to {len(rollouts) - 1}"):
            ds.episode(index)
    assert ds.episode(np.int64(3)).length == len(rollouts[3])


def test_an_episode_is_a_mapping(rollouts: list[Any], rollouts_path: Path) -> None:
    episode = gear_data.open(rollouts_path).episode(2)
    assert set(episode) == {"observations", "actions", "rewards", "terminated", "truncated", "returns_to_go"}
    assert len(episode) == 6
    assert "actions" in episode
    assert "action" not in episode
    with pytest.raises(UnknownNameError, match="did you mean 'actions'") as error:
        episode["action"]
    assert "returns_to_go" in str(error.value)
    assert {name: values.shape for name, values in episode.items()}["actions"] == (len(rollouts[2]), 2)


def test_episodes_of_a_view_keep_their_ids(rollouts: list[Any], rollouts_path: Path) -> None:
    view = gear_data.open(rollouts_path)[[2, 5]]
    assert [episode.id for episode in view] == [2, 5]
    assert np.array_equal(view.episode(view[1].id)["rewards"], rollouts[5].columns["rewards"])


def test_episode_table(rollouts: list[Any], rollouts_path: Path) -> None:
    table = gear_data.open(rollouts_path).episodes
    assert isinstance(table, pl.DataFrame)
    # A frame can be filtered and sorted.
    longest = table.filter(pl.col("truncated")).sort("length", descending=True)["episode_id"][0]
    lengths = {i: len(r) for i, r in enumerate(rollouts) if r.columns["truncated"][-1]}
    assert lengths[longest] == max(lengths.values())


def test_offsets_and_lengths(rollouts: list[Any], rollouts_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    assert ds.lengths.tolist() == [len(r) for r in rollouts]
    assert ds.offsets.tolist() == [sum(len(r) for r in rollouts[:i]) for i in range(len(rollouts) + 1)]
    assert ds.offsets.dtype == np.int64


def test_unpickling_opens_the_dataset_again(rollouts_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    copy = pickle.loads(pickle.dumps(ds))
    assert copy.fingerprint == ds.fingerprint
    np.testing.assert_array_equal(copy.episode(5)["observations"], ds.episode(5)["observations"])
    assert len(pickle.dumps(ds)) < 1000


def test_an_unknown_argument_of_open_names_the_closest_one(rollouts_path: Path) -> None:
    with pytest.raises(UnknownArgumentError, match="did you mean 'residency'") as caught:
        gear_data.open(rollouts_path, residnecy="host")  # type: ignore[arg-type]
    assert "open has no argument 'residnecy'" in str(caught.value)
    assert "unknown" not in str(caught.value)


def test_unknown_residency(rollouts_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="mmap"):
        gear_data.open(rollouts_path, residency="disk")


def test_schema(rollouts_path: Path) -> None:
    schema = gear_data.open(rollouts_path).schema
    assert {c.name: (c.dtype, c.shape, c.role.value, c.source, c.derived) for c in schema} == {
        "observations": ("float32", (3,), "observation", None, False),
        "actions": ("float32", (2,), "action", None, False),
        "rewards": ("float32", (), "reward", None, False),
        "terminated": ("bool", (), "terminated", "terminals", False),
        "truncated": ("bool", (), "truncated", "timeouts", False),
        "returns_to_go": ("float32", (), "return_to_go", None, True),
    }
    assert schema.step_bytes == 12 + 8 + 4 + 1 + 1 + 4
    with pytest.raises(UnknownNameError, match="rewards"):
        schema["reward"]


@pytest.mark.processes
@pytest.mark.parametrize("use", ["", "gear_data.open(sys.argv[1])"])
def test_importing_and_opening_import_nothing_slow(use: str, rollouts_path: Path) -> None:
    slow = ("torch", "numba", "datasets", "h5py", "pandas", "polars")
    code = f"import sys, gear_data; {use}\nprint([name for name in {slow} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code, str(rollouts_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
