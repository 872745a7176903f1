"""Columns of text and encoded bytes, from every source to export.

Results are compared with plain Python.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import gear_data
from gear_data.cli.description import describe
from gear_data.errors import (
    BadEpisodeError,
    CorruptShardError,
    GearError,
    ManifestError,
    StorageFullError,
    UnsupportedColumnError,
)
from gear_data.ingest.convert import ConvertReport
from gear_data.reports.facts import summarize
from gear_data.schema import ColumnSpec
from gear_data.storage.writing.shard_writer import ShardWriter
from tests.support.manifests import edited_manifest, sign_file

_WORDS = ["", "go to the red ball", "größer", "漢字", "\N{SLIGHTLY SMILING FACE}", "nul\0inside\0", "x" * 300]
#: An episode is its steps: (text, image bytes, reward).
Episodes = list[list[tuple[str, bytes, float]]]


def _png(rng: np.random.Generator) -> bytes:
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (3, 5, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def _make(count: int = 30, seed: int = 3) -> Episodes:
    """Returns episodes of 1 to 12 steps.

    The last episode has special bytes: empty, zeros at the end, not UTF-8.
    """
    rng = np.random.default_rng(seed)
    episodes = [
        [
            (_WORDS[rng.integers(len(_WORDS))] * int(rng.integers(1, 3)), _png(rng), float(rng.integers(-5, 6)))
            for _ in range(rng.integers(1, 13))
        ]
        for _ in range(count)
    ]
    return [*episodes, [("a", b"", 0.5), ("", b"\0\xff\0\0", 1.5), ("b", b"\x80\x04.", -2.0)]]


EPISODES = _make()
STEPS = [step for episode in EPISODES for step in episode]
LENGTHS = [len(episode) for episode in EPISODES]


def _column(i: int) -> list[list[Any]]:
    return [[step[i] for step in episode] for episode in EPISODES]


def _convert(source: Any, folder: Path, **options: Any) -> ConvertReport:
    """Converts and keeps images encoded; decoded images have a fixed size."""
    return gear_data.convert(source, folder, keep_encoded=True, **options)


def _files(frames: Sequence[bytes], path: str | None = None) -> list[dict[str, Any]]:
    return [{"bytes": frame, "path": path} for frame in frames]


_FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def _episode_table(text: pa.DataType, frame: pa.DataType) -> pa.Table:
    frames = [_files(row) for row in _column(1)] if pa.types.is_struct(frame) else _column(1)
    return pa.table(
        {
            "rewards": pa.array(_column(2), pa.list_(pa.float32())),
            "texts": pa.array(_column(0), pa.large_list(text) if text == pa.large_string() else pa.list_(text)),
            "observations.image": pa.array(frames, pa.list_(frame)),
        }
    )


def _step_table(text: pa.DataType, frame: pa.DataType) -> pa.Table:
    frames = [step[1] for step in STEPS]
    return pa.table(
        {
            "episode_index": np.repeat(np.arange(len(EPISODES)), LENGTHS),
            "rewards": np.array([step[2] for step in STEPS], np.float32),
            "texts": pa.array([step[0] for step in STEPS], text),
            "observations.image": pa.array(_files(frames) if pa.types.is_struct(frame) else frames, frame),
        }
    )


def _parquet(table: pa.Table, path: Path, rows: int) -> Path:
    pq.write_table(table, path, row_group_size=rows)
    return path


def _dataset(image: datasets.Image) -> datasets.Dataset:
    features = datasets.Features(
        {
            "rewards": datasets.List(datasets.Value("float32")),
            "texts": datasets.List(datasets.Value("string")),
            "observations.image": datasets.List(image),
        }
    )
    return datasets.Dataset(_episode_table(pa.string(), _FILE), info=datasets.DatasetInfo(features=features))


#: All layouts and types of the columns. All sources have the same episodes.
SOURCES: dict[str, Callable[[Path], Any]] = {
    "episodes-string-binary": lambda d: _parquet(_episode_table(pa.string(), pa.binary()), d / "s.parquet", 4),
    "episodes-large": lambda d: _parquet(_episode_table(pa.large_string(), pa.large_binary()), d / "s.parquet", 7),
    "episodes-struct": lambda d: _parquet(_episode_table(pa.string(), _FILE), d / "s.parquet", 31),
    "steps-string-binary": lambda d: _parquet(_step_table(pa.string(), pa.binary()), d / "s.parquet", 17),
    "steps-large-struct": lambda d: _parquet(_step_table(pa.large_string(), _FILE), d / "s.parquet", 5),
    "dataset-encoded": lambda d: _dataset(datasets.Image(decode=False)),
    "dataset-image": lambda d: _dataset(datasets.Image()),
    "iterable-dataset": lambda d: _dataset(datasets.Image()).to_iterable_dataset(),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _parquet(_episode_table(pa.string(), _FILE), tmp_path_factory.mktemp("source") / "s.parquet", 4)


@pytest.fixture(scope="module")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`EPISODES` in several shards. Tests must not change the folder."""
    folder = tmp_path_factory.mktemp("converted") / "d"
    assert _convert(source, folder, shard_bytes=4096).shards > 3
    return folder


