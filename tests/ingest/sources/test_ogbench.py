"""Tests of OGBench's archives.

`ogbench` needs MuJoCo, so it is no test extra. `expected_rows` computes the result of its `load_dataset` from the
layout of the files. Where the package is installed, also without its dependencies, the function itself is compared.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gear_data
from gear_data.errors import BadEpisodeError, InvalidArgumentError, UnknownFormatError
from tests.support.checks import warning_codes

Arrays = dict[str, npt.NDArray[Any]]
_LENGTHS = (5, 1, 9, 3)
NAME = "scene-play-v0"


def trajectories(seed: int = 0, lengths: tuple[int, ...] = _LENGTHS, visual: bool = False) -> list[Arrays]:
    """Returns trajectories of T + 1 rows. The action of each row is unique."""
    rng = np.random.default_rng(seed)
    result = []
    for i, length in enumerate(lengths):
        rows = length + 1
        states = rng.normal(size=(rows, 6)).astype(np.float32)
        result.append(
            {
                "observations": rng.integers(0, 255, (rows, 8, 8, 3), np.uint8) if visual else states,
                "actions": np.stack([np.arange(rows) / 16 + i, np.ones(rows)], 1).astype(np.float32),
                "terminals": np.arange(rows) == length,
                "qpos": rng.normal(size=(rows, 4)).astype(np.float32),
                "qvel": rng.normal(size=(rows, 3)).astype(np.float32),
                "button_states": rng.integers(0, 2, (rows, 2)),
            }
        )
    return result


def joined(parts: list[Arrays]) -> Arrays:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def write(path: Path, parts: list[Arrays], without: tuple[str, ...] = ()) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **{name: values for name, values in joined(parts).items() if name not in without})
    return path


def expected_rows(parts: list[Arrays]) -> Arrays:
    """Returns the arrays of `load_dataset(add_info=True)`, trajectory by trajectory."""
    rows = [{name: values[:-1] for name, values in part.items()} for part in parts]
    for row, part in zip(rows, parts, strict=True):
        row["next_observations"] = part["observations"][1:]
        row["terminals"] = np.arange(len(row["actions"])) == len(row["actions"]) - 1
    return joined(rows)


def steps_of(dataset: gear_data.Dataset, name: str) -> npt.NDArray[Any]:
    return np.concatenate([np.asarray(dataset.episode(i)[name]) for i in range(dataset.num_episodes)])


@pytest.fixture
def real_ogbench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports `ogbench.utils` without the package's environments, which need MuJoCo."""
    spec = importlib.util.find_spec("ogbench")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("ogbench is not installed")
    package = ModuleType("ogbench")
    package.__path__ = list(spec.submodule_search_locations)
    for name in ("ogbench", "ogbench.utils", "ogbench.relabel_utils"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "ogbench", package)
    return importlib.import_module("ogbench.utils")


def test_rows_are_those_of_load_dataset(tmp_path: Path) -> None:
    parts = trajectories()
    source = write(tmp_path / f"{NAME}.npz", parts)
    report = gear_data.convert(
        source, tmp_path / "d", columns=["observations", "actions", "qpos", "qvel", "button_states"]
    )
    assert report.format == "ogbench"
    assert not warning_codes(report)
    dataset, expected = gear_data.open(tmp_path / "d"), expected_rows(parts)
    assert dataset.episodes["length"].to_list() == list(_LENGTHS)
    for name in ("observations", "actions", "qpos", "qvel", "button_states"):
        assert steps_of(dataset, name).dtype == expected[name].dtype
        np.testing.assert_array_equal(steps_of(dataset, name), expected[name], name)
    np.testing.assert_array_equal(steps_of(dataset, "truncated"), expected["terminals"])
    assert not steps_of(dataset, "terminated").any()
    for i, part in enumerate(parts):
        np.testing.assert_array_equal((dataset.final(i) or {})["observations"], part["observations"][-1])


def test_the_real_load_dataset_agrees(real_ogbench: Any, tmp_path: Path) -> None:
    parts = trajectories()
    source = str(write(tmp_path / f"{NAME}.npz", parts))
    loaded, expected = real_ogbench.load_dataset(source, add_info=True), expected_rows(parts)
    assert loaded.keys() == expected.keys()
    for name, values in loaded.items():
        np.testing.assert_array_equal(values, expected[name], name)
    gear_data.convert(source, tmp_path / "d")
    dataset = gear_data.open(tmp_path / "d")
    compact = real_ogbench.load_dataset(source, compact_dataset=True)
    valids = np.concatenate([np.append(np.ones(n), 0) for n in dataset.episodes["length"]])
    np.testing.assert_array_equal(compact["valids"], valids)
    finals = [(dataset.final(i) or {})["observations"][None] for i in range(dataset.num_episodes)]
    rows = [part for i, final in enumerate(finals) for part in (dataset.episode(i)["observations"], final)]
    np.testing.assert_array_equal(compact["observations"], np.concatenate(rows))


