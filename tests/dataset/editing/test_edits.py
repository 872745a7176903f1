"""`Dataset.with_column`, `rename`, `drop` and `with_facts`, against conversions of sources with these columns."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import gear_data
from gear_data.errors import (
    CorruptShardError,
    DatasetNotFoundError,
    EpisodeIndexError,
    InvalidArgumentError,
    ManifestError,
    UnknownNameError,
    UnsupportedColumnError,
    VersionError,
)
from gear_data.storage import manifest as manifests
from gear_data.storage import recomputation
from tests.support.checks import folder_contents
from tests.support.rollouts import Rollout, make_rollouts

#: Columns that a Writer computes.
_COMPUTED_COLUMNS = ("returns_to_go", "terminated", "truncated")

Change = Callable[[dict[str, Any]], dict[str, Any]]


def _source(rollouts: Sequence[Rollout]) -> list[dict[str, Any]]:
    """Returns rollouts with final observations, tasks, texts and a fact."""
    return [
        {
            **rollout.columns,
            "observations": np.concatenate([rollout.columns["observations"], rollout.final[None]]),
            "prompt": [f"{len(rollout)} {step}" for step in range(len(rollout))],
            "infos.flag": np.arange(len(rollout)) % 2 == 0,
            "task": f"task {len(rollout) % 3}",
            "score": len(rollout) * 0.5,
        }
        for rollout in rollouts
    ]


def _converted(folder: Path, source: list[dict[str, Any]], change: Change = lambda episode: episode) -> Any:
    gear_data.convert([change(dict(episode)) for episode in source], folder, shard_bytes=1024, progress=False)
    return gear_data.open(folder)


@pytest.fixture
def source() -> list[dict[str, Any]]:
    return _source(make_rollouts(40, seed=3))


@pytest.fixture
def whole(source: list[dict[str, Any]], tmp_path: Path) -> gear_data.Dataset:
    dataset = _converted(tmp_path / "whole", source)
    assert len(dataset.manifest.shards) > 5
    return dataset


def _check(edited: gear_data.Dataset, golden: gear_data.Dataset, without: tuple[str, ...] = ()) -> None:
    """Compares an edited dataset with a conversion that has the same columns."""
    assert edited.fingerprint == golden.fingerprint
    assert sorted(edited.schema.names) == sorted(set(golden.schema.names) - set(without))
    left = ("shard", "start", "source")
    names = [name for name in golden.episodes.columns if name not in left]
    assert edited.episodes.drop(left).select(names).equals(golden.episodes.drop(left))
    for index in range(len(golden)):
        for name in edited.schema.names:
            np.testing.assert_array_equal(edited[index][name], golden[index][name])
        ends, expected = edited[index].final or {}, golden[index].final or {}
        assert ends.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(ends[name], values)
    assert edited.statistics.keys() == golden.statistics.keys() - set(without)
    for name, found in edited.statistics.items():
        for kind in ("count", "mean", "std", "min", "max"):
            np.testing.assert_allclose(getattr(found, kind), getattr(golden.statistics[name], kind), rtol=1e-9)


def _check_saved(
    edited: gear_data.Dataset, golden: gear_data.Dataset, folder: Path, without: tuple[str, ...] = ()
) -> gear_data.Dataset:
    """Compares a saved edited dataset with a conversion, and returns it."""
    report = edited.save(folder, progress=False)
    assert report.whole == report.linked == report.shards == len(edited.manifest.shards)
    assert report.fingerprint == golden.fingerprint
    saved = gear_data.open(folder)
    _check(saved, golden, without)
    assert gear_data.verify(folder, deep=True).ok, gear_data.verify(folder, deep=True)
    for before, after in zip(edited.manifest.shards, saved.manifest.shards, strict=True):
        original = Path(edited.path) / before.entry.file
        assert os.path.samefile(original, folder / after.entry.file)
    return saved


def _advantage(episode: Any) -> np.ndarray[Any, Any]:
    rewards = np.asarray(episode["rewards"], np.float64)
    return (rewards[::-1].cumsum()[::-1] - rewards.mean()).astype(np.float32)


def _with(name: str, values: Callable[[dict[str, Any]], Any]) -> Change:
    return lambda episode: {**episode, name: values(episode)}


#: Columns: name, what `with_column` gets, and the values of an episode of the source.
_COMPUTED: dict[str, tuple[str, Any, Callable[[dict[str, Any]], Any]]] = {
    "function": ("advantages", _advantage, _advantage),
    "expression": ("infos.a", pl.col("rewards") - pl.col("rewards").first(), lambda e: e["rewards"] - e["rewards"][0]),
    "sql": ("success", "rewards > 0", lambda e: e["rewards"] > 0),
    "constant": ("zero", pl.lit(7, pl.Int16), lambda e: np.full(len(e["rewards"]), 7, np.int16)),
    "mean": (
        "mean",
        pl.col("actions").arr.get(0).max(),
        lambda e: np.full(len(e["actions"]), e["actions"][:, 0].max()),
    ),
    "vectors": ("infos.copy", pl.col("actions"), lambda e: e["actions"]),
    "not masked": ("infos.a", lambda e: np.ma.array(e["rewards"]), lambda e: e["rewards"]),
    "texts": ("words", lambda e: [f"{e.length}"] * e.length, lambda e: [str(len(e["rewards"]))] * len(e["rewards"])),
    "text expression": ("words", pl.col("prompt") + "!", lambda e: [f"{text}!" for text in e["prompt"]]),
}
#: Columns: name, and the values of n steps.
_GIVEN: dict[str, tuple[str, Callable[[int], Any]]] = {
    "matrices": ("observations.embedding", lambda n: np.arange(n * 12, dtype=np.float16).reshape(-1, 3, 4)),
    "first of all": ("aaa", lambda n: np.arange(n, dtype=">i4")),
    "booleans": ("zzz", lambda n: (np.arange(n) % 3 == 0).tolist()),
    "texts": ("instruction", lambda n: [f"do {i}" for i in range(n)]),
    "empty texts": ("instruction", lambda n: np.array([""] * n, object)),
    "bytes": ("jpeg", lambda n: [bytes([i % 256]) * (i % 5) for i in range(n)]),
    "arrow": ("number", lambda n: pa.array(range(n), pa.uint8())),
    "polars": ("words", lambda n: pl.Series([str(i % 3) for i in range(n)], dtype=pl.Categorical)),
}  # fmt: skip


@pytest.mark.parametrize("kind", _COMPUTED)
def test_a_computed_column_is_a_conversion_with_the_column(
    kind: str, source: list[dict[str, Any]], whole: gear_data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, values, of_episode = _COMPUTED[kind]
    golden = _converted(tmp_path / "golden", source, _with(name, of_episode))
    _check_added(whole, name, values, golden, tmp_path / "out", monkeypatch)


@pytest.mark.parametrize("kind", _GIVEN)
def test_a_given_column_is_a_conversion_with_the_column(
    kind: str, source: list[dict[str, Any]], whole: gear_data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, values = _GIVEN[kind][0], _GIVEN[kind][1](whole.num_steps)
    column = values.to_list() if kind == "polars" else values.to_numpy() if kind == "arrow" else values
    if isinstance(column, np.ndarray) and column.dtype != object:
        column = column.astype(column.dtype.newbyteorder("="))
    pieces = iter([list(column[a:b]) if isinstance(column, list) else column[a:b] for a, b in pairwise(whole.offsets)])
    golden = _converted(tmp_path / "golden", source, _with(name, lambda _: next(pieces)))
    _check_added(whole, name, values, golden, tmp_path / "out", monkeypatch)


def _check_added(
    whole: gear_data.Dataset, name: str, values: Any, golden: gear_data.Dataset, folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(recomputation, "_TOLERANCE", 0.0)
    edited = whole.with_column(name, values)
    _check(edited, golden)
    assert whole.fingerprint != edited.fingerprint
    saved = _check_saved(edited, golden, folder)
    assert all(len(shard.added) == 1 for shard in saved.manifest.shards)
    assert json.loads((folder / "manifest.json").read_text())["version"] == 3


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "float32", "uint64"])
@pytest.mark.parametrize("kind", ["list", "large", "fixed", "chunks"])
def test_lists_of_arrow_keep_their_dtype(dtype: str, kind: str, whole: gear_data.Dataset) -> None:
    count = whole.num_steps
    largest = np.iinfo(np.uint64).max if dtype == "uint64" else 1
    numbers = np.array([0, largest], dtype)[np.arange(count * 6) % 2].reshape(-1, 2, 3)
    values = pa.array(numbers.reshape(-1))
    if kind == "large":
        for width, rows in ((3, 2 * count), (2, count)):
            values = pa.LargeListArray.from_arrays(np.arange(rows + 1) * width, values)
    elif kind == "fixed":
        values = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(values, 3), 2)
    else:
        for width, rows in ((3, 2 * count), (2, count)):
            values = pa.ListArray.from_arrays((np.arange(rows + 1) * width).astype(np.int32), values)
    edited = whole.with_column("a", pa.chunked_array([values[:9], values[9:]]) if kind == "chunks" else values)
    assert (edited.schema["a"].dtype, edited.schema["a"].shape) == (dtype, (2, 3))
    np.testing.assert_array_equal(np.concatenate([episode["a"] for episode in edited]), numbers)


@pytest.mark.parametrize(("role", "name"), [
    ("observation", "observations.depth"), ("info", "infos.depth"), ("action", "actions.depth"), ("extra", "depth"),
    (None, "depth"),
])  # fmt: skip
def test_a_role_puts_a_column_under_its_name(role: str | None, name: str, whole: gear_data.Dataset) -> None:
    edited = whole.with_column("depth", np.zeros(whole.num_steps), role=role)
    assert name in edited.schema
    assert edited.schema[name].role == (role or "extra")


def test_renamed(source: list[dict[str, Any]], whole: gear_data.Dataset, tmp_path: Path) -> None:
    names = {"observations": "observations.state", "prompt": "aaa", "infos.flag": "flag"}
    golden = _converted(tmp_path / "golden", source, lambda e: {names.get(key, key): value for key, value in e.items()})
    edited = whole.rename(names)
    _check(edited, golden)
    again = _check_saved(edited, golden, tmp_path / "out").rename({new: old for old, new in names.items()})
    _check(again, whole)
    assert again.fingerprint == whole.fingerprint


def test_swapped_names(source: list[dict[str, Any]], whole: gear_data.Dataset, tmp_path: Path) -> None:
    golden = _converted(
        tmp_path / "golden", source, lambda e: {**e, "prompt": e["infos.flag"], "infos.flag": e["prompt"]}
    )
    edited = whole.rename({"prompt": "between"}).rename({"infos.flag": "prompt"}).rename({"between": "infos.flag"})
    _check_saved(edited, golden, tmp_path / "out")


def test_a_rename_that_keeps_the_order_reads_no_shard(
    source: list[dict[str, Any]], whole: gear_data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = _converted(
        tmp_path / "golden", source, lambda e: {("prompt2" if k == "prompt" else k): v for k, v in e.items()}
    )
    monkeypatch.setattr("gear_data.dataset.editing.edit.read_shard", None)
    _check(whole.rename({"prompt": "prompt2"}), golden)


def test_dropped(source: list[dict[str, Any]], whole: gear_data.Dataset, tmp_path: Path) -> None:
    gone = ["observations", "prompt"]
    golden = _converted(tmp_path / "golden", source, lambda e: {k: v for k, v in e.items() if k not in gone})
    saved = _check_saved(whole.drop(gone), golden, tmp_path / "out")
    assert "finals" not in saved.manifest.tables
    assert whole.drop("prompt").schema.names == tuple(name for name in whole.schema.names if name != "prompt")


def test_rewards_take_their_returns_along(
    source: list[dict[str, Any]], whole: gear_data.Dataset, tmp_path: Path
) -> None:
    golden = _converted(tmp_path / "golden", source, lambda e: {k: v for k, v in e.items() if k != "rewards"})
    edited = whole.drop("rewards")
    assert "returns_to_go" not in edited.schema
    assert edited.episodes["return"].null_count() == len(whole)
    _check_saved(edited, golden, tmp_path / "out")
    renamed = whole.rename({"rewards": "rewards.old"}).with_column("rewards", lambda e: 2 * e["rewards.old"])
    np.testing.assert_array_equal(renamed.episodes["return"], 2 * whole.episodes["return"])
    discounted, expected = renamed.with_discount(0.5), whole.with_discount(0.5)
    np.testing.assert_allclose(discounted[3]["returns_to_go"], 2 * expected[3]["returns_to_go"], rtol=1e-6)


def test_returns_follow_a_rename_of_rewards(
    source: list[dict[str, Any]], whole: gear_data.Dataset, tmp_path: Path
) -> None:
    """Also if the order of the names stays."""

    def change(e: dict[str, Any]) -> dict[str, Any]:
        return {("rewards.raw" if key == "rewards" else key): value for key, value in e.items()}

    golden = _converted(tmp_path / "golden", source, change)
    assert golden.episodes["return"].null_count() == len(golden)
    _check_saved(whole.rename({"rewards": "rewards.raw"}), golden, tmp_path / "away")
    _check_saved(golden.rename({"rewards.raw": "rewards"}), whole, tmp_path / "back", without=("returns_to_go",))


def test_edits_after_edits(source: list[dict[str, Any]], whole: gear_data.Dataset, tmp_path: Path) -> None:
    def change(e: dict[str, Any]) -> dict[str, Any]:
        del e["prompt"]
        return {**e, "b": 2 * np.arange(len(e["rewards"])), "d": np.ones(len(e["rewards"]), np.uint8)}

    golden = _converted(tmp_path / "golden", source, change)
    edited = whole.with_column("a", lambda e: np.arange(e.length)).with_column("c", lambda e: 2 * e["a"])
    edited = edited.drop(["prompt", "a"]).rename({"c": "b"})
    edited = _check_saved(edited.with_column("d", lambda e: np.ones(e.length, np.uint8)), golden, tmp_path / "out")
    assert edited.manifest.provenance["view"]["provenance"]["edited"]["edits"][2:4] == [
        "drop prompt, a", "rename {'c': 'b'}",
    ]  # fmt: skip
    assert edited.manifest.provenance["view"]["provenance"]["edited"]["fingerprint"] == whole.fingerprint
    twice = edited.with_column("e", lambda e: e["b"] + e["d"])
    twice.save(tmp_path / "twice", progress=False)
    assert gear_data.verify(tmp_path / "twice", deep=True).ok
    np.testing.assert_array_equal(gear_data.open(tmp_path / "twice")[5]["e"], golden[5]["b"] + golden[5]["d"])


def test_a_part_of_an_edited_dataset_is_written_again(
    source: list[dict[str, Any]], whole: gear_data.Dataset, tmp_path: Path
) -> None:
    golden = _converted(tmp_path / "golden", source[::2], _with("advantages", _advantage))
    whole.with_column("advantages", _advantage)[::2].save(tmp_path / "out", progress=False)
    _check(gear_data.open(tmp_path / "out"), golden)
    assert gear_data.verify(tmp_path / "out", deep=True).ok
    assert json.loads((tmp_path / "out/manifest.json").read_text())["version"] == 1


# facts


def test_facts(whole: gear_data.Dataset, tmp_path: Path) -> None:
    count = len(whole)
    edited = whole.with_facts({"success": [i % 2 == 0 for i in range(count)], "task": [f"t{i}" for i in range(count)]})
    assert edited.fingerprint == whole.fingerprint
    assert edited.episodes["success"].to_list() == [i % 2 == 0 for i in range(count)]
    assert edited[7].task == "t7"
    assert len(edited.filter("success")) == count // 2
    edited.save(tmp_path / "out", progress=False)
    saved = gear_data.open(tmp_path / "out")
    assert saved.episodes["success"].equals(edited.episodes["success"])
    assert saved.episodes["task"].to_list() == [f"t{i}" for i in range(count)]
    assert gear_data.verify(tmp_path / "out", deep=True).ok
    assert json.loads((tmp_path / "out/manifest.json").read_text())["version"] == 1


@pytest.mark.parametrize("kind", ["polars", "arrow", "dict", "dictionary", "pandas"])
def test_facts_of_some_episodes(kind: str, whole: gear_data.Dataset) -> None:
    columns = {"episode_id": [5, 2], "task": ["five", "two"], "label": [0.5, 0.2], "score": [1, 2]}
    arrow = pa.table(columns)
    tables = {
        "polars": pl.DataFrame(columns),
        "arrow": arrow,
        "dict": columns,
        "dictionary": arrow.set_column(1, "task", arrow.column("task").dictionary_encode()),
        "pandas": pd.DataFrame(columns, index=[7, 3]).astype({"task": "category"}),
    }
    edited = whole.with_facts(tables[kind])
    assert edited.episodes.columns == [*whole.episodes.columns, "label"]
    tasks, scores = whole.episodes["task"].to_list(), whole.episodes["score"].to_list()
    tasks[5], tasks[2], scores[5], scores[2] = "five", "two", 1.0, 2.0
    assert edited.episodes["task"].to_list() == tasks
    assert edited.episodes["score"].to_list() == scores
    assert edited.episodes["label"].to_list() == [
        {5: 0.5, 2: 0.2}.get(i) for i in range(len(whole))
    ]  # fmt: skip


def test_a_fact_that_no_episode_has_takes_any_type(source: list[dict[str, Any]], tmp_path: Path) -> None:
    ds = _converted(tmp_path / "unknown", source, lambda e: {**e, "label": None})
    ds = ds.with_facts({"grade": [None] * len(ds)})
    edited = ds.with_facts({"episode_id": [3, 1], "label": [7, 8], "grade": [[1.5], [2.5]]})
    assert edited.episodes["label"].to_list() == [{3: 7, 1: 8}.get(number) for number in range(len(ds))]
    assert edited.episodes["grade"].to_list() == [{3: [1.5], 1: [2.5]}.get(number) for number in range(len(ds))]


@pytest.mark.parametrize(("before", "new", "found"), [
    (0.5, 1, 1.0),
    (1, 2.0, 2),
    ("a", "b", "b"),
    (True, None, None),
    ("a", None, None),
    (["a"], [], []),
    ([1.5], [2], [2.0]),
])  # fmt: skip
def test_facts_of_some_episodes_get_the_type_of_the_fact(
    before: Any, new: Any, found: Any, whole: gear_data.Dataset
) -> None:
    edited = whole.with_facts({"label": [before] * len(whole)}).with_facts({"episode_id": [3], "label": [new]})
    assert edited.episodes["label"].to_list() == [before] * 3 + [found] + [before] * (len(whole) - 4)


@pytest.mark.parametrize(("before", "new"), [
    (True, 2), (True, 1), (True, "true"), (1, True), (1, "7"), (0.5, "7"), ("a", 7), ("a", True), (["a"], [7]),
    ({"a": 1}, {"a": "1"}), ({"a": 1}, {"a": 1, "b": 2}), (np.datetime64("2026-01-01", "us"), 7),
])  # fmt: skip
def test_facts_of_another_kind_are_refused(before: Any, new: Any, whole: gear_data.Dataset) -> None:
    """Casts of Arrow would make 2 to true, and 7 to a text."""
    labelled = whole.with_facts({"label": [before] * len(whole)})
    with pytest.raises(UnsupportedColumnError, match=r"different kinds"):
        labelled.with_facts({"episode_id": [3], "label": [new]})
    assert labelled.with_facts({"label": [new] * len(whole)}).episodes["label"].to_list() == [new] * len(whole)


def test_facts_of_a_view(whole: gear_data.Dataset) -> None:
    view = whole[10:13]
    assert view.with_facts({"label": ["a", "b", "c"]}).episodes["label"].to_list() == ["a", "b", "c"]
    with pytest.raises(EpisodeIndexError, match="no episode 9"):
        view.with_facts({"episode_id": [9], "label": ["a"]})


@pytest.mark.parametrize(("table", "error", "message"), [
    ({"label": [1, 2]}, InvalidArgumentError, "2 rows, and the dataset 40"),
    ({"episode_id": [1, 1], "label": [1, 2]}, InvalidArgumentError, "episode 1 has 2 rows"),
    ({"episode_id": [40], "label": [1]}, EpisodeIndexError, "no episode 40"),
    ({"episode_id": ["1"], "label": [1]}, InvalidArgumentError, "must be integers"),
    ({"episode_id": [1]}, InvalidArgumentError, "no facts"),
    ({"episode_id": [1], "length": [1]}, InvalidArgumentError, "no fact"),
    ({"episode_id": [1], "": [1]}, InvalidArgumentError, "no fact"),
    ({"episode_id": [1], "task": [1]}, InvalidArgumentError, "must be text"),
    ({"episode_id": [1], "score": ["x"]}, UnsupportedColumnError, "score"),
    ({"a": [1], "b": [1, 2]}, InvalidArgumentError, "expected a table"),
    (7, InvalidArgumentError, "expected a table"),
])  # fmt: skip
def test_wrong_facts(table: Any, error: type[Exception], message: str, whole: gear_data.Dataset) -> None:
    with pytest.raises(error, match=message):
        whole.with_facts(table)


# bad input


def _later(dtype: str) -> Callable[[Any], Any]:
    return lambda e: np.zeros(e.length, dtype if e.id == 9 else "f4")


@pytest.mark.parametrize(("name", "values", "error", "message"), [
    ("a", np.zeros(3), InvalidArgumentError, "there are 3 values"),
    ("a", lambda e: np.zeros(e.length + 1), InvalidArgumentError, "episode 0 has"),
    ("a", lambda e: np.zeros(len(e)), InvalidArgumentError, r"len\(episode\) counts columns"),
    ("a", lambda e: 1.0, InvalidArgumentError, "the value is 1.0"),
    ("a", lambda e: "text", InvalidArgumentError, "the value is 'text'"),
    ("a", lambda e: None, InvalidArgumentError, "the value is None"),
    ("a", _later("f8"), InvalidArgumentError, "float64 values in episode 9, and float32 values before"),
    ("a", lambda e: np.zeros((e.length, 2 + e.id // 9)), InvalidArgumentError, r"shape \[3\] in episode 9"),
    ("a", lambda e: ["x"] * e.length if e.id == 9 else np.zeros(e.length), InvalidArgumentError, "string values in"),
    ("a", "nothing > 1", UnknownNameError, "nothing"),
    ("a", pl.col("rewards").shift(1), InvalidArgumentError, "null"),
    ("a", lambda e: [None] * e.length, InvalidArgumentError, "values are null"),
    ("a", lambda e: [*["x"] * (e.length - 1), None], InvalidArgumentError, "values are null"),
    ("a", lambda e: np.array([*[1.0] * (e.length - 1), None], object), InvalidArgumentError, "values are null"),
    ("a", lambda e: np.ma.masked_equal(np.arange(e.length), 0), InvalidArgumentError, "values are masked"),
    ("a", lambda e: [np.ma.masked_equal([1.0, t], 0.0) for t in range(e.length)], InvalidArgumentError, "are masked"),
    ("a", pl.col("observations").arr.shift(1), UnsupportedColumnError, "holds a null"),
    ("a", pl.col("rewards", "truncated"), InvalidArgumentError, "one column"),
    ("a", lambda e: np.zeros(e.length, complex), UnsupportedColumnError, "complex128"),
    ("a", lambda e: [object()] * e.length, UnsupportedColumnError, "cannot be stored"),
    ("a", lambda e: torch.zeros(e.length, requires_grad=True), UnsupportedColumnError, r"cannot be stored: .*detach"),
    ("a", lambda e: [*[0] * (e.length - 1), "x"], UnsupportedColumnError, r"episode \d+ has text .* value 0 is 0"),
    ("a", lambda e: (1.5, *[b"x"] * (e.length - 1)), UnsupportedColumnError, r"value 0 is 1\.5(.|\n)*give text"),
    ("a", lambda e: [[1], [2, 3]] * e.length, UnsupportedColumnError, "cannot be stored"),
    ("a", lambda e: pa.array([[1.0]] * (e.length - 1) + [[1.0, 2.0]]), UnsupportedColumnError, "2 elements in axis 1"),
    ("a", lambda e: ["\ud800"] * e.length, UnsupportedColumnError, "cannot be stored"),
    ("rewards", lambda e: e["rewards"], InvalidArgumentError, "a column of this name"),
    ("returns_to_go", lambda e: e["rewards"], InvalidArgumentError, "of this name"),
    ("masks.actions", lambda e: e["rewards"], InvalidArgumentError, "computes"),
    ("reward", lambda e: e["rewards"], InvalidArgumentError, "read back as 'rewards'"),
    ("done", lambda e: e["rewards"], InvalidArgumentError, r"end flag(.|\n)*infos\.done"),
    ("dones", lambda e: e["rewards"], InvalidArgumentError, "end flag"),
    ("", lambda e: e["rewards"], InvalidArgumentError, "cannot be the name"),
    (3, lambda e: e["rewards"], InvalidArgumentError, "cannot be the name"),
])  # fmt: skip
def test_a_wrong_column(
    name: Any, values: Any, error: type[Exception], message: str, whole: gear_data.Dataset,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = folder_contents(Path(whole.path))
    with pytest.raises(error, match=message):
        whole.with_column(name, values)
    assert folder_contents(Path(whole.path)) == before
    assert not list(temporary.iterdir())


@pytest.mark.parametrize(("edit", "error", "message"), [
    (lambda ds: ds.rename({"nothing": "a"}), UnknownNameError, "nothing"),
    (lambda ds: ds.rename({"prompt": "actions"}), InvalidArgumentError, "a column of this name"),
    (lambda ds: ds.rename({"prompt": "dones"}), InvalidArgumentError, "end flag"),
    (lambda ds: ds.rename({"prompt": "a", "actions": "a"}), InvalidArgumentError, "a column of this name"),
    (lambda ds: ds.rename({"truncated": "a"}), InvalidArgumentError, "every dataset"),
    (lambda ds: ds.rename({"returns_to_go": "a"}), InvalidArgumentError, "computed"),
    (lambda ds: ds.rename({}), InvalidArgumentError, "must map"),
    (lambda ds: ds.drop("rewards").rename({"prompt": "rewards"}), InvalidArgumentError, "numbers"),
    (lambda ds: ds.drop([]), InvalidArgumentError, "no columns"),
    (lambda ds: ds.drop("nothing"), UnknownNameError, "nothing"),
    (lambda ds: ds.drop("terminated"), InvalidArgumentError, "every dataset"),
    (lambda ds: ds[:3].with_column("a", np.zeros(3)), InvalidArgumentError, "3 of 40 episodes"),
    (lambda ds: ds.with_column("a", np.zeros(3), role="reward_"), UnknownNameError, "reward_"),
])  # fmt: skip
def test_a_wrong_edit(
    edit: Callable[[gear_data.Dataset], Any], error: type[Exception], message: str, whole: gear_data.Dataset
) -> None:
    with pytest.raises(error, match=message):
        edit(whole)


def test_a_damaged_shard(whole: gear_data.Dataset) -> None:
    path = Path(whole.path) / whole.manifest.shards[3].entry.file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptShardError, match="checksum"):
        gear_data.open(whole.path).drop("prompt")


# readers


@pytest.fixture
def saved(whole: gear_data.Dataset, tmp_path: Path) -> Path:
    edited = whole.with_column("advantages", _advantage).with_column(
        "words", lambda e: [f"{i}" for i in range(e.length)]
    )
    edited.rename({"actions": "controls"}).drop("infos.flag").save(tmp_path / "saved", progress=False)
    return tmp_path / "saved"


@pytest.mark.parametrize("residency", ["mmap", "host"])
@pytest.mark.parametrize("unsaved", [False, True])
def test_batches(residency: Any, unsaved: bool, source: list[dict[str, Any]], whole: gear_data.Dataset,
                 saved: Path, tmp_path: Path) -> None:  # fmt: skip
    golden = _converted(tmp_path / "golden", source, _with("advantages", _advantage))
    ds = gear_data.open(saved, residency=residency)
    if unsaved:
        ds = gear_data.open(whole.path, residency=residency).with_column("advantages", _advantage)
    columns = ["observations", "rewards", "advantages"]
    options: dict[str, Any] = {"batch_size": 16, "context": 4, "seed": 5, "columns": columns}
    loaders = (gear_data.SequenceLoader(each, **options) for each in (ds, golden))
    for found, batch in islice(zip(*loaders, strict=True), 4):
        assert found.keys() == batch.keys()
        for key in batch:
            np.testing.assert_array_equal(np.asarray(found[key]), np.asarray(batch[key]))


def test_an_unsaved_edit_is_pickled(whole: gear_data.Dataset) -> None:
    edited = whole.with_column("advantages", _advantage).filter("length > 3")
    again = pickle.loads(pickle.dumps(edited))
    np.testing.assert_array_equal(again[2]["advantages"], edited[2]["advantages"])
    assert again.fingerprint == edited.fingerprint
    assert edited.refresh() is not None


def test_an_edit_that_is_gone(whole: gear_data.Dataset) -> None:
    data = pickle.dumps(whole.with_column("advantages", _advantage))
    with pytest.raises(DatasetNotFoundError, match="not saved"):
        pickle.loads(data)


def test_files_of_an_edit_are_removed(
    whole: gear_data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    edited = whole.with_column("advantages", _advantage)
    assert list(temporary.iterdir())
    del edited
    assert not list(temporary.iterdir())


def test_a_remote_dataset(whole: gear_data.Dataset, saved: Path, memory_url: str, tmp_path: Path) -> None:
    gear_data.open(saved).save(f"{memory_url}/saved", progress=False)
    remote = gear_data.open(f"{memory_url}/saved", cache_dir=tmp_path / "cache", cache_bytes=20_000)
    local = gear_data.open(saved)
    assert remote.fingerprint == local.fingerprint
    edited = remote.with_column("double", lambda e: 2 * e["advantages"])
    for index in range(len(local)):
        np.testing.assert_array_equal(remote[index]["advantages"], local[index]["advantages"])
        np.testing.assert_array_equal(remote[index]["words"], local[index]["words"])
        np.testing.assert_array_equal(edited[index]["double"], 2 * local[index]["advantages"])
    loader = gear_data.SequenceLoader(edited, batch_size=8, context=4, columns=["double", "advantages"], prefetch=0)
    batch = next(iter(loader))
    np.testing.assert_array_equal(np.asarray(batch["double"]), 2 * np.asarray(batch["advantages"]))
    assert gear_data.verify(f"{memory_url}/saved").ok


def test_merged(saved: Path, whole: gear_data.Dataset, tmp_path: Path) -> None:
    """Edited and other datasets are merged by links, or written again."""
    same = gear_data.open(saved).save(tmp_path / "same", progress=False)
    report = gear_data.merge([saved, tmp_path / "same"], tmp_path / "linked", progress=False)
    assert report.linked == report.shards == 2 * same.shards
    merged, one = gear_data.open(tmp_path / "linked"), gear_data.open(saved)
    np.testing.assert_array_equal(merged[len(one) + 4]["advantages"], one[4]["advantages"])
    np.testing.assert_array_equal(merged[len(one) + 4]["controls"], one[4]["controls"])
    assert gear_data.verify(tmp_path / "linked", deep=True).ok
    gear_data.merge([saved, whole.path], tmp_path / "rewritten", progress=False)
    mixed = gear_data.open(tmp_path / "rewritten")
    np.testing.assert_array_equal(mixed[4]["words"], one[4]["words"])
    assert not mixed[len(one) + 4]["masks.advantages"].any()
    assert gear_data.verify(tmp_path / "rewritten", deep=True).ok


def test_exported(saved: Path, tmp_path: Path) -> None:
    report = gear_data.export(gear_data.open(saved), tmp_path / "out", format="parquet")
    assert report.episodes == 40
    gear_data.convert(tmp_path / "out", tmp_path / "back", progress=False)
    back, one = gear_data.open(tmp_path / "back"), gear_data.open(saved)
    assert back.fingerprint == one.fingerprint


def test_duplicates(saved: Path) -> None:
    ds = gear_data.open(saved)
    assert len(ds.drop_duplicates(["advantages"])) <= len(ds)
    assert ds.quantiles("advantages").shape == (2, 1)


@pytest.mark.parametrize("what", ["bytes", "missing", "truncated"])
def test_a_damaged_added_file(what: str, saved: Path) -> None:
    manifest = gear_data.open(saved).manifest
    path = saved / manifest.shards[2].added[0].file
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    if what == "missing":
        path.unlink()
    else:
        path.write_bytes(data if what == "bytes" else data[:100])
    report = gear_data.verify(saved)
    assert [check.file for check in report.shards if not check.ok] == [manifest.shards[2].added[0].file]
    if what != "bytes":
        with pytest.raises(CorruptShardError):
            gear_data.open(saved)
    with pytest.warns(RuntimeWarning, match="left out"):
        sound = gear_data.open(saved, on_bad_shard="skip")
    assert len(sound) == 40 - manifest.shards[2].episodes
    assert np.isfinite(sound[0]["advantages"]).all()
    with pytest.raises(InvalidArgumentError, match="save the episodes again"):
        gear_data.repair(saved, [])
    (saved / manifest.shards[2].entry.file).unlink()
    bad = {check.file for check in gear_data.verify(saved).shards if not check.ok}
    assert bad == {manifest.shards[2].added[0].file, manifest.shards[2].entry.file}


def test_an_older_version_refuses_an_edited_dataset(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "FORMAT_VERSION", 2)
    with pytest.raises(VersionError, match="version 3 is newer than 2"):
        gear_data.open(saved)


@pytest.mark.parametrize("change", [
    lambda shard: shard["added"][0].update(columns=["advantages", "nothing"]),
    lambda shard: shard["added"].append(shard["added"][0]),
    lambda shard: shard["added"][0].update(bytes=100),
    lambda shard: shard["added"][0].update(file="../x"),
    lambda shard: shard["added"][0].pop("columns"),
    lambda shard: shard.update(names=[1]),
])  # fmt: skip
def test_a_contradicting_manifest(change: Callable[[Any], Any], saved: Path) -> None:
    from gear_data.common.signed_text import sign

    data = json.loads((saved / "manifest.json").read_text())
    change(data["shards"][1])
    (saved / "manifest.json").write_text(sign(json.dumps({**data, "checksum": ""}, indent=1)))
    with pytest.raises(ManifestError):
        gear_data.open(saved)


# growing


def test_a_dataset_that_grows_is_not_edited(whole: gear_data.Dataset) -> None:
    with gear_data.Writer(whole.path) as writer:
        _record(writer, whole)
    grown = gear_data.open(whole.path)
    before = folder_contents(Path(whole.path))
    for edit in (
        lambda: grown.with_column("a", lambda e: e["rewards"]),
        lambda: grown.rename({"prompt": "a"}),
        lambda: grown.drop("prompt"),
        lambda: grown.with_facts({"a": [1] * len(grown)}),
    ):
        with pytest.raises(InvalidArgumentError, match="grows"):
            edit()
    assert folder_contents(Path(whole.path)) == before


def test_an_edited_dataset_grows(saved: Path) -> None:
    one = gear_data.open(saved)
    with gear_data.Writer(saved) as writer:
        _record(writer, one)
    grown = gear_data.open(saved)
    assert len(grown) == len(one) + 1
    for name in one.schema.names:
        if name not in ("terminated", "truncated"):
            np.testing.assert_array_equal(grown[len(one)][name], one[3][name])
        np.testing.assert_array_equal(grown[5][name], one[5][name])
    assert gear_data.verify(saved, deep=True).ok
    assert one.refresh().generation == grown.generation


def test_edited_shards_are_joined_with_new_ones(saved: Path) -> None:
    """A large new part and the small shards before it become one shard without added files."""
    one = gear_data.open(saved)
    with gear_data.Writer(saved) as writer:
        for _ in range(60):
            _record(writer, one)
    grown = gear_data.open(saved)
    assert len(grown.manifest.shards) < len(one.manifest.shards)
    assert not grown.manifest.shards[-1].added
    for name in ("advantages", "words", "controls"):
        for index in range(len(one)):
            np.testing.assert_array_equal(grown[index][name], one[index][name])
    assert gear_data.verify(saved, deep=True).ok


def _record(writer: Any, dataset: gear_data.Dataset) -> None:
    """Records the fourth episode of a dataset again."""
    episode = dataset[3]
    for step in range(episode.length):
        writer.append(**{name: episode[name][step] for name in episode if name not in _COMPUTED_COLUMNS})
    facts = {"score": 2.0, "task": "again"}
    writer.end_episode(final=(episode.final or {})["observations"], **facts)
