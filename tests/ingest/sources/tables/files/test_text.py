"""Tests of CSV and JSON, compared with `load_dataset` row for row."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import fsspec
import numpy as np
import pyarrow as pa
import pytest

import gear_data
from gear_data.errors import CorruptSourceError, InvalidArgumentError, MissingExtraError, UnknownFormatError
from gear_data.ingest.location import locate
from gear_data.ingest.sources.tables.files import json_array
from gear_data.ingest.sources.tables.flatten import flat_columns, flatten_table
from gear_data.ingest.sources.tables.open import require_tables
from gear_data.storage.episode_block import BEGIN, END, Position

datasets.disable_progress_bars()

_ROWS = [
    {
        "episode_index": i // 4,
        "observation": {"state": [i / 8, 0.5], "task": f"go é {i}"},
        "action": i % 3,
        "reward": i / 4,
        "done": i % 4 == 3,
        "history": [{"a": i, "b": [1, 2]}, {"a": 0, "b": []}],
        "note": None,
        "day": "2024-01-02",
    }
    for i in range(16)
]
_FLAT = [{key: row[key] for key in ("episode_index", "action", "reward", "done", "day")} for row in _ROWS]


def _lines(rows: Sequence[Any] = _ROWS) -> str:
    return "\n".join(map(json.dumps, rows)) + "\n"


def _csv(rows: Sequence[Any] = _FLAT, separator: str = ",") -> str:
    return "\n".join([separator.join(rows[0]), *(separator.join(map(str, row.values())) for row in rows)]) + "\n"


def _write(path: Path, text: str) -> Path:
    """Writes a text, compressed as the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}.get(path.suffix)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(path.stem, text)
    else:
        path.write_bytes(text.encode() if compress is None else compress(text.encode()))
    return path


def _read(source: Path, start: Position = BEGIN) -> pa.Table:
    parts = list(require_tables(locate(source, None)).parts(start, END))
    return pa.concat_tables([part.table for part in parts]).combine_chunks()


def _loaded(kind: str, files: Sequence[Path], cache: Path, **options: Any) -> pa.Table:
    """Returns the table of `load_dataset`, with the names of flattened columns."""
    names = [str(file) for file in files]
    loaded = datasets.load_dataset(kind, data_files=names, split="train", cache_dir=str(cache), **options)
    table = loaded.data.table
    return flatten_table(table, flat_columns(table.schema, "loaded")).combine_chunks()


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("s.jsonl", _lines(), "json"),
        ("s.ndjson.gz", _lines(), "json"),
        ("s.jsonl.bz2", _lines(), "json"),
        ("s.json.xz", _lines(), "json"),
        ("s.jsonl.zip", _lines(), "json"),
        ("s.json", json.dumps(_ROWS), "json"),
        ("s.json.gz", json.dumps(_ROWS, indent=2), "json"),
        ("s.csv", _csv(), "csv"),
        ("s.csv.gz", _csv(), "csv"),
        ("s.csv.zip", _csv(), "csv"),
        ("s.tsv", _csv(separator="\t"), "tsv"),
    ],
)
def test_rows_and_types_are_those_of_load_dataset(name: str, text: str, kind: str, tmp_path: Path) -> None:
    source = _write(tmp_path / name, text)
    options = {"sep": "\t"} if kind == "tsv" else {}
    expected = _loaded("json" if kind == "json" else "csv", [source], tmp_path / "cache", **options)
    found = _read(source)
    assert found.schema.equals(expected.schema)
    assert found.to_pylist() == expected.to_pylist()
    assert _read(source, Position(0, 5)).to_pylist() == expected.to_pylist()[5:]
    report = gear_data.convert(source, tmp_path / "d", columns=["action", "reward"], progress=False)
    assert (report.format, report.episodes, report.steps) == ("step-rows", 4, 16)
    batch = next(iter(gear_data.SequenceLoader(gear_data.open(tmp_path / "d"), batch_size=2, context=3, steps=1)))
    assert batch["rewards"].shape[:2] == (2, 3)