@pytest.mark.parametrize("visual", [False, True])
def test_batches_are_rows_of_load_dataset(visual: bool, tmp_path: Path) -> None:
    parts = trajectories(visual=visual)
    gear_data.convert(write(tmp_path / f"visual-{NAME}.npz", parts), tmp_path / "d")
    expected = expected_rows(parts)
    number = {tuple(action): row for row, action in enumerate(expected["actions"].tolist())}
    columns = ["observations", "actions", "truncated", "next_observations"]
    dataset = gear_data.open(tmp_path / "d")
    seen = set()
    for batch in gear_data.SequenceLoader(dataset, batch_size=16, context=1, columns=columns, steps=20, seed=1):
        rows = [number[tuple(action)] for action in batch["actions"][:, 0].tolist()]
        seen.update(rows)
        for name in ("observations", "next_observations"):
            values = np.asarray(batch[name])[:, 0]
            assert values.dtype == (np.uint8 if visual else np.float32)
            np.testing.assert_array_equal(values, expected[name][rows], name)
        np.testing.assert_array_equal(np.asarray(batch["truncated"])[:, 0], expected["terminals"][rows])
        assert np.asarray(batch["next_observations_mask"]).all()
    assert len(seen) == sum(_LENGTHS)


def test_the_state_is_read_on_request_only(tmp_path: Path) -> None:
    source = write(tmp_path / f"{NAME}.npz", trajectories())
    report = gear_data.convert(source, tmp_path / "d")
    assert {"qpos", "qvel", "button_states"}.isdisjoint(gear_data.open(tmp_path / "d").schema.names)
    assert "--columns also reads qpos, qvel, button_states" in report.reason
    gear_data.convert(source, tmp_path / "renamed", rename={"qpos": "infos.qpos"})
    assert "infos.qpos" in gear_data.open(tmp_path / "renamed").schema.names


def test_a_folder_of_both_splits_needs_a_choice(tmp_path: Path) -> None:
    train, val = trajectories(seed=1), trajectories(seed=2, lengths=(4, 2))
    write(tmp_path / f"in/{NAME}.npz", train)
    write(tmp_path / f"in/{NAME}-val.npz", val)
    with pytest.raises(InvalidArgumentError, match=r"several splits: train, val.*\n?.*--split"):
        gear_data.convert(tmp_path / "in", tmp_path / "d")
    with pytest.raises(InvalidArgumentError, match=r"no split 'test'(.|\n)*train, val"):
        gear_data.convert(tmp_path / "in", tmp_path / "d", split="test")
    for split, parts in (("train", train), ("val", val)):
        gear_data.convert(tmp_path / "in", tmp_path / split, split=split)
        dataset = gear_data.open(tmp_path / split)
        np.testing.assert_array_equal(steps_of(dataset, "observations"), expected_rows(parts)["observations"])
        assert set(dataset.episodes["source"]) == {f"{NAME}{'' if split == 'train' else '-val'}.npz"}


def relabelled(parts: list[Arrays]) -> list[Arrays]:
    """Adds rewards and masks (`-singletask`), both functions of the state in their row."""
    successes = [part["qpos"][:, 0] > 0 for part in parts]
    return [
        {**part, "rewards": success.astype(np.float32) - 1, "masks": 1 - success.astype(np.float32)}
        for part, success in zip(parts, successes, strict=True)
    ]


@pytest.mark.parametrize("form", ["stored", "compact", "regular"])
def test_rewards_and_masks_of_every_form(form: str, tmp_path: Path) -> None:
    parts = relabelled(trajectories())
    expected, saved = expected_rows(parts), parts
    if form == "compact":
        saved = [{**part, "valids": 1.0 - part["terminals"]} for part in parts]
        for part in saved:
            part["terminals"] = np.arange(len(part["terminals"])) >= len(part["terminals"]) - 2
    arrays = expected if form == "regular" else joined(saved)
    np.savez(tmp_path / "cube-single-play-v0.npz", **arrays)
    report = gear_data.convert(tmp_path / "cube-single-play-v0.npz", tmp_path / "d")
    assert report.format == "ogbench"
    dataset = gear_data.open(tmp_path / "d")
    assert dataset.episodes["length"].to_list() == list(_LENGTHS)
    for name in ("observations", "actions", "rewards", "masks"):
        np.testing.assert_array_equal(steps_of(dataset, name), expected[name], name)
    np.testing.assert_array_equal(steps_of(dataset, "truncated"), expected["terminals"])
    assert not steps_of(dataset, "terminated").any()
    for i, part in enumerate(parts):
        np.testing.assert_array_equal((dataset.final(i) or {})["observations"], part["observations"][-1])


_STATE = ("qpos", "qvel", "button_states")


@pytest.mark.parametrize("count", [1, 2])
def test_terminals_that_may_be_either_are_refused(count: int, tmp_path: Path) -> None:
    parts = trajectories(lengths=(5, 2, 9, 3))
    for i in range(count):
        write(tmp_path / f"in/rollouts_{i}.npz", parts, without=_STATE)
    with pytest.raises(UnknownFormatError, match=r"two things(.|\n)*--format ogbench(.|\n)*--end-column terminals"):
        gear_data.convert(tmp_path / "in", tmp_path / "d")
    report = gear_data.convert(tmp_path / "in", tmp_path / "ogbench", format="ogbench")
    assert (report.episodes, report.steps) == (4 * count, 19 * count)
    report = gear_data.convert(
        tmp_path / "in", tmp_path / "npz", episodes=gear_data.EpisodeBoundaries(end_column="terminals")
    )
    assert (report.episodes, report.steps) == (4 * count, 23 * count)


