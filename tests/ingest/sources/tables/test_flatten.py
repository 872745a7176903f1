"""Tests of structs, features of `datasets`, and equivalent Arrow types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.errors import (
    BadEpisodeError,
    UnsupportedColumnError,
)
from gear_data.ingest.sources.tables import file_stream
from tests.support.makers.step_tables import (
    Rollouts,
    as_truncated,
    episode_lengths,
    finding_counts,
    flat_table,
)

# Structs.


def test_structs_of_steps(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    """Row per step: `observation: struct<state, image: struct<bytes, path>, ...>`."""
    depth = [r.with_columns(**{"observations.camera.depth": r.columns["actions"] * 2}) for r in rollouts]
    rows = [
        {
            "state": state.tolist(),
            "image": {"bytes": b"not an image", "path": None},
            "camera": {"depth": deep.tolist()},
        }
        for r in depth
        for state, deep in zip(r.columns["observations"], r.columns["observations.camera.depth"], strict=True)
    ]
    type_ = pa.struct(
        {
            "state": pa.list_(pa.float32()),
            "image": pa.struct({"bytes": pa.binary(), "path": pa.string()}),
            "camera": pa.struct({"depth": pa.list_(pa.float32())}),
        }
    )
    table = flat_table(sources, rollouts, episode=sources.episode_numbers(rollouts)).drop_columns(["observations"])
    source = sources.write_parquet(
        tmp_path / "s.parquet", table.append_column("observation", pa.array(rows, type_)), row_group=9
    )
    options = {"columns": ["observation.state", "actions", "rewards", "observation.camera.depth"]}
    gear_data.convert(source, tmp_path / "d", **options)
    sources.check_dataset(tmp_path / "d", as_truncated(depth))
    gear_data.convert(source, tmp_path / "e", keep_encoded=True)
    ds = gear_data.open(tmp_path / "e")
    assert set(ds.episode(3)["observations.image"]) == {b"not an image"}
    # A `datasets` object gives the same.
    loaded = datasets.Dataset(pq.read_table(source))
    fingerprint = gear_data.convert(loaded, tmp_path / "f", **options).fingerprint
    assert fingerprint == gear_data.open(tmp_path / "d").manifest.fingerprint


@pytest.mark.parametrize("outer", ["list", "large_list", "list_view"])
@pytest.mark.parametrize("batch_bytes", [300, 1 << 20])
def test_a_list_of_structs_an_episode(
    outer: str, batch_bytes: int, sources: Any, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row per episode: `steps: list<struct<observation: struct<...>, action, ...>>`.

    Exports of RLDS have this layout.
    """
    monkeypatch.setattr(file_stream, "_BATCH_BYTES", batch_bytes)
    make = {"list": pa.list_, "large_list": pa.large_list, "list_view": pa.list_view}[outer]
    step = pa.struct(
        {
            "observation": pa.struct({"state": pa.list_(pa.float32())}),
            "action": pa.list_(pa.float32()),
            "reward": pa.float32(),
            "is_terminal": pa.bool_(),
            "truncated": pa.bool_(),
        }
    )
    rows = [
        [
            {
                "observation": {"state": r.columns["observations"][t].tolist()},
                "action": r.columns["actions"][t].tolist(),
                "reward": float(r.columns["rewards"][t]),
                "is_terminal": bool(r.columns["terminated"][t]),
                "truncated": bool(r.columns["truncated"][t]),
            }
            for t in range(len(r))
        ]
        for r in rollouts
    ]
    facts = pa.array([{"file": f"{i}.tfrecord", "score": i / 2} for i in range(len(rollouts))])
    table = pa.table({"episode_metadata": facts, "steps": pa.array(rows, make(step))})
    source = sources.write_parquet(tmp_path / "s.parquet", table, row_group=7)
    report = gear_data.convert(source, tmp_path / "d", rename={"steps.is_terminal": "terminated"})
    assert report.format == "episode-rows"
    sources.check_dataset(tmp_path / "d", rollouts)
    ds = gear_data.open(tmp_path / "d")
    assert ds.episodes["episode_metadata.file"].to_list() == [f"{i}.tfrecord" for i in range(len(rollouts))]
    assert ds.schema["observations"].source == "steps.observation.state"