@pytest.fixture
def dataset(converted: Path, tmp_path: Path) -> Path:
    shutil.copytree(converted, tmp_path / "d")
    return tmp_path / "d"


def _check(folder: Path, episodes: Episodes = EPISODES) -> None:
    ds = gear_data.open(folder)
    assert ds.num_episodes == len(episodes)
    for i, episode in enumerate(episodes):
        texts, frames = ds.episode(i)["texts"], ds.episode(i)["observations.image"]
        assert (texts.dtype, texts.shape) == (np.dtype(object), (len(episode),))
        assert texts.tolist() == [step[0] for step in episode]
        assert frames.tolist() == [step[1] for step in episode]
        assert all(type(text) is str for text in texts)
        assert all(type(frame) is bytes for frame in frames)
        assert ds.episode(i)["rewards"].tolist() == [step[2] for step in episode]
    for name, dtype in (("texts", "string"), ("observations.image", "binary")):
        assert (ds.schema[name].dtype, ds.schema[name].shape, ds.schema[name].variable_length) == (dtype, (), True)
        assert name not in ds.statistics
    assert gear_data.verify(folder).ok


# sources


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_same(kind: str, converted: Path, tmp_path: Path) -> None:
    _convert(SOURCES[kind](tmp_path), tmp_path / "d", shard_bytes=3000)
    _check(tmp_path / "d")
    assert gear_data.open(tmp_path / "d").fingerprint == gear_data.open(converted).fingerprint


@given(
    st.lists(st.lists(st.tuples(st.text(), st.binary()), min_size=1, max_size=6), min_size=1, max_size=8),
    st.integers(1, 5),
)
@settings(max_examples=25, deadline=None)
def test_any_values(rows: list[list[tuple[str, bytes]]], group: int) -> None:
    episodes = [[(text, frame, float(i)) for i, (text, frame) in enumerate(row)] for row in rows]
    table = pa.table(
        {
            "texts": pa.array([[step[0] for step in row] for row in episodes], pa.list_(pa.string())),
            "observations.image": pa.array([[step[1] for step in row] for row in episodes], pa.list_(pa.binary())),
            "rewards": [[step[2] for step in row] for row in episodes],
        }
    )
    with TemporaryDirectory() as folder:
        _convert(_parquet(table, Path(folder, "s.parquet"), group), Path(folder, "d"), shard_bytes=1024)
        _check(Path(folder, "d"), episodes)


