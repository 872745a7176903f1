"""Frames of Polars and datasets of HuggingFace: values by plain loops, and memory by addresses."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from PIL import Image

import gear_data
from gear_data.errors import CorruptShardError, InvalidArgumentError, UnknownNameError, UnsupportedColumnError
from tests.support.cameras.filmed import FRONT, Filmed
from tests.support.cluster.nodes import NodeProcess, url

VIEWS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda ds: ds,
    "slice": lambda ds: ds[5:17],
    "filtered": lambda ds: ds.filter(pl.col("length") > 3),
    "scattered": lambda ds: ds[[0, 1, 4, 9, 10, 11, 23]],
    "one": lambda ds: ds[[22]],
}


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def step_rows(ds: gear_data.Dataset) -> list[dict[str, Any]]:
    """Returns the rows of a table of steps, by a plain loop."""
    rows = []
    for episode in ds:
        columns = {name: plain(episode[name]) for name in episode}
        for step in range(episode.length):
            own = {name: values[step] for name, values in columns.items()}
            rows.append({"episode_id": episode.id, "step": step, **own})
    return rows


def episode_rows(ds: gear_data.Dataset, tasks: dict[int, Any]) -> list[dict[str, Any]]:
    rows = []
    for episode in ds:
        final = episode.final
        rows.append(
            {
                "episode_id": episode.id,
                **{name: plain(episode[name]) for name in episode},
                "final_observations": None if final is None else plain(final["observations"]),
                "task": tasks[episode.id],
            }
        )
    return rows


@pytest.fixture(scope="module")
def tasks(mixed: gear_data.Dataset) -> dict[int, Any]:
    return dict(enumerate((None, "pick", "place")[i % 3] for i in range(len(mixed))))


@pytest.mark.parametrize("view", VIEWS)
def test_a_row_a_step(mixed: gear_data.Dataset, view: str) -> None:
    ds = VIEWS[view](mixed)
    expected = step_rows(ds)
    assert ds.to_polars().to_dicts() == expected
    assert ds.to_hf().to_list() == expected


@pytest.mark.parametrize("view", [name for name in VIEWS if name != "one"])
def test_a_row_an_episode(mixed: gear_data.Dataset, tasks: dict[int, Any], view: str) -> None:
    ds = VIEWS[view](mixed)
    expected = episode_rows(ds, tasks)
    assert ds.to_polars(rows="episodes").to_dicts() == expected
    assert ds.to_hf(rows="episodes").to_list() == expected


def test_episodes_are_those_of_the_parquet_export(mixed: gear_data.Dataset, tmp_path: Path) -> None:
    """Exports leave out derived columns and ids."""
    gear_data.export(mixed, tmp_path / "out.parquet", progress=False)
    exported = datasets.load_dataset("parquet", data_files=str(tmp_path / "out.parquet"), cache_dir=str(tmp_path))
    found = mixed.to_hf(rows="episodes").remove_columns(["episode_id", "returns_to_go"])
    assert found.column_names == exported["train"].column_names
    assert found.to_list() == exported["train"].to_list()


def test_facts_that_are_lists_stay_facts(mixed: gear_data.Dataset, tmp_path: Path) -> None:
    """Without a mark, `convert` would read the lists as steps, and refuse the bytes."""
    tags = [[f"tag {number}"] * (number % 3 + 1) for number in range(len(mixed))]
    blobs = [bytes([number]) for number in range(len(mixed))]
    hf = mixed.with_facts({"tags": tags, "blob": blobs}).to_hf(["actions", "rewards"], rows="episodes")
    gear_data.convert(hf, tmp_path / "again", format="episode-rows", progress=False)
    again = gear_data.open(tmp_path / "again")
    assert again.episodes["tags"].to_list() == tags
    assert again.episodes["blob"].to_list() == blobs
    assert again.episodes["length"].equals(mixed.episodes["length"])
    assert "tags" not in again.schema


def test_dtypes_and_shapes(mixed: gear_data.Dataset) -> None:
    schema = mixed.to_polars().schema
    assert schema["observations.image"] == pl.Array(pl.UInt8, (2, 4, 3))
    assert schema["halves"] == pl.Array(pl.Float16, 2)
    assert schema["flags"] == pl.Array(pl.Boolean, 2)
    assert (schema["actions"], schema["said"], schema["raw"]) == (pl.Int64, pl.String, pl.Binary)
    assert mixed.to_polars(rows="episodes").schema["observations"] == pl.List(pl.Array(pl.Float32, 3))


def chunk_addresses(array: pa.ChunkedArray) -> list[int]:
    """Returns the address of the first value of each chunk."""
    found = []
    for chunk in array.chunks:
        while isinstance(chunk, pa.FixedSizeListArray | pa.LargeListArray | pa.ListArray):
            chunk = chunk.flatten()
        found.append(chunk.buffers()[-1].address + chunk.offset * chunk.type.bit_width // 8)
    return found


@pytest.mark.parametrize("rows", ["steps", "episodes"])
@pytest.mark.parametrize("name", ["observations", "observations.image", "actions", "rewards"])
@pytest.mark.parametrize("view", ["whole", "scattered"])
def test_numbers_are_not_copied(mixed: gear_data.Dataset, view: str, name: str, rows: str) -> None:
    ds = VIEWS[view](mixed)
    mapped = {episode[name].ctypes.data for episode in ds}
    for table in (ds.to_hf(rows=rows).data.table, ds.to_polars(rows=rows).to_arrow()):
        found = chunk_addresses(table.column(name))
        assert len(found) > 1
        assert set(found) <= mapped


@pytest.mark.parametrize("name", ["said", "raw"])
def test_text_and_bytes_are_not_copied(mixed: gear_data.Dataset, name: str) -> None:
    mapped = {chunk.buffers()[2].address for chunk in mixed.store.value_runs(name, np.arange(len(mixed)))}
    table = mixed.to_hf().data.table
    assert {chunk.buffers()[2].address for chunk in table.column(name).chunks} == mapped


def test_tables_outlive_their_dataset(mixed: gear_data.Dataset) -> None:
    opened = gear_data.open(mixed.path)
    expected = step_rows(opened)
    frame, hf = opened.to_polars(), opened.to_hf()
    del opened
    assert frame.to_dicts() == expected
    assert hf.to_list() == expected


def test_frames_can_be_changed(mixed: gear_data.Dataset) -> None:
    """The mapping is read-only; Polars and `datasets` write to new memory."""
    before = mixed.steps("rewards", 0, 3).copy()
    frame = mixed.to_polars(["rewards"]).with_columns(pl.col("rewards") * 2).sort("rewards")
    assert frame.height == mixed.num_steps
    mapped = mixed.to_hf(["rewards"]).map(lambda row: {"rewards": row["rewards"] + 1})
    assert mapped[0]["rewards"] == before[0] + 1
    assert np.array_equal(mixed.steps("rewards", 0, 3), before)


def test_formats_of_datasets(mixed: gear_data.Dataset) -> None:
    torch = pytest.importorskip("torch")
    hf = mixed.to_hf()
    episode = mixed[0]
    for format, kind in (("numpy", np.ndarray), ("torch", torch.Tensor)):
        row = hf.with_format(format)[0]
        for name in ("observations", "observations.image"):
            assert isinstance(row[name], kind)
            assert tuple(row[name].shape) == episode[name].shape[1:]
            assert np.array_equal(np.asarray(row[name]), episode[name][0])
    rows = hf.with_format("numpy")[: episode.length]
    assert np.array_equal(rows["observations"], episode["observations"])
    exact = mixed.to_hf(rows="episodes").with_format("numpy", dtype=np.uint8)[3]
    assert exact["observations.image"].dtype == np.uint8
    assert np.array_equal(exact["observations.image"], mixed[3]["observations.image"])


def test_encoded_images_can_be_cast(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    rows = [{"actions": np.zeros(2), "photo": [file.getvalue()] * 2}]
    gear_data.convert(rows, tmp_path / "ds", keep_encoded=True, progress=False)
    hf = gear_data.open(tmp_path / "ds").to_hf().cast_column("photo", datasets.Image())
    assert np.array_equal(np.asarray(hf[1]["photo"]), pixels)


def test_hf_fingerprints_follow_the_contents(mixed: gear_data.Dataset) -> None:
    again = gear_data.open(mixed.path)
    assert mixed.to_hf()._fingerprint == again.to_hf()._fingerprint
    others = [mixed[1:], mixed.with_discount(0.5)]
    prints = {ds.to_hf()._fingerprint for ds in (mixed, *others)}
    prints |= {mixed.to_hf(["rewards"])._fingerprint, mixed.to_hf(rows="episodes")._fingerprint}
    assert len(prints) == 5


def test_hf_datasets_are_pickled_as_copies(mixed: gear_data.Dataset) -> None:
    hf = mixed[3:5].to_hf()
    assert pickle.loads(pickle.dumps(hf)).to_list() == hf.to_list()


def test_chosen_columns(mixed: gear_data.Dataset) -> None:
    assert mixed.to_polars(["rewards", "said"]).columns == ["episode_id", "step", "rewards", "said"]
    assert mixed.to_hf([], rows="episodes").column_names == ["episode_id", "task"]
    assert mixed.to_hf(["observations"], rows="episodes").column_names == [
        "episode_id", "observations", "final_observations", "task",
    ]  # fmt: skip
    with pytest.raises(UnknownNameError, match="did you mean 'rewards'"):
        mixed.to_polars(["reward"])
    with pytest.raises(UnknownNameError, match="episodes, steps"):
        mixed.to_polars(rows="step")
    with pytest.raises(UnsupportedColumnError, match="two columns"):
        mixed.to_hf(["rewards", "rewards"])


def test_columns_named_as_the_tables_own(make_dataset: Any) -> None:
    ds = make_dataset([{"actions": np.zeros(3), "step": np.arange(3)}])
    with pytest.raises(UnsupportedColumnError, match="columns=") as raised:
        ds.to_polars()
    assert raised.value.column == "step"
    assert ds.to_polars(["actions"]).height == 3


def test_step_filters_are_refused(mixed: gear_data.Dataset) -> None:
    view = mixed.filter_steps("rewards > 0")
    for convert in (view.to_polars, view.to_hf):
        with pytest.raises(InvalidArgumentError, match="filter the steps of the result"):
            convert()


def test_cameras_are_left_out(filmed: Filmed) -> None:
    ds = gear_data.open(filmed.path)
    assert FRONT not in ds.to_polars().columns
    assert FRONT not in ds.to_hf(rows="episodes").column_names
    with pytest.raises(UnsupportedColumnError, match="--videos frames"):
        ds.to_polars([FRONT])


def test_ids_of_a_dataset_whose_first_episodes_left(tmp_path: Path) -> None:
    with gear_data.Writer(tmp_path / "ds", max_steps=40, durability="os") as writer:
        for number in range(30):
            for step in range(1 + number % 4):
                writer.append(actions=float(number), rewards=float(step))
            writer.end_episode(terminated=True)
            if number % 5 == 4:
                writer.seal()
    for ds in (gear_data.open(tmp_path / "ds"), gear_data.open(tmp_path / "ds")[1::2]):
        assert ds[0].id > 0
        frame = ds.to_polars()
        assert frame["episode_id"].to_list() == frame["actions"].cast(pl.Int64).to_list()
        assert frame["step"].to_list() == frame["rewards"].cast(pl.Int64).to_list()
        assert ds.to_hf(rows="episodes")["episode_id"][:] == [episode.id for episode in ds]


def test_returns_of_another_discount(mixed: gear_data.Dataset) -> None:
    ds = mixed.with_discount(0.5)
    assert ds.to_polars(["returns_to_go"])["returns_to_go"].to_list() == [
        value for episode in ds for value in episode["returns_to_go"].tolist()
    ]


def test_damaged_text_is_an_error(tmp_path: Path) -> None:
    gear_data.convert([{"actions": np.zeros(2), "said": ["hello", "world"]}], tmp_path / "ds", progress=False)
    shard = tmp_path / "ds/shards/000000.arrow"
    contents = shard.read_bytes()
    assert contents.count(b"helloworld") == 1
    shard.write_bytes(contents.replace(b"helloworld", b"hell\xffworld"))
    with pytest.raises(CorruptShardError, match="damaged values"):
        gear_data.open(tmp_path / "ds").to_polars()


@pytest.mark.processes
@pytest.mark.parametrize("rows", ["steps", "episodes"])
def test_steps_of_other_nodes_are_fetched(mixed: gear_data.Dataset, rows: str) -> None:
    node = NodeProcess(Path(mixed.path))
    try:
        node.wait()
        ds = gear_data.open(url(node))
        for view in (ds, ds[[0, 1, 4, 9, 10, 11, 23]]):
            local = mixed if view is ds else mixed[[0, 1, 4, 9, 10, 11, 23]]
            assert view.to_polars(rows=rows).to_dicts() == local.to_polars(rows=rows).to_dicts()
            assert view.to_hf(rows=rows).to_list() == local.to_hf(rows=rows).to_list()
    finally:
        node.kill()
