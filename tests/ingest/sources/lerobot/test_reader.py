"""Tests of LeRobot v2.1 and v3.0."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.errors import CorruptSourceError, InvalidArgumentError, UnknownFormatError
from gear_data.ingest.episode_boundaries import EpisodeBoundaries
from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.registry import open_source
from gear_data.ingest.sources.tables import read_units
from gear_data.storage.episode_block import BEGIN, END

Rollouts = Sequence[Any]
LINT = ("one-step-episode", "observation-jump", "duplicate-episode")
FPS = 30
TASKS = ("pick", "place")


def frames(s: Any, rollouts: Rollouts) -> pa.Table:
    """Returns all frames with LeRobot's own `datasets` features."""
    lengths = [len(r) for r in rollouts]
    number = s.episode_numbers(rollouts)
    within = np.concatenate([np.arange(n) for n in lengths])
    flat = {name: np.concatenate([r.columns[name] for r in rollouts]) for name in rollouts[0].columns}
    return pa.table(
        {
            "observation.state": s.nested(flat["observations"]),
            "action": s.nested(flat["actions"]),
            "next.reward": flat["rewards"],
            "next.terminated": flat["terminated"],
            "next.truncated": flat["truncated"],
            "timestamp": (within / FPS).astype(np.float32),
            "frame_index": within,
            "episode_index": number,
            "index": np.arange(len(number)),
            "task_index": number % 2,
        }
    )


def features(rollouts: Rollouts) -> dict[str, Any]:
    def feature(dtype: str, *shape: int) -> dict[str, Any]:
        return {"dtype": dtype, "shape": list(shape), "names": None}

    return {
        "observation.state": feature("float32", rollouts[0].columns["observations"].shape[1]),
        "action": feature("float32", rollouts[0].columns["actions"].shape[1]),
        "next.reward": feature("float32", 1),
        "next.terminated": feature("bool", 1),
        "next.truncated": feature("bool", 1),
        "timestamp": feature("float32", 1),
        **{name: feature("int64", 1) for name in ("frame_index", "episode_index", "index", "task_index")},
    }


def write_v3(
    s: Any,
    folder: Path,
    rollouts: Rollouts,
    *,
    table: pa.Table | None = None,
    info: dict[str, Any] | None = None,
    cuts: Sequence[int] = (),
    index_name: str | None = None,
    entries: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = lambda entries: entries,
) -> Path:
    """Writes a v3.0 folder with two data files per chunk.

    `cuts` are the rows at which a new data file begins.
    """
    table = frames(s, rollouts) if table is None else table
    ends = np.cumsum([len(r) for r in rollouts]).tolist()
    borders = [0, *cuts, len(table)]
    for i in range(len(borders) - 1):
        part = table.slice(borders[i], borders[i + 1] - borders[i])
        s.write_parquet(folder / f"data/chunk-{i // 2:03d}/file-{i % 2:03d}.parquet", part, row_group=7)
    listed = []
    for i, r in enumerate(rollouts):
        file = sum(cut <= ends[i] - len(r) for cut in cuts)
        listed.append(
            {
                "episode_index": i,
                "tasks": [TASKS[i % 2]],
                "length": len(r),
                "data/chunk_index": file // 2,
                "data/file_index": file % 2,
                "dataset_from_index": ends[i] - len(r),
                "dataset_to_index": ends[i],
                "videos/observation.images.top/from_timestamp": 0.5,
                "stats/action/mean": [0.0, 0.0],
                "operator": f"person {i % 3}",
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
            }
        )
    listed = entries(listed)
    half = (len(listed) + 1) // 2
    for i, part in enumerate((listed[:half], listed[half:])):
        if part:
            s.write_parquet(folder / f"meta/episodes/chunk-000/file-{i:03d}.parquet", pa.Table.from_pylist(part))
    tasks = pd.DataFrame({"task_index": range(len(TASKS))}, index=pd.Index(TASKS, name=index_name))
    tasks.to_parquet(folder / "meta/tasks.parquet")
    known = {
        "codebase_version": "v3.0",
        "robot_type": "arm",
        "fps": FPS,
        "total_episodes": len(rollouts),
        "total_frames": len(table),
        "chunks_size": 2,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "features": features(rollouts),
    }
    (folder / "meta/info.json").write_text(json.dumps({**known, **(info or {})}))
    return folder