def test_a_null_struct_is_a_bad_step(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    rows = [{"state": [1.0, 2.0]} for _ in range(9)]
    rows[4] = None  # type: ignore[call-overload]
    table = pa.table({"observation": pa.array(rows), "episode": [i // 3 for i in range(9)], "rewards": [1.0] * 9})
    source = sources.write_parquet(tmp_path / "s.parquet", table)
    with pytest.raises(BadEpisodeError) as error:
        gear_data.convert(source, tmp_path / "d")
    assert (error.value.column, error.value.row) == ("observation.state", 4)
    gear_data.convert(source, tmp_path / "d", on_bad_episode="skip")
    assert gear_data.open(tmp_path / "d").episodes["episode"].to_list() == [0, 2]


def test_two_columns_of_one_name(sources: Any, tmp_path: Path) -> None:
    table = pa.table({"a.b": [1.0], "a": [{"b": 1.0}], "done": [True]})
    with pytest.raises(UnsupportedColumnError, match="two columns") as error:
        gear_data.convert(sources.write_parquet(tmp_path / "s.parquet", table), tmp_path / "d")
    assert error.value.column == "a.b"


# Features of `datasets`, and equivalent Arrow types.


@pytest.mark.parametrize("stored", [False, True], ids=["object", "parquet"])
def test_features_of_datasets(stored: bool, sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    features = datasets.Features(
        {
            "episode": datasets.Value("int32"),
            "observations": datasets.Array2D((3, 1), "float32"),
            "actions": datasets.Sequence(datasets.Value("float32"), length=2),
            "rewards": datasets.Value("float32"),
            "terminated": datasets.Value("bool"),
            "truncated": datasets.Value("bool"),
            "kind": datasets.ClassLabel(names=["a", "b"]),
            "nothing": datasets.Value("null"),
        }
    )
    flat = {n: np.concatenate([r.columns[n] for r in rollouts]) for n in rollouts[0].columns}
    kind = np.arange(len(flat["rewards"])) % 2
    made = datasets.Dataset.from_dict(
        {
            "episode": sources.episode_numbers(rollouts),
            **{**flat, "observations": flat["observations"][..., None]},
            "kind": kind,
            "nothing": [None] * len(kind),
        },
        features=features,
    )
    source: Any = made
    if stored:
        source = tmp_path / "s.parquet"
        made.to_parquet(str(source))
    gear_data.convert(source, tmp_path / "d")
    offsets = np.cumsum([0, *episode_lengths(rollouts)])
    expected = [
        r.with_columns(observations=r.columns["observations"][..., None], kind=kind[offsets[i] : offsets[i + 1]])
        for i, r in enumerate(rollouts)
    ]
    sources.check_dataset(tmp_path / "d", expected)
    assert finding_counts(tmp_path / "d") == {"null-column": 1}


def test_arrow_types_that_mean_the_same(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    """Datasets are equal to the byte, whatever the list types and encodings."""
    columns = [r.columns for r in rollouts]
    ids, words = sources.episode_numbers(rollouts), ["up", "down"] * sum(episode_lengths(rollouts))
    table = sources.step_table(columns, episode=ids, word=words[: len(ids)])
    n = len(table)
    observations = table.column("observations").combine_chunks()
    other = {
        "observations": [
            observations.cast(pa.list_(pa.float32(), 3)),
            observations.cast(pa.large_list(pa.float32())),
            pa.array(observations.to_pylist(), pa.list_view(pa.float32())),
            pa.array(observations.to_pylist(), pa.large_list_view(pa.float32())),
        ],
        "word": [
            table.column("word").combine_chunks().dictionary_encode(),
            table.column("word").cast(pa.large_string()),
            table.column("word").cast(pa.string_view()),
        ],
        "rewards": [table.column("rewards").combine_chunks().dictionary_encode()],
        "episode": [table.column("episode").cast(pa.int16()), table.column("episode").cast(pa.uint64())],
    }
    known = gear_data.convert(sources.write_parquet(tmp_path / "s.parquet", table), tmp_path / "d").fingerprint
    for name, arrays in other.items():
        for i, array in enumerate(arrays):
            assert len(array) == n
            changed = table.set_column(table.column_names.index(name), name, array)
            source = sources.write_parquet(tmp_path / f"{name}{i}.parquet", changed, row_group=50)
            assert gear_data.convert(source, tmp_path / f"{name}{i}").fingerprint == known, array.type


def test_null_columns(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    nothing = pa.array([[None] * len(r) for r in rollouts], pa.list_(pa.null()))
    table = sources.episode_table([r.columns for r in rollouts], infos=nothing, seed=pa.nulls(len(rollouts)))
    source = sources.write_parquet(tmp_path / "s.parquet", table)
    gear_data.convert(source, tmp_path / "d")
    sources.check_dataset(tmp_path / "d", rollouts)
    found = [f["column"] for f in gear_data.open(tmp_path / "d").manifest.findings if f["code"] == "null-column"]
    assert found == ["infos", "seed"]
    with pytest.raises(UnsupportedColumnError) as error:
        gear_data.convert(source, tmp_path / "e", columns=["observations", "infos"])
    assert error.value.column == "infos"