def test_later_blocks_and_files_have_the_types_of_the_first(tmp_path: Path) -> None:
    """The second block of 10,000 rows holds only whole numbers, the first does not."""
    rows = [{"episode_index": i // 100, "reward": i / 2 if i < 10_000 else i} for i in range(10_100)]
    files = [_write(tmp_path / "s/a.csv", _csv(rows)), _write(tmp_path / "s/b.csv", _csv(rows[:9]))]
    expected = _loaded("csv", files, tmp_path / "cache")
    assert expected.schema.field("reward").type == pa.float64()
    assert _read(tmp_path / "s").equals(expected)


def test_a_column_that_a_later_file_lacks_is_null(tmp_path: Path) -> None:
    rows = [{"episode_index": i, "reward": 0.5, "note": "x"} for i in range(3)]
    files = [
        _write(tmp_path / "s/a.jsonl", _lines(rows)),
        _write(tmp_path / "s/b.jsonl", _lines([{"reward": 1, "episode_index": 7}])),
    ]
    found = _read(tmp_path / "s")
    assert found.equals(_loaded("json", files, tmp_path / "cache"))
    assert found.to_pylist()[-1] == {"episode_index": 7, "reward": 1.0, "note": None}


def test_a_value_of_another_type_is_refused_with_file_and_row(tmp_path: Path) -> None:
    rows = [{"episode_index": i // 100, "force": i if i < 10_000 else i + 0.5} for i in range(10_100)]
    source = _write(tmp_path / "s.csv", _csv(rows))
    with pytest.raises(CorruptSourceError, match=r"from row 10000 on, datasets cannot read it as CSV") as error:
        gear_data.convert(source, tmp_path / "d", progress=False)
    assert (error.value.file, error.value.row) == ("s.csv", 10_000)
    with pytest.raises(Exception, match="generating the dataset"):
        _loaded("csv", [source], tmp_path / "cache")


def test_csv_keeps_all_digits(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    values = [0.30000000000000004, 0.00012345678901234567, 1e-300, 5e-324, 1.7976931348623157e308, -0.1]
    values += (random.standard_normal(2000) * 10.0 ** random.integers(-12, 12, 2000)).tolist()
    rows = "".join(f"{i // 100},{value!r},{value!r}\n" for i, value in enumerate(values))
    path = _write(tmp_path / "a.csv", f"episode,observation,action\n{rows}")
    gear_data.convert(path, tmp_path / "d")
    read = gear_data.open(tmp_path / "d")
    got = np.concatenate([read[i]["observations"] for i in range(len(read))])
    assert got.tolist() == values


def test_an_array_keeps_all_digits_and_is_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "_BLOCK", 4000)
    monkeypatch.setattr(json_array, "_CHUNK", 7)
    rng = np.random.default_rng(0)
    rows = [{"rewards": rng.normal(size=9).tolist(), "task": "é\n]}" * (i % 5)} for i in range(200)]
    for indent in (None, 1):
        text = json.dumps(rows, indent=indent, ensure_ascii=False)
        with _write(tmp_path / "s.json", text).open("rb") as stream:
            tables = list(json_array.array_tables(stream))
        assert len(tables) > 5
        assert pa.concat_tables(tables).to_pylist() == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "holds no row"),
        ('null\n{"a": 1}', "the first row is null, not an object"),
        ('[{"a": 1}', "the array does not end"),
        ('[{"a": 1}, {"a"', "datasets cannot read it as JSON: JSONDecodeError"),
        ('[{"a": 1} {"a": 2}]', r"holds '\{', where '\]' is expected"),
        ('[{"a": 1}, 3]', "the array holds '3]', not an object"),
        ('[{"a": 1}] x', "there is text after the array"),
        ('[{"a": 1}, {"a": {"b": 2}}]', "changed from number to object"),
        ('{"a": 1}\n{"a": \n', "datasets cannot read it as JSON"),
        ('{"a": 1, "b": 0.1234567890123}\n{"a": "x", "b": 1}\n', "datasets cannot read it as JSON"),
    ],
)
def test_damaged_json_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptSourceError, match=message):
        gear_data.convert(_write(tmp_path / "s.json", text), tmp_path / "d", progress=False)


def test_a_url_and_splits(tmp_path: Path) -> None:
    for split, count in (("train", 16), ("test", 8)):
        with fsspec.open(f"memory://gear-text/{split}.jsonl.gz", "wb") as file:
            file.write(gzip.compress(_lines(_ROWS[:count]).encode()))
    with pytest.raises(InvalidArgumentError, match="several splits: test, train"):
        gear_data.convert("memory://gear-text", tmp_path / "d", progress=False)
    report = gear_data.convert(
        "memory://gear-text", tmp_path / "d", split="test", columns=["action", "reward"], progress=False
    )
    assert report.steps == 8


def test_a_row_an_episode(tmp_path: Path) -> None:
    rows = [{"observations": [[i, 0.5]] * (i + 1), "rewards": [0.5] * (i + 1), "seed": i} for i in range(5)]
    assert gear_data.convert(_write(tmp_path / "s.jsonl", _lines(rows)), tmp_path / "d").format == "episode-rows"
    opened = gear_data.open(tmp_path / "d")
    assert [episode["observations"].tolist() for episode in opened] == [row["observations"] for row in rows]
    assert opened.episodes["seed"].to_list() == list(range(5))


# Text files that may be metadata.


def test_metadata_is_no_table(sources: Any, tmp_path: Path) -> None:
    _write(tmp_path / "s/steps.csv", _csv())
    for name in ("README.md", "LICENSE", "metadata.json", "dataset_info.json", "config.yaml"):
        _write(tmp_path / "s" / name, "{}")
    assert gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False).steps == 16
    sources.write_episodes(tmp_path / "p/a.parquet", sources.make_rollouts(3))
    _write(tmp_path / "p/episodes.csv", _csv())
    assert gear_data.convert(tmp_path / "p", tmp_path / "e", progress=False).episodes == 3


def test_text_among_other_files_is_read_only_on_request(tmp_path: Path) -> None:
    _write(tmp_path / "s/steps.csv", _csv())
    (tmp_path / "s/camera.mp4").write_bytes(b"video")
    hint = "steps.csv may hold the data, or facts about the other files"
    with pytest.raises(UnknownFormatError, match=hint):
        gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    assert gear_data.convert(tmp_path / "s", tmp_path / "d", format="step-rows", progress=False).steps == 16
    assert gear_data.convert(tmp_path / "s/steps.csv", tmp_path / "e", progress=False).steps == 16


def test_csv_and_json_in_a_folder_are_refused(tmp_path: Path) -> None:
    _write(tmp_path / "s/a.csv", _csv())
    _write(tmp_path / "s/b.jsonl", _lines())
    with pytest.raises(UnknownFormatError, match=r"1 CSV \(a\.csv\), 1 JSON \(b\.jsonl\)\n.*give one file"):
        gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)


def test_a_compression_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(fsspec.compression.compr, "zstd", raising=False)
    (tmp_path / "s.jsonl.zst").write_bytes(b"x")
    with pytest.raises(MissingExtraError, match="zstandard"):
        gear_data.convert(tmp_path / "s.jsonl.zst", tmp_path / "d", progress=False)