def converted(source: Path, destination: Path, **options: Any) -> tuple[Any, dict[tuple[str, str | None], Any]]:
    """Converts a source; returns the dataset, and findings by code and column.

    Findings that episodes of any format may have are left out.
    """
    gear_data.convert(source, destination, **options)
    ds = gear_data.open(destination)
    return ds, {(f["code"], f["column"]): f for f in ds.manifest.findings if f["code"] not in LINT}


def without_extras(ds: Any) -> set[str]:
    return set(ds.schema.names) - {"returns_to_go", "timestamp", "task_index"}


@pytest.mark.parametrize("index_name", [None, "task"])
def test_v3_comes_out_as_it_went_in(index_name: str | None, sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    ends = np.cumsum([len(r) for r in rollouts])
    # The second cut is inside an episode. LeRobot does not write such files, but they can be read.
    source = write_v3(sources, tmp_path / "s", rollouts, cuts=(int(ends[4]), int(ends[9]) + 1), index_name=index_name)
    ds, findings = converted(source, tmp_path / "d")
    assert without_extras(ds) == {"observations", "actions", "rewards", "terminated", "truncated"}
    assert ds.num_episodes == len(rollouts)
    for i, r in enumerate(rollouts):
        for name, expected in r.columns.items():
            np.testing.assert_array_equal(ds.episode(i)[name], expected)
    table = ds.episodes
    assert table["task"].to_list() == [TASKS[i % 2] for i in range(len(rollouts))]
    assert table["operator"].to_list() == [f"person {i % 3}" for i in range(len(rollouts))]
    assert table["episode_index"].to_list() == list(range(len(rollouts)))
    # Positions in LeRobot's files, and statistics, are not facts about an episode.
    assert not [name for name in table.columns if "/" in name or name.startswith("dataset_")]
    assert table["source"][10] == "data/chunk-000/file-001.parquet"
    assert table["source"][12] == "data/chunk-001/file-000.parquet"
    assert findings == {}
    assert ds.manifest.provenance["metadata"]["fps"] == FPS


def test_v21_and_v3_are_equal(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    old = sources.write_lerobot(tmp_path / "old", rollouts, info={"features": features(rollouts)})
    new = write_v3(sources, tmp_path / "new", rollouts, cuts=(20, 40))
    prints = {gear_data.convert(source, tmp_path / source.name[::-1]).fingerprint for source in (old, new)}
    assert len(prints) == 1


def test_units_are_the_whole(sources: Any, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_units, "UNIT_BYTES", 2000)
    ends = np.cumsum([len(r) for r in rollouts]).tolist()

    def longer(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**entry, "length": entry["length"] + entry["episode_index"] % 2} for entry in entries]

    source = write_v3(sources, tmp_path / "s", rollouts, cuts=(ends[3], ends[20]), entries=longer)
    opened, name, _ = open_source(locate(str(source), None), "auto", SourceOptions())
    assert name == "lerobot"
    assert len(opened.units()) > 2
    stops = [*(unit.position for unit in opened.units()), END][1:]

    def read(spans: Sequence[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
        opened.findings.restore([])
        episodes, findings = [], {}
        for start, stop in spans:
            opened.findings.restore([])
            opened.resume_state.clear()
            for block in opened.blocks(start, stop):
                offsets = block.offsets
                for i in range(len(block)):
                    data = block.columns["observations"][offsets[i] : offsets[i + 1]].tobytes()
                    episodes.append((data, block.sources[i], int(block.rows[i]), block.metadata["task"][i]))
            for f in opened.findings:
                findings[f.code, f.column] = findings.get((f.code, f.column), 0) + f.count
        return episodes, sorted(findings.items())

    starts = [unit.position for unit in opened.units()]
    assert read(list(zip(starts, stops, strict=True))) == read([(BEGIN, END)])
    assert read([(BEGIN, END)])[1] == [(("metadata-disagrees", "length"), len(rollouts) // 2)]


def test_rows_are_trusted_over_the_list_of_episodes(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    def change(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        entries[3]["length"] += 2
        entries[5]["length"] -= 1
        entries[7]["dataset_to_index"] += 4
        del entries[9]
        return [*entries, entries[0]]

    source = write_v3(sources, tmp_path / "s", rollouts, entries=change, info={"total_frames": 7})
    ds, findings = converted(source, tmp_path / "d")
    assert ds.lengths.tolist() == [len(r) for r in rollouts]
    assert ds.episodes["operator"][9] is None
    assert ds.episodes["task"][9] == TASKS[1]
    starts = np.cumsum([0, *(len(r) for r in rollouts)])
    found = {column: (f["count"], f["row"]) for (code, column), f in findings.items() if code == "metadata-disagrees"}
    assert found.pop("length") == (2, starts[3])
    # Entry 8 begins before entry 7 ends; entry 10 follows a gap.
    assert found.pop("dataset_from_index") == (2, 8)
    assert found.pop("dataset_to_index") == (1, starts[7])
    assert found.pop("total_episodes") == (1, None)
    assert found.pop("total_frames") == (1, None)
    # One episode is not listed, and one is listed twice.
    assert found.pop("episode_index")[0] == 2
    assert found == {}


def test_a_listed_file_is_missing(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    ends = np.cumsum([len(r) for r in rollouts]).tolist()
    source = write_v3(sources, tmp_path / "s", rollouts, cuts=(ends[3], ends[8]))
    (source / "data/chunk-000/file-001.parquet").unlink()
    ds, findings = converted(source, tmp_path / "d")
    assert ds.episodes["episode_index"].to_list() == [0, 1, 2, 3, *range(9, len(rollouts))]
    absent = findings["listed-episode-absent", None]
    assert absent["count"] == 5
    assert "first episode 4" in absent["message"]

    old = sources.write_lerobot(tmp_path / "old", rollouts[:4])
    lines = [{"episode_index": i, "tasks": ["pick"], "length": len(r)} for i, r in enumerate(rollouts[:4])]
    (old / "meta/episodes.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (old / "data/chunk-000/episode_000002.parquet").unlink()
    _, findings = converted(old, tmp_path / "e")
    assert findings["listed-episode-absent", None]["count"] == 1


def test_v21_facts_and_lengths(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    source = sources.write_lerobot(tmp_path / "s", rollouts[:3])
    lines: list[dict[str, Any]] = [{"episode_index": i, "length": len(r)} for i, r in enumerate(rollouts[:3])]
    lines[1] |= {"success": True, "scene": "kitchen", "length": 99, "poses": [1, 2]}
    (source / "meta/episodes.jsonl").write_text("\n".join(map(json.dumps, lines[::-1])))
    ds, findings = converted(source, tmp_path / "d")
    assert ds.episodes["success"].to_list() == [None, True, None]
    assert ds.episodes["scene"].to_list() == [None, "kitchen", None]
    assert ds.episodes["poses"].to_list() == [None, [1, 2], None]
    length = findings["metadata-disagrees", "length"]
    assert (length["count"], length["file"]) == (1, "data/chunk-000/episode_000001.parquet")


def test_tasks(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    """One episode has several tasks, and one task has no text.

    The list of episodes then gives the text.
    """
    some = [r for r in rollouts if len(r) > 2][:4]
    table = frames(sources, some)
    ends = np.cumsum([len(r) for r in some]).tolist()
    tasks = np.zeros(len(table), np.int64)
    tasks[ends[0] + 1 : ends[1]] = 1
    tasks[ends[1] : ends[3]] = 17
    table = table.set_column(table.column_names.index("task_index"), "task_index", pa.array(tasks))

    def change(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        entries[3]["tasks"] = []
        return entries

    source = write_v3(sources, tmp_path / "s", some, table=table, entries=change)
    ds, findings = converted(source, tmp_path / "d", columns=["observations", "actions", "rewards"])
    assert without_extras(ds) == set(ds.schema.names) - {"returns_to_go"}  # task_index was not requested
    assert ds.episodes["task"].to_list() == ["pick", "pick", "pick", None]
    assert (findings["several-tasks", "task_index"]["count"], findings["several-tasks", "task_index"]["row"]) == (
        1,
        ends[0],
    )
    assert (findings["unknown-task", "task_index"]["count"], findings["unknown-task", "task_index"]["row"]) == (
        2,
        ends[1],
    )


def test_only_requested_columns(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    source = write_v3(sources, tmp_path / "s", rollouts[:3])
    ds, _ = converted(source, tmp_path / "d", columns=["action", "time"], rename={"timestamp": "time"})
    assert set(ds.schema.names) == {"actions", "time", "terminated", "truncated"}
    assert ds.episodes["task"].to_list() == ["pick", "place", "pick"]


@pytest.mark.parametrize(("shift", "irregular"), [(0.00005, False), (0.002, True), (float("nan"), True)])
def test_timestamps(shift: float, irregular: bool, sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    """LeRobot's tolerance is 1e-4 s. Late in an episode, float32 is coarser."""
    some = [r for r in rollouts if len(r) > 2][:3]
    table = frames(sources, some)
    stamps = np.concatenate([5000 + np.arange(len(r)) / FPS for r in some]).astype(np.float32)
    if irregular or shift:
        stamps = np.concatenate([np.arange(len(r)) / FPS for r in some])
        stamps[len(some[0]) + 1] += shift
        stamps = stamps.astype(np.float32)
    table = table.set_column(table.column_names.index("timestamp"), "timestamp", pa.array(stamps))
    _, findings = converted(write_v3(sources, tmp_path / "s", some, table=table), tmp_path / "d")
    assert (("timestamps-irregular", "timestamp") in findings) == irregular
    if irregular:
        found = findings["timestamps-irregular", "timestamp"]
        assert (found["count"], found["row"]) == (1, len(some[0]))
        assert "0.0333333 s" in found["message"]


def test_timestamps_late_in_an_episode(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    some = rollouts[:3]
    table = frames(sources, some)
    stamps = np.concatenate([5000 + np.arange(len(r)) / FPS for r in some]).astype(np.float32)
    assert np.abs(np.diff(stamps[len(some[0]) : len(some[0]) + len(some[1])]) - 1 / FPS).max() > 1e-4
    table = table.set_column(table.column_names.index("timestamp"), "timestamp", pa.array(stamps))
    _, findings = converted(write_v3(sources, tmp_path / "s", some, table=table), tmp_path / "d")
    assert findings == {}


def test_features_are_checked(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    known = features(rollouts)
    known["action"]["dtype"] = "float64"
    known["observation.state"]["shape"] = [7]
    del known["next.reward"]
    known["observation.effort"] = {"dtype": "float32", "shape": [3], "names": None}
    source = write_v3(sources, tmp_path / "s", rollouts, info={"features": known})
    ds, findings = converted(source, tmp_path / "d")
    assert "observations.effort" not in ds.schema.names
    assert findings["declared-column-absent", "observation.effort"]["file"] == "meta/info.json"
    assert "float64" in findings["metadata-disagrees", "action"]["message"]
    assert "(7,)" in findings["metadata-disagrees", "observation.state"]["message"]
    assert "not declared" in findings["metadata-disagrees", "next.reward"]["message"]
    assert len(findings) == 4
    assert ds.schema["actions"].dtype == "float32"


def test_columns_as_the_library_types_them(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    """Images, matrices and numbers, written by `datasets` with LeRobot's features."""
    some = rollouts[:3]
    steps = sum(len(r) for r in some)
    rng = np.random.default_rng(0)
    matrices = rng.normal(size=(steps, 2, 3)).astype(np.float32)
    single = rng.normal(size=steps).astype(np.float32)
    payload = [b"\x00frame %d" % i for i in range(steps)]
    base = frames(sources, some).drop_columns(["next.terminated", "next.truncated", "next.reward", "action"])
    typed = datasets.Features(
        {
            **datasets.Features.from_arrow_schema(base.schema),
            "observation.state": datasets.Sequence(datasets.Value("float32"), length=3),
            "observation.images.top": datasets.Image(decode=False),
            "observation.grid": datasets.Array2D((2, 3), "float32"),
            "action": datasets.Value("float32"),
        }
    )
    columns = base.to_pydict() | {
        "observation.images.top": [{"bytes": data, "path": None} for data in payload],
        "observation.grid": list(matrices),
        "action": single,
    }
    known = {name: f for name, f in features(some).items() if name in base.column_names} | {
        "observation.images.top": {"dtype": "image", "shape": [48, 64, 3], "names": None},
        "observation.grid": {"dtype": "float32", "shape": [2, 3], "names": None},
        "action": {"dtype": "float32", "shape": [1], "names": ["motor"]},
    }
    source = write_v3(sources, tmp_path / "s", some, info={"features": known})
    written = source / "data/chunk-000/file-000.parquet"
    datasets.Dataset.from_dict(columns, features=typed).to_parquet(written)
    assert pa.types.is_struct(pq.read_schema(written).field("observation.images.top").type)
    ds, findings = converted(source, tmp_path / "d", keep_encoded=True)
    assert ds.schema["observations"].shape == (3,)
    assert ds.schema["actions"].shape == ()  # LeRobot's files store the shape [1] as a scalar
    assert ds.schema["observations.images.top"].dtype == "binary"
    np.testing.assert_array_equal(np.concatenate([ds.episode(i)["observations.grid"] for i in range(3)]), matrices)
    np.testing.assert_array_equal(np.concatenate([ds.episode(i)["actions"] for i in range(3)]), single)
    # Without rewards and flags the ends are unknown, so episodes count as truncated.
    assert "rewards" not in ds.schema.names
    assert ds.episodes["truncated"].all()
    assert not ds.episodes["terminated"].any()
    assert not [key for key in findings if key[0] in ("metadata-disagrees", "declared-column-absent")]


def test_templates_are_not_followed(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    """A path template in info.json leaves the folder, and so does a file index."""
    write_v3(sources, tmp_path / "other", rollouts[:2])

    def change(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**entry, "data/chunk_index": -1} for entry in entries]

    path = "../other/data/chunk-000/file-000.parquet"
    source = write_v3(sources, tmp_path / "s", rollouts[5:9], info={"data_path": path}, entries=change)
    ds, findings = converted(source, tmp_path / "d")
    assert ds.lengths.tolist() == [len(r) for r in rollouts[5:9]]
    assert findings["listed-episode-absent", None]["count"] == 4


def test_old_layout_is_refused_with_a_hint(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    sources.write_parquet(tmp_path / "s/data/train-00000-of-00001.parquet", frames(sources, rollouts))
    (tmp_path / "s/meta_data").mkdir()
    (tmp_path / "s/meta_data/info.json").write_text('{"codebase_version": "v1.6", "fps": 30}')
    with pytest.raises(UnknownFormatError, match=r"v1\.6 is not supported") as error:
        gear_data.convert(tmp_path / "s", tmp_path / "d")
    assert "LeRobot's own converters" in str(error.value)


def test_a_folder_of_something_else_is_not_claimed(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    sources.write_steps(tmp_path / "s/data/steps.parquet", rollouts)
    (tmp_path / "s/meta").mkdir()
    (tmp_path / "s/meta/info.json").write_text('{"author": "someone"}')
    assert gear_data.convert(tmp_path / "s", tmp_path / "d").format == "step-rows"


@pytest.mark.parametrize(
    ("name", "text", "column"),
    [
        ("meta/info.json", '{"codebase_version": "v3.0", "fps": "fast"}', "fps"),
        ("meta/info.json", '{"codebase_version": "v3.0", "total_frames": 1e300}', "total_frames"),
        ("meta/info.json", '{"codebase_version": "v3.0", "features": [1]}', "features"),
        ("meta/info.json", "[" * 100_000, None),
        ("meta/info.json", "\xff\xfe", None),
        ("meta/tasks.parquet", "PAR1", None),
        ("meta/episodes/chunk-000/file-000.parquet", "no", None),
    ],
)
def test_damaged_metadata(
    name: str, text: str, column: str | None, sources: Any, rollouts: Rollouts, tmp_path: Path
) -> None:
    source = write_v3(sources, tmp_path / "s", rollouts[:2])
    (source / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(CorruptSourceError) as error:
        gear_data.convert(source, tmp_path / "d")
    assert (error.value.file, error.value.column) == (name, column)


@pytest.mark.parametrize(
    ("entry", "column"),
    [
        ({"episode_index": None}, "episode_index"),
        ({"episode_index": 1 << 70}, "episode_index"),
        ({"length": "long"}, "length"),
        ({"tasks": "pick"}, "tasks"),
        ({"tasks": [1]}, "tasks"),
    ],
)
def test_damaged_list_of_episodes(
    entry: dict[str, Any], column: str, sources: Any, rollouts: Rollouts, tmp_path: Path
) -> None:
    source = sources.write_lerobot(tmp_path / "s", rollouts[:2])
    lines = [{"episode_index": 0}, {"episode_index": 1, **entry}]
    (source / "meta/episodes.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(CorruptSourceError) as error:
        gear_data.convert(source, tmp_path / "d")
    assert (error.value.file, error.value.column, error.value.row) == ("meta/episodes.jsonl", column, 1)


def test_frames_without_a_number_and_another_number(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    source = write_v3(sources, tmp_path / "s", rollouts)
    with pytest.raises(InvalidArgumentError, match="numbered by 'episode_index'"):
        open_source(
            locate(str(source), None), "lerobot", SourceOptions(episodes=EpisodeBoundaries(episode_column="index"))
        )
    table = frames(sources, rollouts).drop_columns(["episode_index"])
    bare = write_v3(sources, tmp_path / "bare", rollouts, table=table)
    with pytest.raises(CorruptSourceError) as error:
        gear_data.convert(bare, tmp_path / "d")
    assert (error.value.column, error.value.file) == ("episode_index", "data/chunk-000/file-000.parquet")
    text = frames(sources, rollouts)
    texts = pa.array(["pick"] * len(text))
    text = text.set_column(text.column_names.index("task_index"), "task_index", texts)
    with pytest.raises(CorruptSourceError) as error:
        gear_data.convert(write_v3(sources, tmp_path / "text", rollouts, table=text), tmp_path / "d")
    assert error.value.column == "task_index"


def test_a_real_robot(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "lerobot_v21_g1"
    with pytest.raises(CorruptSourceError, match="every video of the camera is missing") as error:
        gear_data.convert(source, tmp_path / "d", on_bad_episode="skip")
    assert error.value.column == "observation.images.cam_high"
    assert "videos/chunk-000/observation.images.cam_high/episode_000000.mp4" in str(error.value)
    columns = re.search(r"--columns (\S+)$", str(error.value))
    assert columns is not None
    ds, _ = converted(source, tmp_path / "d", columns=columns[1].split(","))
    assert ds.schema.names == ("observations", "actions", "timestamp", "task_index", "terminated", "truncated")
    assert (ds.num_episodes, ds.num_steps) == (100, 35_965)
    for i in (0, 57, 99):
        rows = pq.read_table(source / f"data/chunk-000/episode_{i:06d}.parquet").to_pylist()
        for theirs, ours in (("observation.state", "observations"), ("action", "actions"), ("timestamp", "timestamp")):
            expected = np.array([row[theirs] for row in rows], np.float32)
            np.testing.assert_array_equal(ds.episode(i)[ours], expected)


def test_only_the_listed_ids_end_episodes(sources: Any, tmp_path: Path) -> None:
    """Facts and videos belong to an id: an end flag inside an episode divides nothing."""
    rollouts = [rollout for rollout in sources.make_rollouts(6) if len(rollout) > 2]
    source = write_v3(sources, tmp_path / "s", rollouts)
    for path in (source / "data").rglob("*.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.append_column("over", pa.array(np.arange(len(table)) == 1)), path)
    gear_data.convert(source, tmp_path / "d", episodes=gear_data.EpisodeBoundaries(end_column="over"), progress=False)
    table = gear_data.open(tmp_path / "d").episodes
    assert table["length"].to_list() == [len(rollout) for rollout in rollouts]
