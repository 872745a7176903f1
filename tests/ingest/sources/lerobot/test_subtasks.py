"""Tests of LeRobot's subtasks, and of its columns of language.

`meta/subtasks.parquet` lists the subtasks, and each frame has its `subtask_index`. pandas writes and reads the files,
as LeRobot does. `language_persistent` has the rows of the whole episode in every frame, `language_events` those of a
frame.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
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


def test_a_merge_says_that_texts_differ(tmp_path: Path) -> None:
    for name, texts in (("a", _TEXTS), ("same", _TEXTS), ("linked", _TEXTS[::-1])):
        _convert(_write(tmp_path / f"{name}-source", texts=texts), tmp_path / name)
    gear_data.open(tmp_path / "linked").drop("task_index").save(tmp_path / "rewritten", progress=False)
    for name in ("same", "linked", "rewritten"):
        report = gear_data.merge([tmp_path / "a", tmp_path / name], tmp_path / f"a-{name}", progress=False)
        said = any("other texts for the numbers of subtasks" in line for line in report.warnings)
        texts = gear_data.open(tmp_path / f"a-{name}").manifest.provenance["metadata"].get("subtasks")
        assert (said, texts is None) == ((False, False) if name == "same" else (True, True))


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


_EVENT = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("style", pa.string()),
        ("camera", pa.string()),
        ("tool_calls", pa.list_(pa.struct([("name", pa.string())]))),
    ]
)
_PERSISTENT = pa.struct([*_EVENT, ("timestamp", pa.float64())])


def _row(content: str, style: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, "style": style, "camera": None, "tool_calls": None, **more}


def _write_language(folder: Path, persistent: Sequence[Any], events: Sequence[Any], declared: bool = True) -> Path:
    _write(folder, texts=None)
    file = folder / "data/chunk-000/file-000.parquet"
    table = pq.read_table(file)
    table = table.append_column("language_persistent", pa.array(persistent, pa.list_(_PERSISTENT)))
    table = table.append_column("language_events", pa.array(events, pa.list_(_EVENT)))
    pq.write_table(table, file, row_group_size=2)
    if declared:
        info = json.loads((folder / "meta/info.json").read_text())
        language = {"dtype": "language", "shape": [1], "names": None}
        features = {"language_persistent": language, "language_events": language}
        for name in table.schema.names[:-2]:
            features[name] = {}
        (folder / "meta/info.json").write_text(json.dumps({**info, "features": features}))
    return folder


def test_rows_of_language(tmp_path: Path) -> None:
    first = [_row("greifen", "subtask", timestamp=0.0), _row("lift", "subtask", timestamp=0.2)]
    third = [_row("go", "plan", timestamp=0.0)]
    persistent = [first] * 4 + [[]] * 3 + [third] * 2
    call = _row("stop", "interjection", camera="observation.images.front", tool_calls=[{"name": "say"}])
    events = [None, [], [call], [], [], [], [call, _row("where?", "vqa")], [], []]
    ds, findings = _convert(_write_language(tmp_path / "s", persistent, events), tmp_path / "d")
    assert [code for code, _, _ in findings if code != "no-end-flag"] == []
    # Facts of the episodes, and texts of the steps; both are JSON of all that the source has.
    facts = [None if each is None else json.loads(each) for each in ds.episodes["language_persistent"].to_list()]
    assert facts == [first, None, third]
    assert "language_persistent" not in ds.schema
    read = [json.loads(text) for episode in ds for text in episode["language_events"]]
    assert read == [each or [] for each in events]
    # A batch has both.
    loader = gear_data.SequenceLoader(
        ds.filter("language_persistent is not null"), 4, context=2, columns=["language_persistent", "language_events"]
    )
    batch, windows = loader.batch(0), loader.windows(0)
    for row, (episode, start, length) in enumerate(
        zip(*(windows[k].tolist() for k in ("episode_id", "start", "length")), strict=True)
    ):
        assert json.loads(batch["language_persistent"][row]) == facts[episode]
        assert batch["language_events"][row] == ds.episode(episode)["language_events"][start : start + length].tolist()


def test_frames_with_other_rows_of_the_episode_are_reported(tmp_path: Path) -> None:
    rows = [[_row(str(number), "plan", timestamp=0.0)] for number in (0, 0, 1, 0, 2, 2, 2, 3, 3)]
    source = _write_language(tmp_path / "s", rows, [[]] * 9, declared=False)
    ds, findings = _convert(source, tmp_path / "d")
    assert ("metadata-disagrees", "language_persistent", 1) in findings
    assert [json.loads(each)[0]["content"] for each in ds.episodes["language_persistent"].to_list()] == ["0", "2", "3"]
    ds, _ = _convert(source, tmp_path / "e", columns=["observation.state", "language_persistent"])
    assert ds.episodes["language_persistent"].null_count() == 0
    ds, _ = _convert(source, tmp_path / "f", columns=["observation.state"])
    assert "language_persistent" not in ds.episodes.columns
