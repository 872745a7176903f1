"""Tests of LeRobot's subtasks.

`meta/subtasks.parquet` lists them, and each frame has its `subtask_index`. pandas writes and reads the
files, as LeRobot does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import gear_data
from gear_data.errors import CorruptSourceError

_TEXTS = ("approach the apple", "grasp the apple", "lift the apple")
_LENGTHS = (4, 3, 2)
_SUBTASKS = ((0, 0, 1, 2), (1, 0, 1), (2, 2))


def _write(
    folder: Path,
    *,
    numbers: Sequence[Sequence[Any]] = _SUBTASKS,
    texts: Sequence[str] | None = _TEXTS,
    index_name: str | None = "subtask",
    column: str = "subtask_index",
) -> Path:
    (folder / "data/chunk-000").mkdir(parents=True)
    (folder / "meta").mkdir()
    frames = sum(_LENGTHS)
    table = pd.DataFrame(
        {
            "observation.state": list(np.arange(2 * frames, dtype=np.float32).reshape(frames, 2)),
            "action": list(np.zeros((frames, 1), np.float32)),
            "timestamp": np.concatenate([np.arange(n, dtype=np.float32) / 10 for n in _LENGTHS]),
            "frame_index": np.concatenate([np.arange(n) for n in _LENGTHS]),
            "episode_index": np.repeat(np.arange(len(_LENGTHS)), _LENGTHS),
            "index": np.arange(frames),
            "task_index": np.zeros(frames, np.int64),
            "subtask_index": [number for episode in numbers for number in episode],
        }
    )
    table.to_parquet(folder / "data/chunk-000/file-000.parquet", index=False)
    info = {"codebase_version": "v3.0", "fps": 10, "total_episodes": len(_LENGTHS), "total_frames": frames}
    (folder / "meta/info.json").write_text(json.dumps(info))
    pd.DataFrame({"task_index": [0]}, index=["collect"]).to_parquet(folder / "meta/tasks.parquet")
    if texts is not None:
        listed = pd.DataFrame({column: range(len(texts))}, index=pd.Index(texts, name=index_name))
        listed.to_parquet(folder / "meta/subtasks.parquet")
    return folder


def _convert(source: Path, destination: Path, **options: Any) -> tuple[Any, list[tuple[str, str | None, int]]]:
    gear_data.convert(source, destination, progress=False, **options)
    ds = gear_data.open(destination)
    return ds, [(f["code"], f["column"], f["count"]) for f in ds.manifest.findings]


@pytest.mark.parametrize("index_name", ["subtask", None])
def test_every_frame_and_episode_has_its_subtasks(index_name: str | None, tmp_path: Path) -> None:
    source = _write(tmp_path / "s", index_name=index_name)
    ds, findings = _convert(source, tmp_path / "d")
    # LeRobot: item["subtask"] = meta.subtasks.iloc[item["subtask_index"]].name
    listed, texts = pd.read_parquet(source / "meta/subtasks.parquet"), ds.manifest.provenance["metadata"]["subtasks"]
    for i, numbers in enumerate(_SUBTASKS):
        stored = ds.episode(i)["subtask_index"]
        assert stored.tolist() == list(numbers)
        assert [texts[str(number)] for number in stored] == [listed.iloc[number].name for number in numbers]
    assert ds.episodes["subtasks"].to_list() == [list(_TEXTS), [_TEXTS[1], _TEXTS[0]], [_TEXTS[2]]]
    assert ds.episodes["task"].to_list() == ["collect"] * 3
    assert [code for code, _, _ in findings if code != "no-end-flag"] == []
    assert {"task_index", "subtask_index"} <= set(ds.schema.names)


def test_subtasks_of_a_dataset_without_the_column(tmp_path: Path) -> None:
    ds, _ = _convert(_write(tmp_path / "s"), tmp_path / "d", columns=["observation.state"])
    assert "subtask_index" not in ds.schema
    assert ds.episodes["subtasks"].to_list()[2] == [_TEXTS[2]]


def test_numbers_without_texts(tmp_path: Path) -> None:
    numbers = ((0, 0, 9, 2), (7, 7, 7), (-1, 2))
    ds, findings = _convert(_write(tmp_path / "s", numbers=numbers), tmp_path / "d")
    assert ds.episodes["subtasks"].to_list() == [[_TEXTS[0], _TEXTS[2]], None, [_TEXTS[2]]]
    assert ("unknown-task", "subtask_index", 3) in findings
    ds, findings = _convert(_write(tmp_path / "t", texts=None), tmp_path / "e")
    assert "subtasks" not in ds.episodes.columns
    assert "subtasks" not in ds.manifest.provenance["metadata"]


def test_an_export_has_the_subtasks(tmp_path: Path) -> None:
    ds, _ = _convert(_write(tmp_path / "s"), tmp_path / "d")
    gear_data.export(ds, tmp_path / "x", format="lerobot", progress=False)
    listed = pd.read_parquet(tmp_path / "x/meta/subtasks.parquet")
    assert (list(listed.index), listed["subtask_index"].tolist()) == (list(_TEXTS), [0, 1, 2])
    again, _ = _convert(tmp_path / "x", tmp_path / "e")
    assert again.episodes["subtasks"].to_list() == ds.episodes["subtasks"].to_list()
    assert again.manifest.fingerprint == ds.manifest.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"column": "number"}, "should have the column 'subtask_index' and one column of text"),
        ({"numbers": (("a",) * 4, ("b",) * 3, ("c",) * 2)}, "integers that number the subtasks"),
        ({"numbers": ((0.5,) * 4, (1.0,) * 3, (1.0,) * 2)}, "integers that number the subtasks"),
    ],
)
def test_damage_is_a_typed_error(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptSourceError, match=message):
        gear_data.convert(_write(tmp_path / "s", **change), tmp_path / "d", progress=False)
