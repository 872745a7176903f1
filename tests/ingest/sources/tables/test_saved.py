"""Tests of folders of `save_to_disk`, compared with `load_from_disk`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

import gear_data
from gear_data.errors import CorruptSourceError, InvalidArgumentError, UnknownFormatError

datasets.disable_progress_bars()

_FEATURES = datasets.Features(
    {
        "episode_index": datasets.Value("int32"),
        "observation": {
            "state": datasets.Sequence(datasets.Value("float32"), length=3),
            "grid": datasets.Array2D((2, 4), "int16"),
            "camera": datasets.Image(),
        },
        "action": datasets.ClassLabel(names=["left", "right", "stay"]),
        "reward": datasets.Value("float64"),
        "terminated": datasets.Value("bool"),
        "truncated": datasets.Value("bool"),
        "task": datasets.Value("string"),
        "words": datasets.Sequence(datasets.Value("int8"), length=2),
    }
)


def _png(rng: np.random.Generator) -> bytes:
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (3, 4, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def _dataset(rows: int, seed: int = 0) -> datasets.Dataset:
    rng = np.random.default_rng(seed)
    steps = [
        {
            "episode_index": i // 4,
            "observation": {
                "state": rng.normal(size=3),
                "grid": rng.integers(0, 9, (2, 4)),
                "camera": {"bytes": _png(rng), "path": None},
            },
            "action": i % 3,
            "reward": float(rng.normal()),
            "terminated": i % 4 == 3,
            "truncated": False,
            "task": f"task {i} é",
            "words": [i % 5, 1],
        }
        for i in range(rows)
    ]
    return datasets.Dataset.from_list(steps, features=_FEATURES)


def _check(dataset: Path, expected: datasets.Dataset) -> None:
    """Compares a dataset with the rows that `datasets` reads."""
    opened, rows = gear_data.open(dataset), expected.with_format(None)[:]
    observations = rows["observation"]
    columns = {
        "observations": np.array([step["state"] for step in observations], np.float32),
        "observations.grid": np.array([step["grid"] for step in observations]),
        "observations.camera": np.stack([np.asarray(step["camera"]) for step in observations]),
        "actions": np.array(rows["action"]),
        "rewards": np.array(rows["reward"]),
        "terminated": np.array(rows["terminated"]),
        "task": np.array(rows["task"], object),
        "words": np.array(rows["words"]),
    }
    types = {"observations": "float32", "observations.grid": "int16", "actions": "int64", "words": "int8"}
    for name, values in columns.items():
        found = np.concatenate([episode[name] for episode in opened])
        np.testing.assert_array_equal(found, values, name)
        assert str(found.dtype) == types.get(name, str(found.dtype))
    assert opened.episodes["episode_index"].to_list() == sorted(set(expected["episode_index"]))


def test_every_row_is_what_load_from_disk_gives(tmp_path: Path) -> None:
    saved = _dataset(24)
    saved.save_to_disk(tmp_path / "s", num_shards=5)
    report = gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    assert (report.format, report.episodes, report.steps, report.warnings) == ("step-rows", 6, 24, ())
    _check(tmp_path / "d", datasets.load_from_disk(tmp_path / "s"))
    batch = next(iter(gear_data.SequenceLoader(gear_data.open(tmp_path / "d"), batch_size=4, context=3, steps=1)))
    assert batch["observations"].shape == (4, 3, 3)


def test_the_order_of_a_selection_is_kept_and_caches_are_not_read(tmp_path: Path) -> None:
    _dataset(24).select([*range(8, 12), *range(4)]).save_to_disk(tmp_path / "s")
    loaded = datasets.load_from_disk(tmp_path / "s")
    loaded.map(lambda row: {"reward": row["reward"] + 1})  # writes cache-HASH.arrow to the folder
    assert len(list((tmp_path / "s").glob("cache-*.arrow"))) == 1
    gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    opened = gear_data.open(tmp_path / "d")
    assert opened.episodes["episode_index"].to_list() == [2, 0]
    found = np.concatenate([episode["rewards"] for episode in opened])
    np.testing.assert_array_equal(found, loaded["reward"][:])


def test_a_row_an_episode(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(7)
    episodes = [{name: values.tolist() for name, values in r.columns.items()} for r in rollouts]
    episodes = [{**episode, "seed": i} for i, episode in enumerate(episodes)]
    datasets.Dataset.from_list(episodes).save_to_disk(tmp_path / "s", num_shards=2)
    report = gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    assert report.format == "episode-rows"
    opened, expected = gear_data.open(tmp_path / "d"), datasets.load_from_disk(tmp_path / "s")
    for episode, row in zip(opened, expected, strict=True):
        for name in rollouts[0].columns:
            np.testing.assert_array_equal(episode[name], row[name])
    assert opened.episodes["seed"].to_list() == list(range(7))


def test_a_split_of_a_dict_is_chosen(tmp_path: Path) -> None:
    parts = {"train": _dataset(8, seed=1), "expert": _dataset(12, seed=2)}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "s")
    with pytest.raises(InvalidArgumentError, match=r"several splits: expert, train(?s:.*)--split"):
        gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    with pytest.raises(InvalidArgumentError, match=r"no split 'test'(?s:.*)its splits: expert, train"):
        gear_data.convert(tmp_path / "s", tmp_path / "d", split="test", progress=False)
    for split, part in parts.items():
        gear_data.convert(tmp_path / "s", tmp_path / split, split=split, progress=False)
        _check(tmp_path / split, part)
    gear_data.convert(tmp_path / "s/expert", tmp_path / "folder", progress=False)
    _check(tmp_path / "folder", parts["expert"])


def test_several_datasets_in_a_folder_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        _dataset(4).save_to_disk(tmp_path / "s" / name)
    with pytest.raises(UnknownFormatError, match=r"holds 2 datasets of save_to_disk: a, b\n.*one at a time"):
        gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_indices_data_files": [{"filename": "indices.arrow"}]}, r"index of rows(?s:.*)flatten_indices"),
        ({"_data_files": [{"filename": "data-00001-of-00002.arrow"}]}, "data-00001-of-00002.arrow', which does not"),
        ({"_data_files": [3]}, r"lists no files, but \[3\]"),
        ({"_data_files": True}, "lists no files, but true"),
    ],
)
def test_a_wrong_state_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    _dataset(4).save_to_disk(tmp_path / "s")
    state = tmp_path / "s/state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), **change}))
    with pytest.raises(CorruptSourceError, match=message) as error:
        gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    assert error.value.file == "state.json"
