"""Arrays of steps in memory, as `env.get_dataset()` returns them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import gear_data
from gear_data.errors import BadEpisodeError, UnknownFormatError, UnknownNameError, UnsupportedColumnError
from tests.support.checks import warning_codes


def d4rl_arrays(path: Path) -> dict[str, Any]:
    """Returns what `get_dataset` of D4RL does: every dataset of the file under its path; scalars as they are."""
    arrays: dict[str, Any] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return arrays


@pytest.mark.parametrize(
    "options",
    [{}, {"timeouts": False}, {"next_observations": False, "column_vectors": True}],
    ids=["all", "no timeouts", "columns"],
)
def test_a_d4rl_dict_is_its_file(sources: Any, rollouts: list[Any], options: dict[str, Any], tmp_path: Path) -> None:
    steps = sum(map(len, rollouts))
    extra = {
        "infos/qpos": np.arange(2 * steps).reshape(steps, 2),
        "metadata/algorithm": b"SAC",
        "metadata/policy/bias": np.zeros(4),
    }
    path = sources.write_d4rl(tmp_path / "a.hdf5", rollouts, extra=extra, **options)
    from_file = gear_data.convert(path, tmp_path / "file")
    from_memory = gear_data.convert(d4rl_arrays(path), tmp_path / "memory")
    assert (from_memory.format, from_memory.fingerprint) == ("in-memory", from_file.fingerprint)
    assert warning_codes(from_memory) == warning_codes(from_file)
    metadata = gear_data.open(tmp_path / "memory").manifest.provenance["metadata"]
    assert metadata == {"algorithm": "SAC"}


def test_both_flags_are_read_as_d4rl_does(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    path = sources.write_d4rl(tmp_path / "a.hdf5", rollouts)
    arrays = d4rl_arrays(path)
    arrays["timeouts"] = arrays["timeouts"] | arrays["terminals"]
    report = gear_data.convert(arrays, tmp_path / "memory")
    assert warning_codes(report) == ["both-flags"]
    sources.check_dataset(tmp_path / "memory", rollouts, final=True)


@pytest.mark.parametrize("kind", ["tensors", "nested", "archive"])
def test_kinds_of_mappings(sources: Any, rollouts: list[Any], kind: str, tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        name: np.concatenate([rollout.columns[name] for rollout in rollouts]) for name in rollouts[0].columns
    }
    before = {name: values.copy() for name, values in columns.items()}
    source: Any = columns
    if kind == "tensors":
        source = {name: torch.from_numpy(values) for name, values in columns.items()}
    elif kind == "nested":
        source = {**columns, "infos": {"qpos": {"x": columns["rewards"]}}}
    else:
        np.savez(tmp_path / "a.npz", **columns)
        source = np.load(tmp_path / "a.npz")
    gear_data.convert(source, tmp_path / "d")
    dataset = gear_data.open(tmp_path / "d")
    assert dataset.num_episodes == len(rollouts)
    if kind == "nested":
        assert np.array_equal(dataset.steps("infos.qpos.x", 0, dataset.num_episodes), columns["rewards"])
    else:
        sources.check_dataset(tmp_path / "d", rollouts)
    assert all(np.array_equal(values, before[name]) for name, values in columns.items())


def test_an_array_of_episode_ids(tmp_path: Path) -> None:
    arrays = {"observations": np.arange(10.0), "actions": np.zeros((10, 1)), "run": np.repeat([4, 7], 5)}
    gear_data.convert(arrays, tmp_path / "d", episodes=gear_data.EpisodeBoundaries(episode_column="run"))
    assert gear_data.open(tmp_path / "d").episodes["run"].to_list() == [4, 7]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"rewards": np.zeros(5)}, BadEpisodeError, "has 5 rows"),
        ({"actions": [[1.0], [1.0, 2.0]]}, BadEpisodeError, "row per step"),
        ({"actions": np.array([object()] * 6)}, UnsupportedColumnError, "actions"),
        ({"dones": None}, UnknownFormatError, "put the mapping into a list"),
    ],
)
def test_bad_arrays_are_named(change: dict[str, Any], error: Any, words: str, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "observations": np.zeros((6, 2)),
        "actions": np.zeros(6),
        "rewards": np.zeros(6),
        "dones": np.arange(6) == 5,
    }
    with pytest.raises(error, match=words):
        gear_data.convert({**arrays, **change}, tmp_path / "d", columns=["observations", "actions", "rewards"])


@pytest.mark.parametrize("flags", [("timeouts",), ("terminals", "timeouts")])
def test_another_dtype(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Of plain arrays of steps, and of D4RL's."""
    values = np.linspace(0, 1, 12, dtype=np.float32)[:, None]
    ends = np.arange(12) % 6 == 5
    steps = {"observations": np.zeros((12, 3)), "actions": values, "rewards": np.ones(12), "timeouts": ends}
    steps |= dict.fromkeys(set(flags) - steps.keys(), np.zeros(12, np.bool_))
    tables = gear_data.TableOptions(dtype={"actions": "float64"})
    gear_data.convert(steps, tmp_path / "d", tables=tables, progress=False)
    ds = gear_data.open(tmp_path / "d")
    assert ds.schema["actions"].dtype == "float64"
    np.testing.assert_array_equal(ds[1]["actions"], values[6:].astype(np.float64))
    with pytest.raises(UnknownNameError, match="did you mean 'actions'"):
        gear_data.convert(steps, tmp_path / "e", tables=gear_data.TableOptions(dtype={"acts": "float64"}))
