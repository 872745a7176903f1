"""Tests of robomimic HDF5, valid and damaged.

Layout: https://robomimic.github.io/docs/datasets/overview.html.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import gear_data
from gear_data.errors import BadEpisodeError, CorruptSourceError, GearError
from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources import robomimic
from gear_data.ingest.sources.registry import open_source
from gear_data.ingest.sources.tree import source as tree_source
from gear_data.storage.episode_block import BEGIN, END

Demo = dict[str, Any]


def make_demos(lengths: Sequence[int] = (3, 1, 4, 2), seed: int = 0) -> list[Demo]:
    """Returns demonstrations with a vector and an image.

    `dones` is set at the last step of every second demonstration.
    """
    rng = np.random.default_rng(seed)
    demos = []
    for i, steps in enumerate(lengths):
        poses = rng.normal(size=(steps + 1, 3))
        images = rng.integers(0, 256, (steps + 1, 4, 5, 3), np.uint8)
        demos.append(
            {
                "actions": rng.normal(size=(steps, 2)),
                "dones": (np.arange(steps) == steps - 1).astype(np.int64) * (i % 2 == 0),
                "rewards": rng.normal(size=steps),
                "states": rng.normal(size=(steps, 6)),
                "obs/robot0_eef_pos": poses[:-1],
                "obs/agentview_image": images[:-1],
                "next_obs/robot0_eef_pos": poses[1:],
                "next_obs/agentview_image": images[1:],
            }
        )
    return demos


def write(path: Path, demos: Sequence[Demo], numbers: Sequence[int] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = range(len(demos)) if numbers is None else numbers
    with h5py.File(path, "w") as file:
        for number, demo in zip(numbers, demos, strict=True):
            for name, values in demo.items():
                file[f"data/demo_{number}/{name}"] = values
            file[f"data/demo_{number}"].attrs["num_samples"] = len(demo["actions"])
            file[f"data/demo_{number}"].attrs["model_file"] = "<mujoco>" + "x" * 20_000
        file["data"].attrs["total"] = sum(len(demo["actions"]) for demo in demos)
        file["data"].attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1})
    return path


def change(path: Path, edit: Callable[[h5py.File], None]) -> Path:
    with h5py.File(path, "r+") as file:
        edit(file)
    return path


def open_(path: Path, **options: Any) -> Any:
    return robomimic.open_(locate(str(path), None), SourceOptions(**options))


def test_demonstrations_step_for_step(tmp_path: Path) -> None:
    demos = make_demos()
    report = gear_data.convert(write(tmp_path / "demo.hdf5", demos), tmp_path / "d")
    assert report.format == "robomimic"
    ds = gear_data.open(tmp_path / "d")
    assert ds.num_episodes == len(demos)
    for i, demo in enumerate(demos):
        episode, final = ds.episode(i), ds.final(i) or {}
        for name in ("actions", "rewards", "states"):
            np.testing.assert_array_equal(episode[name], demo[name])
            assert episode[name].dtype == np.float64
        for name in ("robot0_eef_pos", "agentview_image"):
            np.testing.assert_array_equal(episode[f"observations.{name}"], demo[f"obs/{name}"])
            np.testing.assert_array_equal(final[f"observations.{name}"], demo[f"next_obs/{name}"][-1])
        np.testing.assert_array_equal(episode["terminated"], demo["dones"].astype(bool))
    assert ds.schema["observations.agentview_image"].dtype == "uint8"
    assert not any(name.startswith("next_obs") for name in ds.schema.names)
    assert ds.episodes["truncated"].to_list() == [False, True, False, True]
    assert ds.manifest.provenance["metadata"] == {"env_args": '{"env_name": "Lift", "type": 1}'}
    assert any(w.startswith("fact-left-out: column 'model_file'") for w in report.warnings)


def test_numbers_with_gaps_in_their_order(tmp_path: Path) -> None:
    demos = make_demos()
    source = open_(write(tmp_path / "demo.hdf5", demos, [2, 10, 1, 30]))
    (block,) = source.blocks(BEGIN, END)
    assert block.rows.tolist() == [1, 2, 10, 30]
    assert block.lengths.tolist() == [4, 3, 1, 2]
    found = {finding.code: finding for finding in source.findings}
    assert (found["gapped-episodes"].count, found["gapped-episodes"].row) == (26, 10)


def test_wrong_attributes(tmp_path: Path) -> None:
    def lie(file: h5py.File) -> None:
        file["data/demo_1"].attrs["num_samples"] = 99
        file["data"].attrs["total"] = 7

    source = open_(change(write(tmp_path / "demo.hdf5", make_demos()), lie))
    (block,) = source.blocks(BEGIN, END)
    assert block.lengths.tolist() == [3, 1, 4, 2]
    found = {f.column: f.message for f in source.findings if f.code == "metadata-disagrees"}
    assert found["total"].startswith("'total' is 7, but there are 10 steps")
    assert found["episode num_samples"].startswith("'num_samples' is 99, but there are 1 steps")


def test_filters_become_a_fact(tmp_path: Path) -> None:
    def add(file: h5py.File) -> None:
        file["mask/train"] = np.array([b"demo_0", b"demo_2"])
        file["mask/valid"] = np.array([b"demo_1"])
        file["mask/20_percent"] = np.array([b"demo_2"])

    path = change(write(tmp_path / "demo.hdf5", make_demos()), add)
    gear_data.convert(path, tmp_path / "d")
    assert gear_data.open(tmp_path / "d").episodes["mask"].to_list() == ["train", "valid", "20_percent,train", None]


def test_states_and_actions_only(tmp_path: Path) -> None:
    """Files as collected, before observations are computed from the states."""
    demos = [{name: demo[name] for name in ("actions", "states")} for demo in make_demos()]
    gear_data.convert(write(tmp_path / "demo.hdf5", demos), tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    assert set(ds.schema.names) == {"actions", "states", "terminated", "truncated"}
    assert ds.final(0) is None
    assert ds.episodes["truncated"].all()


def test_several_files(tmp_path: Path) -> None:
    for i, number in enumerate((1, 2, 10)):
        write(tmp_path / "s" / f"demo{number}.hdf5", make_demos((2, 3), seed=i))
    report = gear_data.convert(tmp_path / "s", tmp_path / "d")
    assert (report.format, report.episodes, report.steps) == ("robomimic", 6, 15)
    files = gear_data.open(tmp_path / "d").episodes["source"].to_list()
    assert files == [f"demo{number}.hdf5" for number in (1, 2, 10) for _ in range(2)]


def test_folders_of_several_datasets_are_refused_before_reading(tmp_path: Path) -> None:
    write(tmp_path / "s/lift/demo.hdf5", make_demos())
    others = [{**demo, "states": np.zeros((len(demo["actions"]), 9))} for demo in make_demos()]
    write(tmp_path / "s/can/demo.hdf5", others)
    source = open_source(locate(tmp_path / "s", None), "auto", SourceOptions())[0]
    with pytest.raises(
        BadEpisodeError, match=r"^lift/demo.hdf5, column 'states'(.|\n)*one folder at a time: can, lift"
    ):
        source.units()
    assert gear_data.convert(tmp_path / "s", tmp_path / "d", on_bad_episode="skip").episodes == 4
    write(tmp_path / "same/a/demo.hdf5", make_demos())
    write(tmp_path / "same/b/demo.hdf5", make_demos(), numbers=(3, 4, 6, 7))
    report = gear_data.convert(tmp_path / "same", tmp_path / "e")
    assert report.episodes == 8
    (gap,) = [finding for finding in gear_data.open(tmp_path / "e").manifest.findings if "gapped" in finding["code"]]
    assert gap["count"] == 1  # reading the first episode twice reports nothing twice


def test_units_are_the_whole(sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_source, "UNIT_BYTES", 20_000)
    monkeypatch.setattr(tree_source, "_BLOCK_BYTES", 1_000)
    for i in range(2):
        path = write(tmp_path / "s" / f"{i}.hdf5", make_demos((3, 1, 4, 2, 5), seed=i), [3, 4, 7, 8, 9])
        change(path, lambda file: file.__delitem__("data/demo_7/rewards"))
    location, options = locate(str(tmp_path / "s"), None), SourceOptions(on_bad_episode="skip")
    assert sources.check_units(lambda: robomimic.open_(location, options)) > 4


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("obs/robot0_eef_pos", 5, "has 5 rows, where 4 are expected: 'actions' has 4"),
        ("next_obs/robot0_eef_pos", 3, "has 3 rows"),
        ("rewards", 3, "has 3 rows"),
        ("next_obs/agentview_image", None, "is missing"),
    ],
)
def test_rows_that_do_not_fit(name: str, rows: int | None, message: str, tmp_path: Path) -> None:
    def spoil(file: h5py.File) -> None:
        values = file[f"data/demo_2/{name}"][...]
        del file[f"data/demo_2/{name}"]
        if rows is not None:
            file[f"data/demo_2/{name}"] = np.resize(values, (rows, *values.shape[1:]))

    path = change(write(tmp_path / "demo.hdf5", make_demos()), spoil)
    with pytest.raises(BadEpisodeError, match=message) as error:
        gear_data.convert(path, tmp_path / "d")
    assert (error.value.column, error.value.row) == (name, 2)
    report = gear_data.convert(path, tmp_path / "e", on_bad_episode="skip")
    assert report.episodes == 3
    assert any(w.startswith(f"bad-episode: column '{name}'") for w in report.warnings)


def test_shape_that_differs(tmp_path: Path) -> None:
    demos = make_demos()
    demos[1]["obs/robot0_eef_pos"] = demos[1]["obs/robot0_eef_pos"][:, :2]
    with pytest.raises(BadEpisodeError, match=r"is float64 \(2,\), in demo.hdf5 demo_0 float64 \(3,\)"):
        list(open_(write(tmp_path / "demo.hdf5", demos)).blocks(BEGIN, END))


def test_links_to_elsewhere(tmp_path: Path) -> None:
    other = write(tmp_path / "other" / "demo.hdf5", make_demos())

    def link(file: h5py.File) -> None:
        del file["data/demo_1/obs"]
        file["data/demo_1/obs"] = h5py.ExternalLink(other, "data/demo_1/obs")

    with pytest.raises(BadEpisodeError, match=r"obs/agentview_image.*is missing"):
        list(open_(change(write(tmp_path / "demo.hdf5", make_demos()), link)).blocks(BEGIN, END))


def test_absurd_filter(tmp_path: Path) -> None:
    def add(file: h5py.File) -> None:
        file.create_dataset("mask/train", (1 << 40,), "S8")

    path = change(write(tmp_path / "demo.hdf5", make_demos()), add)
    with pytest.raises(CorruptSourceError, match=r"mask/train.*claims"):
        list(open_(path).blocks(BEGIN, END))


def test_mutated_files_give_typed_errors(tmp_path: Path) -> None:
    path = write(tmp_path / "demo.hdf5", make_demos())
    good = path.read_bytes()
    rng = np.random.default_rng(5)
    refused = 0
    for i in range(80):
        bad = bytearray(good)
        for at in rng.integers(0, len(bad) if i % 2 else 4096, 1 + i % 7):
            bad[at] = rng.integers(256)
        path.write_bytes(bad[: rng.integers(1, len(bad))] if i % 10 == 0 else bad)
        try:
            robomimic.probe(locate(str(path), None))
            for _ in open_(path, on_bad_episode="skip" if i % 2 else "error").blocks(BEGIN, END):
                pass
        except GearError:
            refused += 1
    assert refused > 15