def test_masks_beside_terminals_are_unclear_in_other_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "replay.npz", **expected_rows(relabelled(trajectories())))
    with pytest.raises(UnknownFormatError, match="two things"):
        gear_data.convert(tmp_path / "replay.npz", tmp_path / "d")


def test_the_name_is_evidence_where_there_is_no_state(tmp_path: Path) -> None:
    source = write(tmp_path / "powderworld-easy-play-v0.npz", trajectories(visual=True), without=_STATE)
    report = gear_data.convert(source, tmp_path / "d")
    assert (report.format, report.steps) == ("ogbench", sum(_LENGTHS))


def test_several_files_are_one_dataset_and_several_datasets_are_not(tmp_path: Path) -> None:
    for i in range(2):
        write(tmp_path / f"in/cube-octuple-play-v0-00{i}.npz", trajectories(seed=i))
        write(tmp_path / f"in/cube-octuple-play-v0-00{i}-val.npz", trajectories(seed=i + 10))
    assert gear_data.convert(tmp_path / "in", tmp_path / "d", split="train").episodes == 2 * len(_LENGTHS)
    assert gear_data.convert(tmp_path / "in", tmp_path / "v", split="val").episodes == 2 * len(_LENGTHS)
    write(tmp_path / f"in/{NAME}.npz", trajectories())
    with pytest.raises(UnknownFormatError, match="several datasets: cube-octuple-play-v0, scene-play-v0"):
        gear_data.convert(tmp_path / "in", tmp_path / "both", split="train")


def test_a_file_cut_inside_a_trajectory(tmp_path: Path) -> None:
    parts = trajectories()
    parts[-1] = {name: values[:-1] for name, values in parts[-1].items()}
    report = gear_data.convert(write(tmp_path / f"{NAME}.npz", parts), tmp_path / "d")
    dataset = gear_data.open(tmp_path / "d")
    assert "unfinished-episode" in warning_codes(report)
    assert dataset.episodes["length"].to_list() == [*_LENGTHS[:-1], _LENGTHS[-1] - 1]
    np.testing.assert_array_equal((dataset.final(3) or {})["observations"], parts[-1]["observations"][-1])


def test_a_trajectory_without_a_step(tmp_path: Path) -> None:
    parts = trajectories(lengths=(4, 0, 3))
    source = write(tmp_path / f"{NAME}.npz", parts)
    with pytest.raises(BadEpisodeError, match=r"'terminals', row 5: .*no step"):
        gear_data.convert(source, tmp_path / "d")
    report = gear_data.convert(source, tmp_path / "skipped", on_bad_episode="skip")
    assert (report.episodes, report.steps) == (2, 7)
    np.testing.assert_array_equal(
        steps_of(gear_data.open(tmp_path / "skipped"), "actions"), expected_rows([parts[0], parts[2]])["actions"]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"terminals": np.full(22, 2)}, r"'terminals', row 0: holds 2, but a flag must be 0 or 1"),
        ({"terminals": np.zeros((22, 2))}, r"'terminals': holds float64 \(22, 2\)"),
        ({"valids": np.zeros(5)}, r"'valids': holds float64 \(5,\)"),
        ({"actions": np.zeros((21, 2))}, r"'actions', row 21: has 21 rows"),
    ],
)
def test_arrays_that_do_not_fit(change: Arrays, message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / f"{NAME}.npz", **{**joined(trajectories()), **change})
    with pytest.raises(BadEpisodeError, match=message):
        gear_data.convert(tmp_path / f"{NAME}.npz", tmp_path / "d")


def test_another_archive_given_as_ogbench(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", observations=np.zeros((3, 2)), actions=np.zeros(3))
    with pytest.raises(UnknownFormatError, match="no array 'terminals'"):
        gear_data.convert(tmp_path / "a.npz", tmp_path / "d", format="ogbench")


@pytest.mark.parametrize("name", [f"{NAME}.npz", "replay.npz"])
def test_an_export_is_no_archive_of_ogbench(name: str, rollouts_path: Path, tmp_path: Path) -> None:
    """Beside `timeouts`, `terminals` are terminal steps: as OGBench's ends, they would join the truncated episodes."""
    dataset = gear_data.open(rollouts_path).with_column("valids", np.ones(gear_data.open(rollouts_path).num_steps))
    gear_data.export(dataset, tmp_path / name, "npz", progress=False)
    report = gear_data.convert(tmp_path / name, tmp_path / "d", progress=False)
    assert report.format == "npz"
    assert gear_data.open(tmp_path / "d").fingerprint == dataset.fingerprint
    with pytest.raises(UnknownFormatError, match=r"(?s)'timeouts'.*leave --format out"):
        gear_data.convert(tmp_path / name, tmp_path / "e", format="ogbench", progress=False)
