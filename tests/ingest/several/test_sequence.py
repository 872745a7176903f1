"""Conversions of several sources, and of several splits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.cli import main
from gear_data.errors import InvalidArgumentError, SplitNeededError, UnknownNameError, UnsupportedColumnError
from gear_data.ingest.engine import tasks
from gear_data.ingest.several.embodiments import embodiment_names
from gear_data.storage import recomputation
from gear_data.storage.writing.shard_writer import ShardWriter
from tests.support.checks import folder_contents
from tests.support.rollouts import Rollout, make_rollouts, write_d4rl, write_episodes

OPTIONS: dict[str, Any] = {"shard_bytes": 1024, "progress": False}


@pytest.fixture
def rollouts() -> list[list[Rollout]]:
    return [make_rollouts(count, seed=count) for count in (17, 5, 11)]


@pytest.fixture
def files(rollouts: list[list[Rollout]], tmp_path: Path) -> list[Path]:
    return [write_d4rl(tmp_path / f"{name}.hdf5", part) for name, part in zip("abc", rollouts, strict=True)]


def _check_steps(dataset: gear_data.Dataset, rollouts: Sequence[Rollout]) -> None:
    assert len(dataset) == len(rollouts)
    for episode, rollout in zip(dataset, rollouts, strict=True):
        for name in ("observations", "actions", "rewards"):
            np.testing.assert_array_equal(episode[name], rollout.columns[name])


def test_episodes_of_all_sources(
    files: list[Path], rollouts: list[list[Rollout]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = gear_data.convert(files, tmp_path / "out", **OPTIONS)
    dataset = gear_data.open(tmp_path / "out")
    _check_steps(dataset, [rollout for part in rollouts for rollout in part])
    assert dataset.episodes["embodiment"].to_list() == ["a"] * 17 + ["b"] * 5 + ["c"] * 11
    assert "split" not in dataset.episodes.columns
    assert len(dataset.filter("embodiment = 'b'")) == 5
    assert report.format == "d4rl" and str(files[1]) in report.reason
    recorded = dataset.manifest.provenance["parts"]
    assert [(part["source"], part["embodiment"]) for part in recorded] == list(zip(map(str, files), "abc", strict=True))
    monkeypatch.setattr(recomputation, "_TOLERANCE", 0.0)
    assert gear_data.verify(tmp_path / "out", deep=True).ok


@pytest.mark.processes
def test_the_bytes_do_not_depend_on_jobs_or_interruptions(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "UNIT_BYTES", 1)  # one task per source
    gear_data.convert(files, tmp_path / "out", **OPTIONS)
    expected = folder_contents(tmp_path / "out")
    assert len(gear_data.open(tmp_path / "out").manifest.provenance["tasks"]) == 3
    gear_data.convert(tuple(map(str, files)), tmp_path / "two", jobs=2, **OPTIONS)
    assert folder_contents(tmp_path / "two") == expected
    write = ShardWriter._write_shard
    written = 0

    def fail(writer: ShardWriter) -> Any:
        nonlocal written
        written += 1
        if written % 2 == 0:
            raise KeyboardInterrupt
        return write(writer)

    monkeypatch.setattr(ShardWriter, "_write_shard", fail)
    for _ in range(20):
        try:
            gear_data.convert(files, tmp_path / "again", resume=True, **OPTIONS)
            break
        except KeyboardInterrupt:
            continue
    assert written > 4
    assert folder_contents(tmp_path / "again") == expected


def test_sources_of_several_formats_and_end_flags(rollouts: list[list[Rollout]], tmp_path: Path) -> None:
    """Flags are completed for each source: HDF5 has timeouts, Parquet has dones."""
    first = write_d4rl(tmp_path / "a.hdf5", rollouts[0])
    second = write_episodes(tmp_path / "b.parquet", rollouts[1])
    gear_data.convert([first, second], tmp_path / "out", columns=["observations", "actions", "rewards"], **OPTIONS)
    singles = []
    for file in (first, second):
        gear_data.convert(file, tmp_path / file.stem, columns=["observations", "actions", "rewards"], **OPTIONS)
        singles.append(gear_data.open(tmp_path / file.stem))
    dataset = gear_data.open(tmp_path / "out")
    expected = [episode for single in singles for episode in single]
    assert len(dataset) == len(expected)
    for episode, other in zip(dataset, expected, strict=True):
        for name in ("observations", "actions", "rewards", "terminated", "truncated", "returns_to_go"):
            np.testing.assert_array_equal(episode[name], other[name])
    counts: dict[str, int] = {}
    for single in singles:
        for finding in single.manifest.findings:
            counts[finding["code"]] = counts.get(finding["code"], 0) + finding["count"]
    found = {finding["code"]: finding["count"] for finding in dataset.manifest.findings}
    assert {code: found.get(code) for code in counts if code != "duplicate-episode"} == {
        code: count for code, count in counts.items() if code != "duplicate-episode"
    }


def test_repair_takes_all_sources(files: list[Path], tmp_path: Path) -> None:
    gear_data.convert(files, tmp_path / "out", **OPTIONS)
    expected = folder_contents(tmp_path / "out")
    for shard in (tmp_path / "out/shards").iterdir():
        shard.unlink()
    assert main(["repair", str(tmp_path / "out"), "--source", *map(str, files)]) == 0
    assert folder_contents(tmp_path / "out") == expected


def test_resume_needs_the_same_sources(files: list[Path], tmp_path: Path) -> None:
    gear_data.convert(files, tmp_path / "out", **OPTIONS)
    assert gear_data.convert(files, tmp_path / "out", resume=True, **OPTIONS).episodes == 33
    with pytest.raises(gear_data.errors.ResumeError, match="source"):
        gear_data.convert(files[:2], tmp_path / "out", resume=True, **OPTIONS)


def test_facts_of_the_source_keep_their_values(tmp_path: Path) -> None:
    for name in "ab":
        episode = {"observations": [[1.0]], "actions": [[1.0]], "rewards": [1.0], "embodiment": f"robot-{name}"}
        datasets.Dataset.from_list([episode]).to_parquet(tmp_path / f"{name}.parquet")
    gear_data.convert([tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "out", **OPTIONS)
    table = gear_data.open(tmp_path / "out").episodes
    assert table["embodiment"].to_list() == ["a", "b"]
    assert table["metadata.embodiment"].cast(str).to_list() == ["robot-a", "robot-b"]


def test_columns_that_differ_are_refused(rollouts: list[list[Rollout]], tmp_path: Path) -> None:
    first = write_d4rl(tmp_path / "a.hdf5", rollouts[0])
    wider = write_d4rl(tmp_path / "b.hdf5", make_rollouts(3, states=5))
    with pytest.raises(UnsupportedColumnError, match=r"b.hdf5, column 'observations'.*\[5\] here.*\[3\] in .*a.hdf5"):
        gear_data.convert([first, wider], tmp_path / "out", **OPTIONS)
    double = write_d4rl(tmp_path / "c.hdf5", rollouts[1])
    with h5py.File(double, "r+") as file:
        values = file["actions"][...].astype(np.float64)
        del file["actions"]
        file["actions"] = values
    with pytest.raises(UnsupportedColumnError, match=r"'actions'.*float64 \[2\] here.*float32 \[2\]"):
        gear_data.convert([first, double], tmp_path / "out", **OPTIONS)
    assert not (tmp_path / "out").exists()


def test_a_list_of_episodes_is_no_list_of_sources(files: list[Path], tmp_path: Path) -> None:
    episode = {name: make_rollouts(1)[0].columns[name] for name in ("observations", "actions", "rewards")}
    assert gear_data.convert([episode, episode], tmp_path / "episodes", **OPTIONS).format == "in-memory"
    assert gear_data.convert([files[0]], tmp_path / "one", **OPTIONS).episodes == 17
    assert "embodiment" not in gear_data.open(tmp_path / "one").episodes.columns
    with pytest.raises(InvalidArgumentError, match=r"only paths.*but holds dict"):
        gear_data.convert([files[0], episode], tmp_path / "mixed", **OPTIONS)
    with pytest.raises(InvalidArgumentError, match="given twice"):
        gear_data.convert([files[0], str(files[0])], tmp_path / "twice", **OPTIONS)


@pytest.mark.parametrize(("sources", "names"), [
    (["/x/a.hdf5", "/x/b.parquet"], ["a", "b"]),
    (["/x/a", "/y/a"], ["x/a", "y/a"]),
    (["/x/a.hdf5", "/x/a.npz"], ["a.hdf5", "a.npz"]),
    (["s3://bucket/v1.0", "user/name"], ["v1.0", "name"]),
])  # fmt: skip
def test_embodiment_names(sources: list[str], names: list[str]) -> None:
    assert embodiment_names(sources) == names


@pytest.fixture
def splits(rollouts: list[list[Rollout]], tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    for name, part in zip(("train", "val", "test"), rollouts, strict=True):
        write_episodes(tmp_path / f"source/{name}-00000-of-00001.parquet", part)
    return tmp_path / "source"


def test_all_splits(splits: Path, rollouts: list[list[Rollout]], tmp_path: Path) -> None:
    with pytest.raises(SplitNeededError, match="--split all"):
        gear_data.convert(splits, tmp_path / "out", **OPTIONS)
    gear_data.convert(splits, tmp_path / "out", split="all", **OPTIONS)
    dataset = gear_data.open(tmp_path / "out")
    assert dataset.episodes["split"].to_list() == ["test"] * 11 + ["train"] * 17 + ["val"] * 5
    assert "embodiment" not in dataset.episodes.columns
    for name, part in zip(("train", "val", "test"), rollouts, strict=True):
        _check_steps(dataset.filter(f"split == '{name}'"), part)
    gear_data.convert(splits, tmp_path / "chosen", split=["val", "train"], **OPTIONS)
    chosen = gear_data.open(tmp_path / "chosen")
    assert chosen.episodes["split"].to_list() == ["val"] * 5 + ["train"] * 17
    gear_data.convert(splits, tmp_path / "one", split=["val"], **OPTIONS)
    assert "split" not in gear_data.open(tmp_path / "one").episodes.columns


def test_splits_of_several_sources(splits: Path, files: list[Path], tmp_path: Path) -> None:
    """A source without splits has the split null."""
    report = gear_data.convert(
        [splits, files[0]], tmp_path / "out", split="all", columns=["observations", "actions", "rewards"], **OPTIONS
    )
    table = gear_data.open(tmp_path / "out").episodes
    assert table["split"].to_list() == ["test"] * 11 + ["train"] * 17 + ["val"] * 5 + [None] * 17
    assert table["embodiment"].to_list() == ["source"] * 33 + ["a"] * 17
    assert report.format == "auto"
    assert gear_data.verify(tmp_path / "out", deep=True).ok


@pytest.mark.parametrize("wrong", [7, [], ["train", "train"], ["all", "train"], ["train", 3], {"train": 1}])
def test_wrong_splits(wrong: Any, splits: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="split"):
        gear_data.convert(splits, tmp_path / "out", split=wrong, **OPTIONS)
    with pytest.raises(InvalidArgumentError, match="no split 'other'"):
        gear_data.convert(splits, tmp_path / "out", split=["train", "other"], **OPTIONS)


def test_splits_of_a_dataset_dict(tmp_path: Path) -> None:
    episode = {"observations": [[1.0]], "actions": [[1.0]], "rewards": [1.0]}
    source = datasets.DatasetDict(
        {name: datasets.Dataset.from_list([episode] * count) for name, count in (("train", 3), ("test", 2))}
    )
    with pytest.raises(SplitNeededError):
        gear_data.convert(source, tmp_path / "out", **OPTIONS)
    gear_data.convert(source, tmp_path / "out", split="all", **OPTIONS)
    assert gear_data.open(tmp_path / "out").episodes["split"].to_list() == ["test"] * 2 + ["train"] * 3


def test_the_command(splits: Path, files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(file) for file in files]
    assert main(["convert", *names, str(tmp_path / "files"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 33
    assert main(["convert", str(splits), str(tmp_path / "out"), "--split", "train", "--split", "val"]) == 0
    assert main(["lint", str(splits), "--split", "all", "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["episodes"] == 33
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "out"), "--where", "split == 'val'", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 5


def _renamed(rollouts: list[list[Rollout]], tmp_path: Path) -> list[Path]:
    """Writes a file whose actions are called `actions`, and one where they are called `torque`."""
    first = write_d4rl(tmp_path / "a.hdf5", rollouts[0])
    table = pq.read_table(write_episodes(tmp_path / "b.parquet", rollouts[1]))
    names = ["torque" if name == "actions" else name for name in table.column_names]
    pq.write_table(table.rename_columns(names), tmp_path / "b.parquet")
    return [first, tmp_path / "b.parquet"]


@pytest.mark.parametrize("more", [{}, {"split": "all"}, {"columns": ["torque"]}, {"columns": ["actions"]}])
def test_a_source_may_lack_a_column_that_is_renamed(
    more: dict[str, Any], rollouts: list[list[Rollout]], tmp_path: Path
) -> None:
    sources = _renamed(rollouts, tmp_path)
    gear_data.convert(sources, tmp_path / "out", rename={"torque": "actions"}, **more, **OPTIONS)
    episodes, expected = list(gear_data.open(tmp_path / "out")), [*rollouts[0], *rollouts[1]]
    assert len(episodes) == len(expected)
    for episode, rollout in zip(episodes, expected, strict=True):
        np.testing.assert_array_equal(episode["actions"], rollout.columns["actions"])


def test_a_source_may_lack_a_column_that_is_chosen(rollouts: list[list[Rollout]], tmp_path: Path) -> None:
    sources = _renamed(rollouts, tmp_path)
    dtype = gear_data.TableOptions(dtype={"torque": "float64"})
    gear_data.convert(sources, tmp_path / "out", columns=["rewards", "torque"], tables=dtype, **OPTIONS)
    ds = gear_data.open(tmp_path / "out")
    assert ds.schema["torque"].dtype == "float64"
    has_torque = [bool(episode["masks.torque"].all()) for episode in ds]
    assert has_torque == [False] * len(rollouts[0]) + [True] * len(rollouts[1])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"columns": ["rewards", "torqe"]}, "torqe"),
        ({"rename": {"torqe": "actions"}}, "torqe"),
        ({"tables": gear_data.TableOptions(dtype={"torqe": "float64"})}, "torqe"),
    ],
)
def test_a_name_that_no_source_has(
    options: dict[str, Any], name: str, rollouts: list[list[Rollout]], tmp_path: Path
) -> None:
    with pytest.raises(UnknownNameError, match=f"no source has a column '{name}'\n  in .*a[.]hdf5: "):
        gear_data.convert(_renamed(rollouts, tmp_path), tmp_path / "out", **options, **OPTIONS)


def test_a_source_without_any_chosen_column_is_named(rollouts: list[list[Rollout]], tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"a\.hdf5: unknown column 'torque'"):
        gear_data.convert(_renamed(rollouts, tmp_path), tmp_path / "out", columns=["torque"], **OPTIONS)
