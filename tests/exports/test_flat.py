"""Exports to flat arrays: D4RL HDF5 files and npz files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import gear_data
from gear_data.errors import (
    UnsupportedColumnError,
)
from gear_data.exports.destination import LISTING
from tests.support.exports import FORMATS, concatenated, convert_again, convert_rollouts, export_to


@pytest.mark.parametrize("format", ["d4rl", "npz"])
def test_flat_arrays(format: str, rollouts: list[Any], rollouts_path: Path, tmp_path: Path) -> None:
    path = export_to(gear_data.open(rollouts_path), tmp_path, format)
    with h5py.File(path) if format == "d4rl" else np.load(path, allow_pickle=False) as file:
        found = {name: file[name][()] for name in file}
    own = {name: concatenated(rollouts, name) for name in ("observations", "actions", "rewards")}
    own |= {"terminals": concatenated(rollouts, "terminated"), "timeouts": concatenated(rollouts, "truncated")}
    own["next_observations"] = np.concatenate([rollout.next_observations for rollout in rollouts])
    assert found.keys() == own.keys()
    for name, values in own.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("format", ["d4rl", "npz"])
def test_flat_arrays_in_a_folder(format: str, rollouts_path: Path, tmp_path: Path) -> None:
    ds = gear_data.open(rollouts_path)
    report = gear_data.export(ds, tmp_path / "folder", format)
    file, listing = sorted((tmp_path / "folder").iterdir(), reverse=True)
    assert report.files == (file.name,) and listing.name == LISTING
    assert report.bytes == file.stat().st_size
    assert convert_again(tmp_path / "folder", tmp_path).fingerprint == ds.fingerprint


def test_d4rl_metadata(rollouts: list[Any], sources: Any, tmp_path: Path) -> None:
    metadata = {"metadata/algorithm": "ppo", "metadata/iteration": 7, "metadata/array": np.arange(3)}
    source = sources.write_d4rl(tmp_path / "source.hdf5", rollouts, extra=metadata)
    gear_data.convert(source, tmp_path / "dataset")
    path = export_to(gear_data.open(tmp_path / "dataset"), tmp_path, "d4rl")
    with h5py.File(path) as file:
        assert file["metadata/algorithm"][()] == b"ppo"
        assert file["metadata/iteration"][()] == 7
    assert convert_again(path, tmp_path).manifest.provenance["metadata"] == {"algorithm": "ppo", "iteration": 7}


def test_metadata_that_d4rl_has_no_place_for_is_listed(
    rollouts_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = {"robot": {"name": "arm"}, "authors": ["a", "b"], "license": "MIT", "url": None}
    monkeypatch.setattr("gear_data.exports.d4rl.source_metadata", lambda dataset: metadata)
    report = gear_data.export(gear_data.open(rollouts_path), tmp_path / "out.hdf5", "d4rl", progress=False)
    assert report.left_out == ("metadata/robot", "metadata/authors")
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert {*file["metadata"]} == {"license"}


def test_flat_arrays_without_final_observations(sources: Any, tmp_path: Path) -> None:
    ds = convert_rollouts(tmp_path, sources, sources.make_rollouts(6), final=False, level=list(range(6)))
    report = gear_data.export(ds, tmp_path / "out.hdf5", "d4rl")
    assert report.left_out == ("level",)
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert "next_observations" not in file
    assert convert_again(tmp_path / "out.hdf5", tmp_path).fingerprint == ds.fingerprint


@pytest.mark.parametrize("format", ["d4rl", "npz"])
def test_ambiguous_end_flags_are_refused(format: str, sources: Any, tmp_path: Path) -> None:
    both, inside, both_inside = (sources.make_rollouts(5, short=False, seed=8) for _ in range(3))
    both[3].columns["terminated"][-1] = both[3].columns["truncated"][-1] = True
    episode = next(i for i, rollout in enumerate(inside) if len(rollout) > 2)
    for one in (inside, both_inside):
        one[episode].columns["terminated"][1] = True
    both_inside[episode].columns["truncated"][1] = True
    last, middle = f"step {len(both[3]) - 1} of episode 3", f"step 1 of episode {episode}"
    for number, (rollouts, place) in enumerate([(both, last), (inside, middle), (both_inside, middle)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        ds = convert_rollouts(folder, sources, rollouts)
        with pytest.raises(UnsupportedColumnError, match=place):
            export_to(ds, folder, format)
        assert not (folder / FORMATS[format][0]).exists()


@pytest.mark.parametrize("name", ["is_first", "indices", "episode_lengths", "episode_index"])
def test_columns_that_would_say_where_episodes_are(name: str, rollouts_path: Path, tmp_path: Path) -> None:
    """The format npz takes integers of such a name for the places of episodes; D4RL does not."""
    ds = gear_data.open(rollouts_path)
    numbers = ds.with_column(name, np.arange(ds.num_steps))
    with pytest.raises(UnsupportedColumnError, match=rf"(?s)ds\.rename.*--rename {name}=infos\.{name}") as error:
        export_to(numbers, tmp_path, "npz")
    assert error.value.column == name
    assert list(tmp_path.iterdir()) == []
    vectors = ds.with_column(name, np.random.default_rng(1).normal(size=(ds.num_steps, 2)))
    renamed = numbers.rename({name: f"infos.{name}"})
    for number, (kept, format) in enumerate([(numbers, "d4rl"), (vectors, "npz"), (renamed, "npz")]):
        (tmp_path / str(number)).mkdir()
        path = export_to(kept, tmp_path / str(number), format)
        assert convert_again(path, tmp_path / str(number)).fingerprint == kept.fingerprint
