"""LeRobot exports: read by LeRobot's rules, and converted to an equal dataset."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import gear_data
from gear_data.errors import (
    CorruptSourceError,
    UnsupportedColumnError,
)
from tests.support.exports import concatenated, convert_again, convert_rollouts, export_to, wide_rollouts
from tests.support.rollouts import make_rollouts, write_lerobot


def lerobot_features(info: dict[str, Any]) -> datasets.Features:
    """Follows `lerobot.datasets.utils.get_hf_features_from_features`."""
    features: dict[str, Any] = {}
    for name, feature in info["features"].items():
        dtype, shape = feature["dtype"], tuple(feature["shape"])
        if dtype == "image":
            features[name] = datasets.Image()
        elif shape == (1,):
            features[name] = datasets.Value(dtype)
        elif len(shape) == 1:
            features[name] = datasets.Sequence(datasets.Value(dtype), length=shape[0])
        else:
            features[name] = {2: datasets.Array2D, 3: datasets.Array3D}[len(shape)](shape=shape, dtype=dtype)
    return datasets.Features(features)


def lerobot_rows(path: Path, cache: Path) -> tuple[dict[str, Any], datasets.Dataset]:
    """Returns `meta/info.json` and all rows, read as LeRobot reads them."""
    info = json.loads((path / "meta/info.json").read_text())
    files = [str(file) for file in sorted((path / "data").glob("*/*.parquet"))]
    return info, datasets.Dataset.from_parquet(files, features=lerobot_features(info), cache_dir=str(cache))


def test_lerobot_layout(sources: Any, tmp_path: Path) -> None:
    rollouts = wide_rollouts(
        sources, **{"observations.image": lambda rng, count: rng.integers(0, 9, (count, 3), np.int32)}
    )
    tasks = ["pick", "place", None, "pick"] * 3
    ds = convert_rollouts(tmp_path, sources, rollouts, task=tasks, level=list(range(12)))
    path = export_to(ds, tmp_path, "lerobot")
    info, rows = lerobot_rows(path, tmp_path / "cache")
    assert (info["codebase_version"], info["fps"]) == ("v3.0", 50)
    lengths = [len(rollout) for rollout in rollouts]
    counts = (info["total_episodes"], info["total_frames"], info["total_tasks"], info["splits"])
    assert counts == (12, sum(lengths), 3, {"train": "0:12"})
    assert info["features"].keys() == set(rows.column_names)
    names = {
        "observations": "observation.state",
        "observations.image": "observation.image",
        "actions": "action",
        "rewards": "next.reward",
        "terminated": "next.terminated",
        "truncated": "next.truncated",
    }
    table = rows.with_format("arrow")[:]
    values = {name: np.array(table[name].to_pylist(), info["features"][name]["dtype"]) for name in table.column_names}
    for ours in rollouts[0].columns:
        theirs = values[names.get(ours, ours)]
        expected = concatenated(rollouts, ours)
        assert theirs.dtype == expected.dtype
        np.testing.assert_array_equal(theirs.reshape(expected.shape), expected)
    assert values["next.done"].tolist() == [t == n - 1 for n in lengths for t in range(n)]
    assert values["episode_index"].tolist() == [i for i, n in enumerate(lengths) for _ in range(n)]
    assert values["frame_index"].tolist() == [t for n in lengths for t in range(n)]
    assert values["index"].tolist() == list(range(sum(lengths)))
    assert values["timestamp"].tolist() == [np.float32(t / 50) for n in lengths for t in range(n)]
    texts = pd.read_parquet(path / "meta/tasks.parquet")
    assert texts.columns.tolist() == ["task_index"]
    for frame in (0, sum(lengths[:2]), sum(lengths) - 1):
        text = tasks[int(values["episode_index"][frame])] or ""
        assert texts.iloc[int(values["task_index"][frame])].name == text
        assert texts.loc[text].task_index == values["task_index"][frame]
    listed = datasets.Dataset.from_parquet(
        str(path / "meta/episodes/chunk-000/file-000.parquet"), cache_dir=str(tmp_path / "cache")
    )
    for i, row in enumerate(listed):
        assert (row["episode_index"], row["length"], row["tasks"]) == (i, lengths[i], [tasks[i] or ""])
        assert (row["dataset_from_index"], row["dataset_to_index"]) == (sum(lengths[:i]), sum(lengths[: i + 1]))
        assert (row["data/chunk_index"], row["data/file_index"], row["level"]) == (0, 0, i)
    stats = json.loads((path / "meta/stats.json").read_text())
    assert stats.keys() == info["features"].keys()
    state = concatenated(rollouts, "observations").astype(np.float64)
    np.testing.assert_allclose(stats["observation.state"]["mean"], state.mean(axis=0))
    np.testing.assert_allclose(stats["observation.state"]["std"], state.std(axis=0))
    assert stats["observation.state"]["count"] == [len(state)]
    assert stats["frame_index"]["max"] == [max(lengths) - 1]
    back = convert_again(path, tmp_path)
    assert back.fingerprint == ds.fingerprint
    assert back.episodes["level"].to_list() == list(range(12))
    assert [task or None for task in back.episodes["task"].to_list()] == tasks


def test_lerobot_keeps_the_clock_and_tasks_of_a_source(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(6, seed=4)
    sources.write_lerobot(tmp_path / "source", rollouts)
    gear_data.convert(tmp_path / "source", tmp_path / "dataset")
    ds = gear_data.open(tmp_path / "dataset")
    report = gear_data.export(ds, tmp_path / "out", "lerobot")
    assert report.left_out == ("episode_index",)
    info, rows = lerobot_rows(tmp_path / "out", tmp_path / "cache")
    assert (info["fps"], info["robot_type"]) == (30, "arm")
    texts = pd.read_parquet(tmp_path / "out/meta/tasks.parquet")
    assert texts.index.tolist() == ["pick", "place"]
    assert [row["task_index"] for row in rows] == [i % 2 for i, r in enumerate(rollouts) for _ in range(len(r))]
    back = convert_again(tmp_path / "out", tmp_path)
    assert back.fingerprint == ds.fingerprint
    assert {"timestamp", "task_index"} <= set(back.schema.names)
    assert back.episodes["task"].to_list() == ["pick", "place"] * 3


def test_lerobot_images(sources: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def png() -> bytes:
        stream = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)).save(stream, "PNG")
        return stream.getvalue()

    rollouts = sources.make_rollouts(4)
    images = [[png() for _ in range(len(rollout))] for rollout in rollouts]
    column = pa.array(images, pa.list_(pa.binary()))
    ds = convert_rollouts(tmp_path, sources, rollouts, **{"observations.image": column})
    path = export_to(ds, tmp_path, "lerobot")
    info, rows = lerobot_rows(path, tmp_path / "cache")
    assert info["features"]["observation.image"]["shape"] == [5, 7, 3]
    stats = json.loads((path / "meta/stats.json").read_text())
    assert stats.keys() == info["features"].keys()
    found = stats["observation.image"]
    pixels = np.concatenate([np.asarray(Image.open(io.BytesIO(each))) for episode in images for each in episode]) / 255
    assert found["count"] == [sum(map(len, rollouts))]  # fewer than the sample
    for name in ("min", "max", "mean", "std"):
        expected = getattr(pixels.reshape(-1, 3), name)(axis=0).reshape(3, 1, 1)
        np.testing.assert_allclose(found[name], expected, atol=1e-12, err_msg=name)
    assert rows[0]["observation.image"].size == (7, 5)
    column = rows.cast_column("observation.image", datasets.Image(decode=False))["observation.image"]
    assert [each["bytes"] for each in column] == [each for episode in images for each in episode]
    assert convert_again(path, tmp_path).fingerprint == ds.fingerprint
    other = [[b"no image"] * len(rollout) for rollout in rollouts]
    (tmp_path / "other").mkdir()
    ds = convert_rollouts(tmp_path / "other", sources, rollouts, **{"infos.bytes": other})
    with pytest.raises(UnsupportedColumnError, match="images") as error:
        export_to(ds, tmp_path / "other", "lerobot")
    assert error.value.column == "infos.bytes"


@pytest.mark.parametrize(("mode", "channels"), [("1", 1), ("L", 1), ("P", 1), ("RGBA", 4), ("I;16", 0)])
def test_statistics_of_images_that_are_not_rgb(sources: Any, tmp_path: Path, mode: str, channels: int) -> None:
    """Of pixels as LeRobot gets them; an image that it cannot read does not count."""
    rng = np.random.default_rng(0)

    def picture() -> Any:
        if mode == "I;16":
            return Image.fromarray(rng.integers(0, 1 << 16, (5, 7), dtype=np.uint16))
        return Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)).convert(mode)

    rollouts = sources.make_rollouts(2)
    pixels: list[Any] = []
    columns: list[list[bytes]] = []
    for rollout in rollouts:
        columns.append([])
        for _ in range(len(rollout)):
            stream, image = io.BytesIO(), picture()
            image.save(stream, "PNG")
            columns[-1].append(stream.getvalue())
            pixels.append(np.asarray(image) * (255 if mode == "1" else 1))
    columns[-1][-1] = b"damaged"
    images = pa.array(columns, pa.list_(pa.binary()))
    ds = convert_rollouts(tmp_path, sources, rollouts, **{"observations.image": images})
    stats = json.loads((export_to(ds, tmp_path, "lerobot") / "meta/stats.json").read_text())
    if not channels:
        assert "observation.image" not in stats
        return
    expected = np.stack(pixels[:-1]).reshape(-1, channels).mean(axis=0) / 255
    np.testing.assert_allclose(stats["observation.image"]["mean"], expected.reshape(-1, 1, 1), atol=1e-12)
    assert stats["observation.image"]["count"] == [len(pixels) - 1]


def test_episodes_out_of_order_keep_their_final_observations(rollouts_path: Path, tmp_path: Path) -> None:
    dataset = gear_data.open(rollouts_path)
    path = export_to(dataset, tmp_path, "lerobot")
    (file,) = (path / "data").rglob("*.parquet")
    order = [("episode_index", "descending"), ("frame_index", "ascending")]
    pq.write_table(pq.read_table(file).sort_by(order), file)
    gear_data.convert(path, tmp_path / "again", progress=False)
    again = gear_data.open(tmp_path / "again")
    for i, number in enumerate(again.episodes["episode_index"].to_list()):
        np.testing.assert_array_equal(again.final(i)["observations"], dataset.final(number)["observations"])  # type: ignore[index]


def test_damaged_files_of_an_export(rollouts_path: Path, tmp_path: Path) -> None:
    """Conversion checks the files that LeRobot does not define and only this export writes."""
    path = export_to(gear_data.open(rollouts_path), tmp_path, "lerobot")
    notes, finals = path / "meta/gear_data.json", path / "meta/final_observations.parquet"
    good, table = notes.read_text(), pq.read_table(finals)
    values = table["observation.state"].to_pylist()
    damaged: list[tuple[Path, Any]] = [
        (notes, "[1]"),
        (notes, '{"finals": "observation.state"}'),
        (finals, None),
        (finals, table.slice(0, 30)),
        (finals, table.slice(1)),
        (finals, table.drop_columns(["observation.state"])),
        (finals, table.drop_columns(["episode_index"])),
        (finals, table.set_column(1, "observation.state", pa.array([[1.0]] * 40, pa.list_(pa.float32())))),
        (finals, table.set_column(1, "observation.state", pa.array(values, pa.list_(pa.float64())))),
        (finals, table.set_column(1, "observation.state", pa.array(["text"] * 40))),
        (finals, table.set_column(0, "episode_index", pa.array(["text"] * 40))),
    ]
    for number, (file, content) in enumerate(damaged):
        notes.write_text(good)
        pq.write_table(table, finals)
        if isinstance(content, str):
            file.write_text(content)
        elif content is None:
            file.unlink()
        else:
            pq.write_table(content, file)
        with pytest.raises(CorruptSourceError) as error:
            gear_data.convert(path, tmp_path / f"again-{number}", progress=False)
        assert error.value.file == f"meta/{file.name}", number


def test_edited_and_merged_tasks_get_numbers_of_their_own(tmp_path: Path) -> None:
    """The column `task_index` keeps the numbers of the source, of which several tasks may have one."""
    rollouts = make_rollouts(8, seed=4, max_length=6)
    for name, part in (("a", rollouts[:4]), ("b", rollouts[4:])):
        write_lerobot(tmp_path / name, part)  # pick, place, pick, place
        gear_data.convert(tmp_path / name, tmp_path / f"gear-{name}", progress=False)
    edited = gear_data.open(tmp_path / "gear-b").with_facts({"episode_id": [0, 1, 2], "task": ["fold", "pick", "wash"]})
    edited.save(tmp_path / "edited", progress=False)
    gear_data.merge([tmp_path / "gear-a", tmp_path / "edited"], tmp_path / "merged", progress=False)
    expected = ["pick", "place", "pick", "place", "fold", "pick", "wash", "place"]
    for dataset, tasks in ((edited, expected[4:]), (gear_data.open(tmp_path / "merged"), expected)):
        path = tmp_path / f"out-{len(tasks)}"
        gear_data.export(dataset, path, "lerobot")
        info, rows = lerobot_rows(path, tmp_path / f"cache-{len(tasks)}")
        table = pq.read_table(path / "meta/tasks.parquet").to_pydict()
        texts = dict(zip(table["task_index"], table["task"], strict=True))
        assert sorted(texts) == list(range(len(texts))) and len({*texts.values()} - {""}) == len({*tasks})
        read = {row["episode_index"]: set[str]() for row in rows}
        for row in rows:
            read[row["episode_index"]].add(texts[row["task_index"]])
        assert read == {number: {task} for number, task in enumerate(tasks)}
        assert info["total_tasks"] == len(texts)
        statistics = json.loads((path / "meta/stats.json").read_text())["task_index"]
        assert statistics["max"] == [max(rows["task_index"])]
        gear_data.convert(path, tmp_path / f"back-{len(tasks)}", progress=False)
        back = gear_data.open(tmp_path / f"back-{len(tasks)}")
        assert [episode.task for episode in back] == tasks
        assert back.schema["task_index"] == dataset.schema["task_index"]


def test_numbers_of_tasks_within_an_episode_stay(tmp_path: Path) -> None:
    def episodes(first: int, task: str) -> dict[str, Any]:
        columns = {"observations": np.zeros((4, 2), np.float32), "actions": np.zeros((4, 1), np.float32)}
        return {**columns, "task_index": np.array([first, first, 2, first]), "task": task}

    gear_data.convert([episodes(0, "a"), episodes(0, "b"), episodes(1, "b")], tmp_path / "gear", progress=False)
    gear_data.export(gear_data.open(tmp_path / "gear"), tmp_path / "out", "lerobot", fps=10)
    _, rows = lerobot_rows(tmp_path / "out", tmp_path / "cache")
    assert list(rows["task_index"]) == [0, 0, 2, 0, 1, 1, 2, 1, 1, 1, 2, 1]
    assert pq.read_table(tmp_path / "out/meta/tasks.parquet").to_pydict()["task"] == ["a", "b", ""]
