"""Tests of WebDataset, compared with `load_dataset` row for row."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import gear_data
from gear_data.errors import CorruptSourceError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.location import locate
from gear_data.ingest.sources.tables.files import webdataset
from gear_data.ingest.sources.tables.open import require_tables
from gear_data.storage.episode_block import BEGIN, END
from tests.support.makers.tar_samples import write_samples

datasets.disable_progress_bars()


def _png(rng: np.random.Generator) -> bytes:
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (3, 4, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def _samples(count: int = 12) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {
            "json": {"episode_index": i // 4, "reward": i / 2, "info": {"x": [i, 1]}},
            "observation.state.npy": rng.normal(size=3).astype(np.float32),
            "grid.npy": rng.normal(size=(2, 2)),
            "action.cls": b"%d" % (i % 3),
            "observation.image.png": _png(rng),
            "txt": f"go {i} é".encode(),
        }
        for i in range(count)
    ]


def test_rows_are_those_of_load_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webdataset, "_BLOCK_ROWS", 5)
    source = write_samples(tmp_path / "s.tar", _samples())
    report = gear_data.convert(source, tmp_path / "d", progress=False)
    assert (report.format, report.episodes, report.steps) == ("step-rows", 3, 12)
    loaded = datasets.load_dataset("webdataset", data_files=str(source), split="train", cache_dir=str(tmp_path / "c"))
    rows, opened = loaded[:], gear_data.open(tmp_path / "d")
    expected = {
        "observations": np.array(rows["observation.state.npy"], np.float32),
        "grid": np.array(rows["grid.npy"]),
        "actions": np.array(rows["action.cls"]),
        "observations.image": np.stack([np.asarray(image) for image in rows["observation.image.png"]]),
        "rewards": np.array([facts["reward"] for facts in rows["json"]]),
        "infos.x": np.array([facts["info"]["x"] for facts in rows["json"]]),
        "txt": np.array(rows["txt"], object),
        "__key__": np.array(rows["__key__"], object),
    }
    assert set(opened.schema.names) - {"terminated", "truncated", "returns_to_go"} == set(expected)
    for name, values in expected.items():
        found = np.concatenate([episode[name] for episode in opened])
        assert (found.dtype, found.tolist()) == (values.dtype, values.tolist()), name


def test_a_sample_an_episode_in_several_files(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(6)
    samples = [{f"{name}.npy": values for name, values in r.columns.items()} for r in rollouts]
    for name, chosen in (("train-0000.tar", samples[:4]), ("train-0001.tar", samples[4:])):
        write_samples(tmp_path / "s" / name, chosen)
    (tmp_path / "s/README.md").write_text("a dataset")
    assert gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False).format == "episode-rows"
    for episode, rollout in zip(gear_data.open(tmp_path / "d"), rollouts, strict=True):
        for name, values in rollout.columns.items():
            np.testing.assert_array_equal(episode[name], values)


def test_blocks_are_bounded_by_their_bytes(tmp_path: Path) -> None:
    samples = [{"frame.png": bytes(1 << 20), "json": {"reward": 0.5, "done": False}} for _ in range(12)]
    tables = require_tables(locate(write_samples(tmp_path / "s.tar", samples), None))
    assert max(part.table.nbytes for part in tables.parts(BEGIN, END)) < 24 << 20
    blocks = list(webdataset._tar_tables(locate(tmp_path / "s.tar", None).files[0], None))
    assert [len(block) for block in blocks] == [4, 4, 4]


@pytest.mark.parametrize("late", [{"reward": 0.5}, {"action": [0.5, 2]}, {"done": 2}])
def test_numbers_that_the_first_samples_rule_out_are_refused(late: dict[str, Any], tmp_path: Path) -> None:
    """`load_dataset` reads 0.5 as 0 there, and 2 as True."""
    usual = {"reward": 1, "action": [1, 2], "done": False}
    samples = [{"json": {**usual, **(late if i == 6 else {})}} for i in range(8)]
    with pytest.raises(CorruptSourceError, match="the types of the first five samples cannot hold") as error:
        gear_data.convert(write_samples(tmp_path / "s.tar", samples), tmp_path / "d", progress=False)
    assert error.value.column == "json"
    usual["done"] = True
    source = write_samples(tmp_path / "t.tar", [{"json": {**usual, "reward": i / 2}} for i in range(8)])
    gear_data.convert(source, tmp_path / "e", progress=False)
    assert [episode["rewards"].item() for episode in gear_data.open(tmp_path / "e")] == [i / 2 for i in range(8)]


@pytest.mark.parametrize(
    ("late", "column"),
    [
        ({"txt": b"push"}, "txt"),
        ({"json": {"done": True, "info": {"x": 1}, "success": False}}, "json.success"),
        ({"json": {"done": True, "info": {"x": 1, "y": 2}}}, "json.info.y"),
    ],
)
def test_members_that_the_first_samples_lack_are_refused(late: dict[str, Any], column: str, tmp_path: Path) -> None:
    """`load_dataset` leaves them out."""
    usual = {"json": {"done": True, "info": {"x": 1}}}
    samples = [{**usual, **(late if i == 6 else {})} for i in range(8)]
    with pytest.raises(CorruptSourceError, match="the first five samples lack it") as error:
        gear_data.convert(write_samples(tmp_path / "s.tar", samples), tmp_path / "d", progress=False)
    assert (error.value.column, error.value.row) == (column, 6)
    samples[:5] = [samples[6]] * 5
    table = next(require_tables(locate(write_samples(tmp_path / "t.tar", samples), None)).parts(BEGIN, END)).table
    assert column.removeprefix("json.") in table.column_names


def test_equal_names_keep_their_suffix(tmp_path: Path) -> None:
    source = write_samples(tmp_path / "s.tar", [{"a.txt": b"x", "a.cls": b"3"}])
    table = next(require_tables(locate(source, None)).parts(BEGIN, END)).table
    assert table.drop_columns("__key__").equals(pa.table({"a": ["x"], "a.cls": [3]}))


@pytest.mark.parametrize("size", [-1024, -2048])
def test_a_missing_end_is_refused(size: int, tmp_path: Path) -> None:
    source = write_samples(tmp_path / "s.tar", _samples(3))
    source.write_bytes(source.read_bytes()[:size])  # between two members, or inside one
    with pytest.raises(CorruptSourceError, match="its end is missing"):
        gear_data.convert(source, tmp_path / "d", progress=False)


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    source = write_samples(tmp_path / "s.tar", [{"reward.pth": b"cos\nsystem\n(S'exit 3'\ntR.", "done.cls": b"1"}])
    with pytest.raises(UnsupportedColumnError, match="pickles are never loaded") as error:
        gear_data.convert(source, tmp_path / "d", progress=False)
    assert error.value.column == "reward.pth"


def test_a_tar_of_other_files(tmp_path: Path) -> None:
    source = write_samples(tmp_path / "s.tar", [{"hdf5": b"x"}, {"hdf5": b"y"}])
    with pytest.raises(UnknownFormatError, match=r"its columns are hdf5: .*\n.*unpack it"):
        gear_data.convert(source, tmp_path / "d", progress=False)
    source = write_samples(tmp_path / "s.tar", [{"hdf5": b"x"}, {"txt": b"y"}])
    with pytest.raises(CorruptSourceError, match=r"WebDataset format(?s:.*)unpack it"):
        gear_data.convert(source, tmp_path / "d", progress=False)