def test_lerobot_frames(sources: Any, tmp_path: Path) -> None:
    """Images inside the Parquet files, as structs of bytes and path."""
    rollouts = sources.make_rollouts(4, seed=1)
    folder = sources.write_lerobot(tmp_path / "robot", rollouts)
    frames = []
    for i, file in enumerate(sorted((folder / "data").rglob("*.parquet"))):
        frames.append([f"frame {i}.{t}".encode() for t in range(len(rollouts[i]))])
        table = pq.read_table(file)
        pq.write_table(table.append_column("observation.images.top", pa.array(_files(frames[-1]), _FILE)), file)
    _convert(folder, tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    assert ds.schema["observations.images.top"].dtype == "binary"
    assert [ds.episode(i)["observations.images.top"].tolist() for i in range(4)] == frames
    assert ds.episodes["task"].to_list() == ["pick", "place", "pick", "place"]


def test_images_in_memory_are_stored_encoded(tmp_path: Path) -> None:
    images = [Image.fromarray(np.full((4, 4, 3), shade, np.uint8)) for shade in (0, 90, 255)]
    features = datasets.Features({"obs": datasets.Image(), "done": datasets.Value("bool")})
    source = datasets.Dataset.from_dict({"obs": images, "done": [False, False, True]}, features=features)
    _convert(source, tmp_path / "d")
    frames = gear_data.open(tmp_path / "d").episode(0)["observations"]
    assert [Image.open(io.BytesIO(frame)).getpixel((1, 1)) for frame in frames] == [(s,) * 3 for s in (0, 90, 255)]


def test_columns_and_rename(source: Path, tmp_path: Path) -> None:
    _convert(source, tmp_path / "a", columns=["texts", "rewards"])
    assert set(gear_data.open(tmp_path / "a").schema.names) == {
        "texts", "rewards", "returns_to_go", "terminated", "truncated",
    }  # fmt: skip
    _convert(source, tmp_path / "b", columns=["observations.text"], rename={"texts": "observations.text"})
    ds = gear_data.open(tmp_path / "b")
    assert ds.schema["observations.text"].source == "texts"
    assert [ds.episode(i)["observations.text"].tolist() for i in range(len(EPISODES))] == _column(0)


def test_text_per_episode_stays_in_the_episode_table(source: Path, tmp_path: Path) -> None:
    table = pq.read_table(source).append_column("mission", pa.array([f"m{i}" for i in range(len(EPISODES))]))
    _convert(_parquet(table, tmp_path / "s.parquet", 4), tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    assert "mission" not in ds.schema
    assert ds.episodes["mission"].to_list() == [f"m{i}" for i in range(len(EPISODES))]


def test_paths_next_to_bytes_are_counted(tmp_path: Path) -> None:
    frames = [_files([step[1] for step in episode], "a.png" if i % 2 else None) for i, episode in enumerate(EPISODES)]
    table = _episode_table(pa.string(), pa.binary()).set_column(2, "image", pa.array(frames, pa.list_(_FILE)))
    report = _convert(_parquet(table, tmp_path / "s.parquet", 4), tmp_path / "d")
    codes = [warning.split(":")[0] for warning in report.warnings]
    assert codes == ["no-actions-column", "paths-left-out", "no-end-flag", "one-step-episode"]
    assert f"({sum(LENGTHS[1::2])}x" in report.warnings[1]


# on disk


def test_buffers_are_at_the_offsets_of_the_manifest(converted: Path) -> None:
    manifest = json.loads((converted / "manifest.json").read_text())
    assert manifest["version"] == 1
    first = 0
    for shard in manifest["shards"]:
        data = (converted / shard["file"]).read_bytes()
        for i, name in ((0, "texts"), (1, "observations.image")):
            values = [step[i].encode() if i == 0 else step[i] for step in STEPS[first : first + shard["steps"]]]
            place, known = shard["buffers"][name], shard["variable"][name]
            assert known["offsets"] % 8 == place % 8 == 0
            assert data[place : place + known["bytes"]] == b"".join(values)
            offsets = np.frombuffer(data, "<i8", shard["steps"] + 1, known["offsets"])
            assert offsets.tolist() == [sum(map(len, values[:n])) for n in range(len(values) + 1)]
        first += shard["steps"]
    assert first == len(STEPS)


def test_any_arrow_reader_opens_a_shard(converted: Path) -> None:
    shards = gear_data.open(converted).manifest.shards
    frame = pl.concat([pl.read_ipc(converted / shard.entry.file) for shard in shards])
    assert frame["texts"].to_list() == [step[0] for step in STEPS]
    table = pyarrow.feather.read_table(converted / shards[0].entry.file, memory_map=False)
    assert table.schema.field("texts").type == pa.large_string()
    assert table.schema.field("observations.image").type == pa.large_binary()


def test_content_hash(converted: Path) -> None:
    """The content hash is as docs/explanation/shard-format.md defines it.

    For each column by name: the lengths of the values, then the values.
    """
    ds = gear_data.open(converted)
    for i, episode in enumerate(EPISODES):
        last = [n == len(episode) - 1 for n in range(len(episode))]
        frames, texts = [step[1] for step in episode], [step[0].encode() for step in episode]
        pieces = [
            np.array([len(frame) for frame in frames], "<i8").tobytes(),  # observations.image
            b"".join(frames),
            np.array([step[2] for step in episode], "<f4").tobytes(),  # rewards
            bytes(len(episode)),  # terminated
            np.array([len(text) for text in texts], "<i8").tobytes(),  # texts
            b"".join(texts),
            bytes(last),  # truncated
        ]
        assert ds.episodes["content"][i] == xxhash.xxh3_128(b"".join(pieces)).digest()


def test_values_divided_differently_have_different_hashes(tmp_path: Path) -> None:
    prints = []
    for texts in (["ab", "c"], ["a", "bc"]):
        table = pa.table({"texts": [texts], "rewards": [[1.0, 2.0]]})
        _convert(_parquet(table, tmp_path / "s.parquet", 1), tmp_path / "d", overwrite=True)
        prints.append(gear_data.open(tmp_path / "d").fingerprint)
    assert prints[0] != prints[1]


def test_shards_are_closed_by_their_bytes(converted: Path) -> None:
    """A step has rewards, return-to-go, two flags, two offsets and values."""
    sizes = [sum(10 + 2 * 8 + len(s[0].encode()) + len(s[1]) for s in episode) for episode in EPISODES]
    shards, room = [0], 4096
    for size in sizes:
        if shards[-1] and size > room:
            shards.append(0)
            room = 4096
        shards[-1] += 1
        room -= size
    assert [shard.episodes for shard in gear_data.open(converted).manifest.shards] == shards


def test_an_episode_larger_than_a_shard(tmp_path: Path) -> None:
    texts = [["a"], ["x" * 5000, "y" * 70_000], ["b"] * 3]
    table = pa.table({"texts": texts, "rewards": [[1.0] * len(row) for row in texts]})
    _convert(_parquet(table, tmp_path / "s.parquet", 3), tmp_path / "d", shard_bytes=1024)
    ds = gear_data.open(tmp_path / "d")
    assert [shard.episodes for shard in ds.manifest.shards] == [1, 1, 1]
    assert [ds.episode(i)["texts"].tolist() for i in range(3)] == texts


@pytest.mark.parametrize("kind", ["episodes-struct", "steps-string-binary"])
def test_resumes_to_the_same_bytes(kind: str, sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SOURCES[kind](tmp_path)
    _convert(source, tmp_path / "whole", shard_bytes=4096)
    write_shard = ShardWriter._write_shard

    def fail(writer: ShardWriter) -> Any:
        if writer.finished_shards == 2:
            raise StorageFullError("no space left on the device")
        return write_shard(writer)

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "_write_shard", fail)
        with pytest.raises(StorageFullError):
            _convert(source, tmp_path / "d", shard_bytes=4096)
    _convert(source, tmp_path / "d", shard_bytes=4096, resume=True)
    assert sources.folder_contents(tmp_path / "d") == sources.folder_contents(tmp_path / "whole")


# reading


def test_values_are_views_of_the_mapping(converted: Path) -> None:
    ds = gear_data.open(converted)
    index, shards = ds.schema.index("texts"), ds.store.shards
    (mapping,) = shards.touch(1)
    array = shards.values(1, index)
    assert isinstance(array, pa.LargeStringArray)
    assert array.null_count == 0
    for buffer in array.buffers()[1:]:
        assert mapping.address <= buffer.address < mapping.address + mapping.size
    first = ds.manifest.shards[0].steps
    assert array[2:5].to_pylist() == [step[0] for step in STEPS[first + 2 : first + 5]]
    assert shards.column(1, index, 2, 5).tolist() == [step[0] for step in STEPS[first + 2 : first + 5]]
    # The collector reads columns by their addresses; columns of variable length have none.
    assert [address == 0 for address in shards.addresses[1]] == [c.variable_length for c in ds.schema]


def test_values_are_read_only(converted: Path) -> None:
    texts = gear_data.open(converted).episode(0)["texts"]
    with pytest.raises(ValueError, match="read-only"):
        texts[0] = "other"


def test_a_spec_of_variable_length_has_no_row_size() -> None:
    spec = ColumnSpec("texts", "string")
    assert spec.numpy_dtype == np.dtype(object)
    for name in ("storage_dtype", "row_bytes"):
        with pytest.raises(UnsupportedColumnError, match="texts"):
            getattr(spec, name)


def test_inspect(converted: Path) -> None:
    ds = gear_data.open(converted)
    assert summarize(ds)["columns"]["texts"] == {"dtype": "string", "shape": []}
    assert json.loads(json.dumps(summarize(ds)))
    line = next(line for line in describe(ds).splitlines() if line.startswith("texts"))
    mean = sum(len(step[0].encode()) for step in STEPS) / len(STEPS)
    assert line.split() == ["texts", "string", f"{mean:.0f}", "B", "per", "step"]


@pytest.mark.parametrize("name", ["out.parquet", "out"])
def test_export_and_back(name: str, converted: Path, tmp_path: Path) -> None:
    ds = gear_data.open(converted)
    gear_data.export(ds, tmp_path / name)
    files = sorted((tmp_path / name).rglob("*.parquet")) or [tmp_path / name]
    table = pa.concat_tables([pq.read_table(file) for file in files])
    assert table.schema.field("texts").type == pa.list_(pa.field("element", pa.string()))
    assert (table["texts"].to_pylist(), table["observations.image"].to_pylist()) == (_column(0), _column(1))
    _convert(tmp_path / name, tmp_path / "again")
    _check(tmp_path / "again")
    assert gear_data.open(tmp_path / "again").fingerprint == ds.fingerprint


def test_export_of_a_view(converted: Path, tmp_path: Path) -> None:
    view = gear_data.open(converted).filter(pl.col("episode_id") % 3 != 1)
    gear_data.export(view, tmp_path / "out.parquet")
    _convert(tmp_path / "out.parquet", tmp_path / "again")
    _check(tmp_path / "again", [episode for i, episode in enumerate(EPISODES) if i % 3 != 1])
    assert gear_data.open(tmp_path / "again").fingerprint == view.fingerprint


def test_row_groups_are_cut_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups are limited by bytes.

    A limit by rows would hold all images of a row group in memory at once.
    """
    from gear_data.exports import exporter

    texts = [["x" * 1000], ["y" * 1000], ["z" * 10]]
    table = pa.table({"texts": texts, "rewards": [[1.0]] * 3})
    _convert(_parquet(table, tmp_path / "s.parquet", 3), tmp_path / "d", format="episode-rows")
    monkeypatch.setattr(exporter, "BLOCK_BYTES", 1500)
    gear_data.export(gear_data.open(tmp_path / "d"), tmp_path / "out.parquet")
    groups = pq.ParquetFile(tmp_path / "out.parquet")
    assert [groups.metadata.row_group(i).num_rows for i in range(groups.num_row_groups)] == [1, 2]


def test_more_bytes_than_a_parquet_list_reaches(
    converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gear_data.exports import nested

    size = sum(len(text.encode()) for text, _, _ in EPISODES[3])
    monkeypatch.setattr(nested, "_MAX_OFFSET", size - 1)
    with pytest.raises(UnsupportedColumnError, match=f"{size:,} bytes in one column of a Parquet row group") as error:
        gear_data.export(gear_data.open(converted).filter("episode_id = 3"), tmp_path / "out")
    assert error.value.column == "texts"
    assert not (tmp_path / "out").exists()


# refused values

_BAD, _BAD_STEP = 5, 2


def _damaged_source(change: Callable[[dict[str, list[Any]]], None], layout: str, folder: Path) -> tuple[Path, int]:
    """Returns a source whose episode 5 is damaged at step 2, and its row."""
    lists: dict[str, list[Any]] = {
        "rewards": [[1.0] * 4 for _ in range(8)],
        "texts": [[b"some"] * 4 for _ in range(8)],
        "image": [_files([b"png"] * 4) for _ in range(8)],
    }
    change(lists)
    types = {"rewards": pa.float32(), "texts": pa.binary(), "image": _FILE}
    if layout == "episodes":
        arrays = {name: pa.array(values, pa.list_(types[name])) for name, values in lists.items()}
        texts = arrays["texts"]
        # Casts to text without validation, like a faulty writer.
        text = pa.Array.from_buffers(pa.string(), len(texts.values), texts.values.buffers())
        arrays["texts"] = pa.ListArray.from_arrays(texts.offsets, text)
        return _parquet(pa.table(arrays), folder / "s.parquet", 3), _BAD
    arrays = {name: pa.array([s for row in values for s in row], types[name]) for name, values in lists.items()}
    arrays["texts"] = pa.Array.from_buffers(pa.string(), len(arrays["texts"]), arrays["texts"].buffers())
    arrays["episode"] = pa.array([i for i, row in enumerate(lists["rewards"]) for _ in row])
    return _parquet(pa.table(arrays), folder / "s.parquet", 7), 4 * _BAD + _BAD_STEP


def _not_utf8(lists: dict[str, list[Any]]) -> None:
    lists["texts"][_BAD][_BAD_STEP] = b"\xff\xfe"


def _null_text(lists: dict[str, list[Any]]) -> None:
    lists["texts"][_BAD][_BAD_STEP] = None


def _null_image(lists: dict[str, list[Any]]) -> None:
    lists["image"][_BAD][_BAD_STEP] = None


def _path_only(lists: dict[str, list[Any]]) -> None:
    lists["image"][_BAD][_BAD_STEP] = {"bytes": None, "path": "images/7.png"}


@pytest.mark.parametrize("layout", ["episodes", "steps"])
@pytest.mark.parametrize(
    ("change", "column", "message"),
    [
        (_not_utf8, "texts", "is not UTF-8"),
        (_null_text, "texts", "holds a null"),
        (_null_image, "image", "holds a null"),
        (_path_only, "image", "only the path 'images/7.png'"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_bad_values(
    change: Callable[[dict[str, list[Any]]], None], column: str, message: str, layout: str, tmp_path: Path
) -> None:
    source, row = _damaged_source(change, layout, tmp_path)
    with pytest.raises(BadEpisodeError, match=message) as error:
        _convert(source, tmp_path / "d")
    assert (error.value.file, error.value.column, error.value.row) == ("s.parquet", column, row)
    if layout == "episodes":
        assert f"step {_BAD_STEP} " in str(error.value)
    assert not (tmp_path / "d").exists()
    report = _convert(source, tmp_path / "d", on_bad_episode="skip")
    assert (report.episodes, report.steps) == (7, 28)
    assert any(warning.startswith("bad-episode") for warning in report.warnings)
    ds = gear_data.open(tmp_path / "d")
    assert all(ds.episode(i)["texts"].tolist() == ["some"] * 4 for i in range(7))
    assert gear_data.verify(tmp_path / "d").ok


def test_unequal_lengths(tmp_path: Path) -> None:
    def shorten(lists: dict[str, list[Any]]) -> None:
        lists["texts"][_BAD].pop()

    source, _ = _damaged_source(shorten, "episodes", tmp_path)
    with pytest.raises(BadEpisodeError, match="has 3 steps, where 'rewards' has 4") as error:
        _convert(source, tmp_path / "d")
    assert (error.value.file, error.value.column, error.value.row) == ("s.parquet", "texts", _BAD)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("texts", [[["two", "texts"]] * 3]),
        ("final_texts", [["after"] * 3]),
        ("rewards", [["1.0"] * 3]),
        ("dones", [["no", "no", "yes"]]),
        ("terminated", [[b"\0", b"\0", b"\1"]]),
        ("final_numbers", [["text"] * 3]),
    ],
    ids=str,
)
def test_columns_of_episodes_that_are_refused(name: str, values: Any, tmp_path: Path) -> None:
    table = pa.table({"observations": [[[1.0]] * 3], "texts": [["a"] * 3], "numbers": [[1, 2, 3]]})
    if name in table.column_names:
        table = table.drop_columns([name])
    source = _parquet(table.append_column(name, pa.array(values)), tmp_path / "s.parquet", 1)
    with pytest.raises(UnsupportedColumnError) as error:
        _convert(source, tmp_path / "d")
    assert error.value.column == name
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(("name", "value"), [("rewards", "1.0"), ("done", "yes"), ("notes", ["two", "texts"])])
def test_columns_of_steps_that_are_refused(name: str, value: Any, tmp_path: Path) -> None:
    table = pa.table({"episode": [0, 0], name: [value, value], "x": [1.0, 2.0]})
    with pytest.raises(UnsupportedColumnError) as error:
        _convert(_parquet(table, tmp_path / "s.parquet", 2), tmp_path / "d")
    assert error.value.column == name


# damaged datasets


@pytest.mark.parametrize("value", [-1, 1 << 40, -(1 << 62)])
@pytest.mark.parametrize("place", [0, 3, -1])
def test_offsets_never_become_addresses(place: int, value: int, dataset: Path) -> None:
    ds = gear_data.open(dataset)
    inside = [i for i, s in enumerate(ds.episodes["shard"]) if s == 1]
    shard = ds.manifest.shards[1]
    data = bytearray((dataset / shard.entry.file).read_bytes())
    offset = shard.variable["texts"].offsets + 8 * (place % (shard.steps + 1))
    data[offset : offset + 8] = value.to_bytes(8, "little", signed=True)
    (dataset / shard.entry.file).write_bytes(data)
    sign_file(dataset, shard.entry.file)
    ds = gear_data.open(dataset)
    refused = 0
    for i in inside:
        try:
            assert ds.episode(i)["texts"].tolist() == [step[0] for step in EPISODES[i]]
        except CorruptShardError as error:
            assert (error.column, error.file is not None) == ("texts", True)
            refused += 1
    assert refused
    with pytest.raises(GearError):
        gear_data.export(ds, dataset.parent / "out.parquet")
    assert [check.file for check in gear_data.verify(dataset).shards if not check.ok] == [shard.entry.file]


def test_changed_text_is_found(dataset: Path) -> None:
    """`verify` finds changed text.

    The content hash finds other text; Arrow's validation, and reading, find invalid text.
    """
    shard = gear_data.open(dataset).manifest.shards[0]
    whole = (dataset / shard.entry.file).read_bytes()
    offset = shard.buffers["texts"] + whole[shard.buffers["texts"] :].index(b"ball")
    for new, message in ((b"bell", "content hash"), (b"b\xff\xffl", "not valid Arrow data")):
        (dataset / shard.entry.file).write_bytes(whole[:offset] + new + whole[offset + 4 :])
        sign_file(dataset, shard.entry.file)
        failed = [check for check in gear_data.verify(dataset).shards if not check.ok]
        assert [check.file for check in failed] == [shard.entry.file]
        assert message in str(failed[0].error)
    ds = gear_data.open(dataset)
    with pytest.raises(CorruptShardError, match="texts"):
        [ds.episode(i)["texts"] for i in range(shard.episodes)]


@pytest.mark.parametrize(
    "change",
    [
        lambda shard: shard.pop("variable"),
        lambda shard: shard["variable"].pop("texts"),
        lambda shard: shard["variable"].update(rewards={"offsets": 0, "bytes": 0}),
        lambda shard: shard["variable"]["texts"].update(bytes=shard["bytes"]),
        lambda shard: shard["variable"]["texts"].update(offsets=shard["bytes"] - 8),
        lambda shard: shard["variable"]["texts"].update(offsets=-8),
        lambda shard: shard["buffers"].pop("texts"),
    ],
)
def test_a_manifest_with_buffers_outside_the_file(change: Callable[[Any], Any], dataset: Path) -> None:
    with edited_manifest(dataset) as data:
        change(data["shards"][1])
    with pytest.raises(ManifestError):
        gear_data.open(dataset)


@pytest.mark.parametrize("change", [{"shape": [3]}, {"has_final": True}, {"dtype": "text"}, {"dtype": ["string"]}])
def test_a_manifest_with_an_invalid_column(change: dict[str, Any], dataset: Path) -> None:
    with edited_manifest(dataset) as data:
        next(column for column in data["schema"] if column["name"] == "texts").update(change)
    with pytest.raises(ManifestError):
        gear_data.open(dataset)
