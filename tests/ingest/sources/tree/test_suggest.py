"""A suggested mapping, unchanged, gives the values that a plain loop reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import yaml
import zarr

import gear_data
from gear_data.cli import main
from gear_data.errors import GearError, InvalidArgumentError, UnknownFormatError

LENGTHS = (5, 1, 7, 3, 4, 6, 2, 8, 9, 3, 5, 4)
Episode = dict[str, Any]


def make_episodes(seed: int = 0) -> list[Episode]:
    rng = np.random.default_rng(seed)
    return [
        {
            "action": rng.normal(size=(steps, 2)),
            "observation": rng.normal(size=(steps + 1, 3)).astype(np.float32),
            "camera/rgb": rng.integers(0, 255, (steps, 4, 5, 3), np.uint8),
            "reward": rng.normal(size=(steps, 1)),
            "note": [f"é {i}" for i in range(steps)],
        }
        for steps in LENGTHS
    ]


def write_groups(path: Path, episodes: Sequence[Episode]) -> None:
    with h5py.File(path, "w") as file:
        for i, episode in reversed(list(enumerate(episodes))):
            for name, values in episode.items():
                file[f"lab/day_a/demo_{i}/{name}"] = values
            file[f"lab/day_a/demo_{i}"].attrs["success"] = bool(i % 2)
            file[f"lab/day_a/demo_{i}/goal"] = np.full((1, 3), i)


def read_groups(path: Path) -> Iterator[Episode]:
    with h5py.File(path) as file:
        parent = file["lab/day_a"]
        for key in sorted(parent, key=lambda key: int(key.removeprefix("demo_"))):
            group = parent[key]
            yield {
                "actions": group["action"][...],
                "observations": group["observation"][...],
                "camera.rgb": group["camera/rgb"][...],
                "rewards": group["reward"][:, 0],
                "note": group["note"].asstr()[...].tolist(),
                "success": bool(group.attrs["success"]),
                "goal": group["goal"][0].tolist(),
            }


def write_datasets(path: Path, episodes: Sequence[Episode]) -> None:
    with h5py.File(path, "w") as file:
        for i, episode in enumerate(episodes):
            file[f"actions_{i}"], file[f"states_{i}"] = episode["action"], episode["observation"]


def read_datasets(path: Path) -> Iterator[Episode]:
    with h5py.File(path) as file:
        for i in range(len(file) // 2):
            yield {"actions": file[f"actions_{i}"][...], "observations": file[f"states_{i}"][...]}


def write_ends(path: Path, episodes: Sequence[Episode]) -> None:
    with h5py.File(path, "w") as file:
        for name in ("action", "camera/rgb", "note"):
            values = [value for episode in episodes for value in episode[name]]
            file.create_dataset(f"data/{name}", data=values, chunks=(6, *np.shape(values)[1:]), compression="gzip")
        file["meta/episode_ends"] = np.cumsum(LENGTHS) - 1  # inclusive
        file["meta/seed"] = np.arange(len(episodes))


def read_ends(path: Path) -> Iterator[Episode]:
    with h5py.File(path) as file:
        start = 0
        for end in file["meta/episode_ends"][...]:
            rows = slice(start, end + 1)
            yield {
                "actions": file["data/action"][rows],
                "camera.rgb": file["data/camera/rgb"][rows],
                "note": file["data/note"].asstr()[rows].tolist(),
            }
            start = end + 1


def write_files(path: Path, episodes: Sequence[Episode]) -> None:
    path.mkdir()
    for i, episode in enumerate(episodes):
        with h5py.File(path / f"episode_{i}.h5", "w") as file:
            file["joint/action"], file["joint/obs"] = episode["action"], episode["observation"]


def read_files(path: Path) -> Iterator[Episode]:
    for i in range(len(LENGTHS)):
        with h5py.File(path / f"episode_{i}.h5") as file:
            yield {"actions": file["joint/action"][...], "observations": file["joint/obs"][...]}


def write_archive(path: Path, episodes: Sequence[Episode]) -> None:
    arrays = {f"{name}_{i}": value for i, episode in enumerate(episodes) for name, value in episode.items()}
    np.savez_compressed(path, **arrays)


def read_archive(path: Path) -> Iterator[Episode]:
    with np.load(path) as file:
        for i in range(len(LENGTHS)):
            yield {
                "actions": file[f"action_{i}"],
                "observations": file[f"observation_{i}"],
                "camera.rgb": file[f"camera/rgb_{i}"],
                "rewards": file[f"reward_{i}"][:, 0],
                "note": file[f"note_{i}"].tolist(),
            }


def write_zarr(path: Path, episodes: Sequence[Episode]) -> None:
    group = zarr.open_group(path, mode="w", zarr_format=2)
    for i, episode in enumerate(episodes):
        for name in ("action", "observation", "camera/rgb"):
            group.create_array(f"runs/{i}/{name}", data=episode[name], chunks=(4, *episode[name].shape[1:]))
    group.attrs["robot"] = "arm"


def read_zarr(path: Path) -> Iterator[Episode]:
    runs = zarr.open_group(path, mode="r")["runs"]
    for i in range(len(LENGTHS)):
        run = runs[str(i)]
        yield {"actions": run["action"][:], "observations": run["observation"][:], "camera.rgb": run["camera/rgb"][:]}


def assert_equal(dataset: gear_data.Dataset, expected: Iterator[Episode]) -> None:
    episodes = list(expected)
    assert dataset.num_episodes == len(episodes) == len(LENGTHS)
    for i, episode in enumerate(episodes):
        found, final, row = dataset.episode(i), dataset.final(i), dataset.episodes.row(i, named=True)
        for name, values in episode.items():
            if name not in found:
                assert row[name] == values
            elif name == "observations":
                np.testing.assert_array_equal(found[name], values[:-1])
                np.testing.assert_array_equal(final[name], values[-1])
            else:
                np.testing.assert_array_equal(found[name], values)
                assert isinstance(values, list) or found[name].dtype == values.dtype


LAYOUTS: Mapping[str, tuple[str, Callable[..., None], Callable[[Path], Iterator[Episode]]]] = {
    "groups": ("a.h5", write_groups, read_groups),
    "datasets": ("a.h5", write_datasets, read_datasets),
    "ends": ("a.h5", write_ends, read_ends),
    "files": ("folder", write_files, read_files),
    "zarr": ("a.zarr", write_zarr, read_zarr),
    "archive": ("a.npz", write_archive, read_archive),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_suggestion_unchanged_reads_what_a_plain_loop_reads(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, write, read = LAYOUTS[layout]
    source, file = tmp_path / name, tmp_path / "mapping.yaml"
    write(source, make_episodes())
    assert main(["lint", str(source), "--suggest-map"]) == 0
    file.write_text(capsys.readouterr().out)
    assert main(["convert", str(source), str(tmp_path / "mapped"), "--map", str(file)]) == 0
    report = gear_data.convert(source, tmp_path / "found", progress=False)
    assert report.format == "tree"
    mapped, found = gear_data.open(tmp_path / "mapped"), gear_data.open(tmp_path / "found")
    assert_equal(mapped, read(source))
    assert_equal(found, read(source))
    assert mapped.manifest.fingerprint == found.manifest.fingerprint
    loader = gear_data.SequenceLoader(mapped, batch_size=4, context=3, columns=["actions"], steps=2)
    assert [tuple(batch["actions"].shape) for batch in loader] == [(4, 3, 2)] * 2


def write_tree(path: Path, **arrays: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name.replace("__", "/")] = values
    return path


def rows(count: int, *shape: int) -> Any:
    return np.arange(count * int(np.prod(shape)), dtype=np.float32).reshape(count, *shape)


UNCLEAR: Mapping[str, tuple[dict[str, Any], str]] = {
    "one file without ends": ({"action": rows(9, 2), "state": rows(9, 3)}, "one episode, or several"),
    "elements or episodes": (
        {f"{name}_{i}": rows(9) for name in ("action", "state") for i in range(3)},
        "may also be the elements of one action",
    ),
    "two families": (
        {f"{name}_{i}__action": rows(3, 2) for name in ("demo", "play") for i in range(2)},
        "each of demo_[0-9]* and play_[0-9]* may be the episodes",
    ),
    "two actions": (
        {f"demo_{i}__{arm}__action": rows(3, 2) for i in range(2) for arm in ("left", "right")},
        "each of left/action, right/action may be the actions",
    ),
    "another name": (
        {f"demo_{i}__joint_action": rows(3, 2) for i in range(2)},
        "no array of a group is called actions",
    ),
    "rewards of T + 1": (
        {f"demo_{i}__{name}": rows(3 + (name == "reward")) for i in range(2) for name in ("action", "reward")},
        "'reward' has one row more than the actions",
    ),
    "flags": (
        {"x__action": rows(9, 2), "x__done": np.arange(9) % 3 == 2},
        "x/done may not mark every end",
    ),
}


@pytest.mark.parametrize("case", UNCLEAR)
def test_a_layout_that_could_be_two_things_is_refused_with_both(case: str, tmp_path: Path) -> None:
    arrays, doubt = UNCLEAR[case]
    source = write_tree(tmp_path / "a.h5", **arrays)
    with pytest.raises(UnknownFormatError) as error:
        gear_data.convert(source, tmp_path / "d", progress=False)
    assert doubt in error.value.message
    assert "a.h5 holds:" in error.value.message
    assert "--map" in str(error.value.hint)
    assert "the nearest mapping:\n" in str(error.value.hint)


@pytest.mark.parametrize(
    ("names", "clear"),
    [
        (["episode_3"], True),
        (["demo_10"], False),
        (["hopper_demos_10"], False),
        (["data_0", "data_1"], False),
        (["lab_traj_0", "lab_traj_1"], True),
        (["episode_0", "calibration"], False),
    ],
)
def test_a_file_is_an_episode_only_if_its_name_says_so(names: list[str], clear: bool, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    for name in names:
        write_tree(tmp_path / "s" / f"{name}.h5", action=rows(4, 2), state=rows(4, 3))
    if clear:
        assert gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False).episodes == len(names)
    else:
        with pytest.raises(UnknownFormatError, match="not recognised"):
            gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)


def test_the_error_shows_at_most_twenty_lines(tmp_path: Path) -> None:
    arrays = {f"sensor_{name}": rows(4) for name in "abcdefghijklmnopqrstuvwxyz"}
    source = write_tree(tmp_path / "a.h5", run_1__x=rows(3), run_2__x=rows(4), **arrays)
    with pytest.raises(UnknownFormatError) as error:
        gear_data.convert(source, tmp_path / "d", progress=False)
    lines = [line for line in error.value.message.splitlines() if line.startswith("    ")]
    assert len(lines) == 20
    assert lines[:3] == ["    run_1/ (and 1 more run_*)", "    run_1/x: float32 (3,)", "    sensor_a: float32 (4,)"]
    assert "no array looks like actions" in error.value.message


def test_groups_without_actions(tmp_path: Path) -> None:
    """The suggestion is a beginning, which the user completes."""
    arrays = {f"run__{i}__{name}": rows(4 + i, width) for i in range(3) for name, width in (("pos", 3), ("cmd", 2))}
    source = write_tree(tmp_path / "a.h5", map__grid=rows(2, 2), **arrays)
    with pytest.raises(UnknownFormatError, match="no array looks like actions; give one column the name 'actions'"):
        gear_data.convert(source, tmp_path / "d", progress=False)
    text = main_text(source)
    assert "# Check: no array looks like actions" in text
    mapping = yaml.safe_load(text)
    assert mapping == {"episodes": {"groups": "run/[0-9]*"}, "columns": {"pos": "pos", "cmd": "cmd"}}
    mapping["columns"]["actions"] = mapping["columns"].pop("cmd")
    gear_data.convert(source, tmp_path / "d", mapping=mapping, progress=False)
    dataset = gear_data.open(tmp_path / "d")
    for i in range(3):
        np.testing.assert_array_equal(dataset.episode(i)["actions"], arrays[f"run__{i}__cmd"])
        np.testing.assert_array_equal(dataset.episode(i)["pos"], arrays[f"run__{i}__pos"])


def test_an_array_without_actions(tmp_path: Path) -> None:
    text = main_text(write_tree(tmp_path / "a.h5", x=rows(4, 2), y=rows(4)))
    assert yaml.safe_load(text) == {"episodes": {"files": "*"}, "columns": {"x": "x", "y": "y"}}


@pytest.mark.parametrize("arrays", [{}, {"x": np.float32(1)}], ids=["empty", "scalar"])
def test_a_file_without_arrays(arrays: dict[str, Any], tmp_path: Path) -> None:
    source = write_tree(tmp_path / "a.h5", **arrays)
    for attempt in (main_text, lambda source: gear_data.convert(source, tmp_path / "d", progress=False)):
        with pytest.raises(UnknownFormatError, match="it holds no array"):
            attempt(source)


def main_text(source: Path) -> str:
    from gear_data.ingest.lint import suggest_mapping

    return suggest_mapping(source)


def test_groups_named_after_splits_are_splits(tmp_path: Path) -> None:
    arrays = {f"{split}__{i}__action": rows(i + 2, 2) for split in ("train", "val") for i in range(3)}
    source = write_tree(tmp_path / "a.h5", **arrays)
    with pytest.raises(InvalidArgumentError, match="several splits: train, val"):
        gear_data.convert(source, tmp_path / "d", progress=False)
    assert gear_data.convert(source, tmp_path / "d", split="val", progress=False).steps == 9
    with pytest.raises(GearError, match="no split 'test'"):
        gear_data.convert(source, tmp_path / "e", split="test", progress=False)


def test_other_arrays_are_reported(tmp_path: Path) -> None:
    arrays = {f"task_{task}__ep{i}__action": rows(i + 2, 2) for task in "ab" for i in range(3)}
    source = write_tree(tmp_path / "a.h5", **arrays, calibration=rows(4), task_a__ep0__force=rows(30))
    report = gear_data.convert(source, tmp_path / "d", progress=False)
    assert report.episodes == 6
    assert sum("column-left-out" in warning for warning in report.warnings) == 2
    assert "calibration" in str(report.warnings)
    assert "force" in str(report.warnings)


def test_observations_after_each_step_give_the_final_one(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {}
    for i in range(3):
        poses = rows(i + 3, 2) + i
        arrays |= {f"ep_{i}__action": rows(i + 2, 2), f"ep_{i}__obs__x": poses[:-1], f"ep_{i}__next_obs__x": poses[1:]}
    gear_data.convert(write_tree(tmp_path / "a.h5", **arrays), tmp_path / "d", progress=False)
    ds = gear_data.open(tmp_path / "d")
    assert "observations.x" in ds.schema.names
    assert not any("next" in name for name in ds.schema.names)
    for i in range(3):
        np.testing.assert_array_equal(ds.final(i)["observations.x"], arrays[f"ep_{i}__next_obs__x"][-1])


def test_a_source_without_trees_has_no_mapping(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UnknownFormatError, match="holds no file that a mapping can describe"):
        main_text(tmp_path)


def test_an_array_without_a_name(tmp_path: Path) -> None:
    arrays = {f"{name}_{i}": rows(4 + i, 2) for i in range(2) for name in ("actions", "states")}
    np.savez(tmp_path / "a.npz", **arrays, **{"": rows(3)})
    gear_data.convert(tmp_path / "a.npz", tmp_path / "d", progress=False)
    findings = gear_data.open(tmp_path / "d").manifest.findings
    assert [each["column"] for each in findings if each["code"] == "column-left-out"] == [""]
