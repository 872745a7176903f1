"""Tests of tables: named columns, structs, encodings, and units."""

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
    CorruptSourceError,
    InvalidArgumentError,
    UnknownFormatError,
    UnknownNameError,
    UnsupportedColumnError,
)
from gear_data.ingest.location import locate
from gear_data.ingest.pipeline.id_ranges import SeenIds
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.registry import open_source
from gear_data.ingest.sources.tables import parquet_stream as arrow_tables
from gear_data.ingest.sources.tables import read_units as parquet_units
from gear_data.storage.block import BEGIN, END

Rollouts = list[Any]


def _flat(sources: Any, rollouts: Rollouts, **more: Any) -> pa.Table:
    """Returns one row per step, without a column that separates the episodes."""
    columns = [{n: r.columns[n] for n in ("observations", "actions", "rewards")} for r in rollouts]
    table: pa.Table = sources.step_table(columns, **more)
    return table


def _lengths(rollouts: Rollouts) -> list[int]:
    return [len(r) for r in rollouts]


def _steps(rollouts: Rollouts, first: int = 0) -> list[int]:
    return [first + t for r in rollouts for t in range(len(r))]


def _names(rollouts: Rollouts, form: str = "run-{:04d}") -> list[str]:
    return [form.format(i) for i, r in enumerate(rollouts) for _ in range(len(r))]


def _truncated(rollouts: Rollouts) -> Rollouts:
    """Returns the rollouts as a source without end flags gives them."""
    return [
        r.with_columns(terminated=np.zeros(len(r), np.bool_), truncated=np.arange(len(r)) == len(r) - 1)
        for r in rollouts
    ]


def _terminated(rollouts: Rollouts) -> Rollouts:
    """Returns the rollouts as a source with one end flag gives them."""
    return [
        r.with_columns(terminated=np.arange(len(r)) == len(r) - 1, truncated=np.zeros(len(r), np.bool_))
        for r in rollouts
    ]


def _codes(path: Path) -> dict[str, int]:
    found = {f["code"]: f["count"] for f in gear_data.open(path).manifest.findings}
    return {code: count for code, count in found.items() if code != "one-step-episode"}


# Columns that the user names.


@pytest.mark.parametrize("names", [False, True], ids=["numbers", "names"])
def test_episode_column(names: bool, sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    ids = _names(rollouts, "run {}") if names else (1000 - 7 * sources.episode_numbers(rollouts)).tolist()
    source = sources.write_parquet(tmp_path / "s.parquet", _flat(sources, rollouts, run=ids), row_group=5)
    with pytest.raises(UnknownFormatError) as error:
        gear_data.convert(source, tmp_path / "d")
    for text in (
        "run: ",
        "rewards: float",
        "--episode-column",
        "--step-column",
        "--end-column",
        "--rename",
        "--format",
    ):
        assert text in str(error.value)
    report = gear_data.convert(source, tmp_path / "d", episode_column="run")
    assert (report.format, "--episode-column" in report.reason) == ("step-rows", True)
    sources.check_dataset(tmp_path / "d", _truncated(rollouts))
    starts = np.cumsum([0, *_lengths(rollouts)[:-1]])
    assert gear_data.open(tmp_path / "d").episodes["run"].to_list() == [ids[i] for i in starts]


def test_names_of_episodes_are_found(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    table = _flat(sources, rollouts, trajectory_id=pa.array(_names(rollouts)).dictionary_encode())
    report = gear_data.convert(sources.write_parquet(tmp_path / "s.parquet", table), tmp_path / "d")
    assert "'trajectory_id' names the episodes" in report.reason
    sources.check_dataset(tmp_path / "d", _truncated(rollouts))


def test_a_name_that_comes_back_is_refused_also_by_the_resumed_run(
    sources: Any, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_tables, "_BATCH_BYTES", 400)
    ids = _names(rollouts)
    ids[-1] = ids[0]
    source = sources.write_parquet(tmp_path / "s.parquet", _flat(sources, rollouts, trajectory_id=ids), row_group=20)
    for resume in (False, True):
        with pytest.raises(BadEpisodeError, match="episode run-0000 goes on here") as error:
            gear_data.convert(source, tmp_path / "d", shard_bytes=2048, resume=resume)
        assert (error.value.column, error.value.row) == ("trajectory_id", len(ids) - 1)


def test_seen_ids_equal_a_set() -> None:
    rng = np.random.default_rng(0)
    forms = ["traj_{:05d}", "{}", "a{}b", "00{}", "x-{}", "{}."]
    seen, known = SeenIds(), set()
    for number in rng.integers(0, 130, 2000).tolist():
        value = forms[number % len(forms)].format(number * 8)
        assert (value in seen) == (value in known)
        seen.add(value)
        known.add(value)
        seen = SeenIds(seen.to_json())
    for lookalike in ("traj_8", "traj_000048", "", "-1", "٣"):
        assert lookalike not in seen
    counting = SeenIds()
    for number in range(1000):
        counting.add(f"{number}")
    assert counting.to_json() == {"": [[0, 999]]}


@pytest.mark.parametrize("as_integers", [False, True])
def test_end_column(as_integers: bool, sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    last = np.concatenate([np.arange(len(r)) == len(r) - 1 for r in rollouts])
    table = _flat(sources, rollouts, stop=last.astype(np.int8) if as_integers else last)
    source = sources.write_parquet(tmp_path / "s.parquet", table, row_group=11)
    gear_data.convert(source, tmp_path / "d", end_column="stop")
    sources.check_dataset(tmp_path / "d", _terminated(rollouts))
    assert "no-truncation-flag" in _codes(tmp_path / "d")


def test_end_column_of_nested_rows(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    columns = [{n: r.columns[n] for n in ("observations", "actions", "rewards")} for r in rollouts]
    table = sources.episode_table(
        columns,
        stop=[(np.arange(len(r)) == len(r) - 1).tolist() for r in rollouts],
        t=[[*range(len(r))] for r in rollouts],
    )
    source = sources.write_parquet(tmp_path / "s.parquet", table, row_group=3)
    report = gear_data.convert(source, tmp_path / "d", end_column="stop", step_column="t")
    assert report.format == "episode-rows"
    sources.check_dataset(tmp_path / "d", _terminated(rollouts))
    with pytest.raises(InvalidArgumentError, match="a row is an episode"):
        gear_data.convert(source, tmp_path / "e", format="episode-rows", episode_column="t")


@pytest.mark.parametrize("first", [0, 1, 17])
def test_step_column_begins_episodes(
    first: int, sources: Any, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_tables, "_BATCH_BYTES", 200)
    table = _flat(sources, rollouts, t=_steps(rollouts, first))
    gear_data.convert(
        sources.write_parquet(tmp_path / "s.parquet", table, row_group=7), tmp_path / "d", step_column="t"
    )
    sources.check_dataset(tmp_path / "d", _truncated(rollouts))
    assert _codes(tmp_path / "d").keys() == {"no-end-flag"}


def test_a_column_that_is_not_there(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    source = sources.write_parquet(tmp_path / "s.parquet", _flat(sources, rollouts, run=_steps(rollouts)))
    for option in ("episode_column", "step_column", "end_column"):
        for format in ("auto", "step-rows", "episode-rows"):
            with pytest.raises(UnknownNameError, match="'rum'") as error:
                gear_data.convert(source, tmp_path / "d", format=format, **{option: "rum"})
            assert "run" in str(error.value)


@pytest.mark.parametrize(
    ("option", "column"),
    [("episode_column", "rewards"), ("episode_column", "observations"), ("step_column", "rewards")],
)
def test_a_column_of_the_wrong_kind(option: str, column: str, sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    table = _flat(sources, rollouts, episode=sources.episode_numbers(rollouts))
    source = sources.write_parquet(tmp_path / "s.parquet", table)
    with pytest.raises(UnsupportedColumnError) as error:
        gear_data.convert(source, tmp_path / "d", **{option: column})
    assert error.value.column == column


# Step numbers.


@pytest.mark.parametrize("batch_bytes", [150, 1 << 20])
def test_step_numbers_are_compared_with_the_rows(
    batch_bytes: int, sources: Any, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_tables, "_BATCH_BYTES", batch_bytes)
    long = [i for i, r in enumerate(rollouts) if len(r) >= 6]
    starts = np.cumsum([0, *_lengths(rollouts)])
    steps = np.array(_steps(rollouts))
    gap, fall, late = starts[long[0]] + 3, starts[long[1]] + 4, starts[long[2]]
    steps[gap : starts[long[0] + 1]] += 5  # one gap
    steps[fall] -= 2  # falls here; a gap follows
    steps[late : starts[long[2] + 1]] += 1  # does not begin with 0
    clean = _flat(sources, rollouts, episode=sources.episode_numbers(rollouts), frame_index=_steps(rollouts))
    table = _flat(sources, rollouts, episode=sources.episode_numbers(rollouts), frame_index=steps)
    for name, made in (("clean", clean), ("flawed", table)):
        gear_data.convert(sources.write_parquet(tmp_path / f"{name}.parquet", made, row_group=6), tmp_path / name)
        sources.check_dataset(tmp_path / name, _truncated(rollouts))
    assert _codes(tmp_path / "clean").keys() == {"no-end-flag"}
    found = {f["code"]: f for f in gear_data.open(tmp_path / "flawed").manifest.findings}
    assert (found["steps-gapped"]["count"], found["steps-gapped"]["row"]) == (3, starts[long[0]])
    assert (found["steps-not-monotonic"]["count"], found["steps-not-monotonic"]["row"]) == (1, starts[long[1]])
    assert "first at step 3 of its episode" in found["steps-gapped"]["message"]
    assert "first at step 4 of its episode" in found["steps-not-monotonic"]["message"]
    assert found["steps-gapped"]["column"] == "frame_index"
    # A column with another name may begin with any number.
    gear_data.convert(
        sources.write_parquet(tmp_path / "t.parquet", table.rename_columns([*table.column_names[:-1], "t"])),
        tmp_path / "t",
        step_column="t",
    )
    assert (_codes(tmp_path / "t")["steps-gapped"], _codes(tmp_path / "t")["steps-not-monotonic"]) == (2, 1)


def test_order_columns_with_nulls_are_noted(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    index = [None if i == 5 else i for i in range(sum(_lengths(rollouts)))]
    table = _flat(sources, rollouts, episode=sources.episode_numbers(rollouts), index=pa.array(index, pa.int64()))
    gear_data.convert(sources.write_parquet(tmp_path / "s.parquet", table), tmp_path / "d")
    sources.check_dataset(tmp_path / "d", _truncated(rollouts))
    assert _codes(tmp_path / "d").keys() & {"steps-gapped", "steps-not-monotonic"}


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
    table = _flat(sources, rollouts, episode=sources.episode_numbers(rollouts)).drop_columns(["observations"])
    source = sources.write_parquet(
        tmp_path / "s.parquet", table.append_column("observation", pa.array(rows, type_)), row_group=9
    )
    options = {"columns": ["observation.state", "actions", "rewards", "observation.camera.depth"]}
    gear_data.convert(source, tmp_path / "d", **options)
    sources.check_dataset(tmp_path / "d", _truncated(depth))
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
    monkeypatch.setattr(arrow_tables, "_BATCH_BYTES", batch_bytes)
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
    offsets = np.cumsum([0, *_lengths(rollouts)])
    expected = [
        r.with_columns(observations=r.columns["observations"][..., None], kind=kind[offsets[i] : offsets[i + 1]])
        for i, r in enumerate(rollouts)
    ]
    sources.check_dataset(tmp_path / "d", expected)
    assert _codes(tmp_path / "d") == {"null-column": 1}


def test_arrow_types_that_mean_the_same(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    """Datasets are equal to the byte, whatever the list types and encodings."""
    columns = [r.columns for r in rollouts]
    ids, words = sources.episode_numbers(rollouts), ["up", "down"] * sum(_lengths(rollouts))
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


# Units.


def _read(source: Any, options: SourceOptions, cuts: list[Any] | None = None) -> tuple[list[Any], list[Any]]:
    """Reads a source unit by unit; or, with `cuts`, between these positions.

    Returns every episode as (source, row, facts, values by column), and the findings.
    """
    opened, _, _ = open_source(locate(source, None), "auto", options)
    starts = [unit.position for unit in opened.units()] if cuts is None else cuts
    episodes = []
    for start, stop in zip(starts, [*starts[1:], END], strict=True):
        opened.resume_state.clear()
        for block in opened.blocks(start, stop):
            offsets = block.offsets
            for i in range(len(block)):
                values = {n: v[offsets[i] : offsets[i + 1]].tolist() for n, v in block.columns.items()}
                facts = {n: v[i] for n, v in block.metadata.items()}
                episodes.append((block.sources[i], int(block.rows[i]), facts, values))
    return episodes, sorted(map(repr, opened.findings.to_json()))


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of a few hundred bytes; files above 3 kB count as large."""
    monkeypatch.setattr(parquet_units, "UNIT_BYTES", 3000)


def _check_units(source: Any, expected: int | None, options: SourceOptions | None = None) -> None:
    options = options or SourceOptions()
    opened, _, _ = open_source(locate(source, None), "auto", options)
    units = opened.units()
    assert units[0].position == BEGIN
    assert [unit.position for unit in units] == sorted({unit.position for unit in units})
    assert units == open_source(locate(source, None), "auto", options)[0].units()
    assert len(units) > 2 if expected is None else len(units) == expected
    assert _read(source, options) == _read(source, options, [BEGIN])


@pytest.mark.usefixtures("small_units")
@pytest.mark.parametrize("batch_bytes", [500, 1 << 20])
@pytest.mark.parametrize("layout", ["episodes", "steps", "names", "files of episodes", "lerobot"])
def test_units_together_are_the_whole(
    layout: str, batch_bytes: int, sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_tables, "_BATCH_BYTES", batch_bytes)
    rollouts = sources.make_rollouts(40 if layout == "lerobot" else 90, seed=3)
    ids = sources.episode_numbers(rollouts)
    if layout == "episodes":
        source = sources.write_episodes(tmp_path / "s.parquet", rollouts, row_group=10)
    elif layout == "files of episodes":
        for i in range(0, 90, 5):
            sources.write_episodes(tmp_path / "s" / f"part-{i}.parquet", rollouts[i : i + 5], row_group=2)
        source = tmp_path / "s"
    elif layout == "lerobot":
        source = sources.write_lerobot(tmp_path / "s", rollouts)
    else:
        steps = np.array(_steps(rollouts))
        steps[100] += 3
        column = {"trajectory_id": _names(rollouts)} if layout == "names" else {"episode_index": ids}
        table = _flat(sources, rollouts, frame_index=steps, **column)
        source = sources.write_parquet(tmp_path / "s.parquet", table, row_group=40)
    _check_units(source, None)
    whole, _ = _read(source, SourceOptions())
    assert [len(values["rewards"]) for _, _, _, values in whole] == _lengths(rollouts)


@pytest.mark.usefixtures("small_units")
def test_tables_that_cannot_be_cut(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(90, seed=3)
    falling = _flat(sources, rollouts, episode=90 - sources.episode_numbers(rollouts))
    _check_units(sources.write_parquet(tmp_path / "falling.parquet", falling, row_group=40), 1)
    steps = _flat(sources, rollouts, t=_steps(rollouts))
    _check_units(sources.write_parquet(tmp_path / "t.parquet", steps, row_group=40), 1, SourceOptions(step_column="t"))
    rising = _flat(sources, rollouts, episode=sources.episode_numbers(rollouts))
    pq.write_table(rising, tmp_path / "blind.parquet", row_group_size=40, write_statistics=False)
    _check_units(tmp_path / "blind.parquet", None)
    one = _flat(sources, rollouts, episode=np.zeros(len(rising), np.int64))
    _check_units(sources.write_parquet(tmp_path / "one.parquet", one, row_group=40), 1)
    _check_units(datasets.Dataset(rising), 1)


@pytest.mark.usefixtures("small_units")
def test_an_episode_that_continues_in_another_unit_is_refused(sources: Any, tmp_path: Path) -> None:
    """The files with the error were not opened when the units were found."""
    for i in range(60):
        number = {31: 2, 32: 32}.get(i, i)
        table = pa.table({"observations": [[1.0, 2.0]] * 4, "rewards": [1.0] * 4, "episode": [number] * 4})
        sources.write_parquet(tmp_path / "s" / f"part-{i}.parquet", table)
    opened, _, _ = open_source(locate(tmp_path / "s", None), "auto", SourceOptions())
    starts = [unit.position for unit in opened.units()]
    assert 31 not in [start.file for start in starts]
    assert len(starts) > 5
    errors = []
    for cuts in (None, [BEGIN]):
        with pytest.raises(BadEpisodeError, match="episode 2 ") as error:
            _read(tmp_path / "s", SourceOptions(), cuts)
        errors.append((error.value.file, error.value.row, str(error.value)))
    assert errors[0] == errors[1]
    assert errors[0][:2] == ("part-31.parquet", 0)


# Large tables.


def test_small_files_are_read_together(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    source = sources.write_lerobot(tmp_path / "s", rollouts)
    opened, _, _ = open_source(locate(source, None), "lerobot", SourceOptions())
    # The last episode might continue.
    block, last = opened.blocks(BEGIN, END)
    assert (len(block), len(last)) == (len(rollouts) - 1, 1)
    assert block.sources[7] == "data/chunk-000/episode_000007.parquet"
    assert block.rows.tolist() == [0] * len(block)


def test_errors_name_the_file_though_files_are_read_together(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    for layout, write in (("steps", sources.write_steps), ("episodes", sources.write_episodes)):
        for i, rollout in enumerate(rollouts[:9]):
            bad = rollout.columns["rewards"].astype(object)
            source = write(tmp_path / layout / f"part-{i}.parquet", [rollout])
            if layout == "steps":
                table = pq.read_table(source).set_column(5, "episode_index", pa.array([i] * len(rollout)))
                if i == 4:
                    bad[-1] = None
                    table = table.set_column(2, "rewards", pa.array(bad.tolist(), pa.float32()))
                pq.write_table(table, source)
            elif i == 4:
                table = pq.read_table(source)
                bad[-1] = None
                pq.write_table(table.set_column(2, "rewards", pa.array([bad.tolist()], pa.list_(pa.float32()))), source)
        with pytest.raises(BadEpisodeError) as error:
            gear_data.convert(tmp_path / layout, tmp_path / "d")
        row = len(rollouts[4]) - 1 if layout == "steps" else 0
        assert (error.value.file, error.value.row, error.value.column) == ("part-4.parquet", row, "rewards")
        gear_data.convert(tmp_path / layout, tmp_path / f"{layout}-d", on_bad_episode="skip")
        sources.check_dataset(tmp_path / f"{layout}-d", [r for i, r in enumerate(rollouts[:9]) if i != 4])


def test_a_constant_column_is_as_large_in_memory_as_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant column takes few bytes in the file, and its first rows are short."""
    monkeypatch.setattr(arrow_tables, "_BATCH_BYTES", 100_000)
    lengths = [1] * 64 + [500] * 600
    table = pa.table(
        {
            "observations": pa.array([[[0] * 4] * n for n in lengths], pa.list_(pa.list_(pa.uint8()))),
            "rewards": [[1.0] * n for n in lengths],
        }
    )
    pq.write_table(table, tmp_path / "s.parquet")
    assert (tmp_path / "s.parquet").stat().st_size < table.nbytes / 50
    tables = arrow_tables.ParquetTables(locate(tmp_path / "s.parquet", None).files)
    parts = list(tables.parts(BEGIN, END))
    assert sum(len(part.table) for part in parts) == len(lengths)
    assert max(part.table.nbytes for part in parts) < 5 * 100_000


def test_batches_are_bounded_for_consecutive_long_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean size of a row group's rows does not predict its last rows."""
    monkeypatch.setattr(arrow_tables, "_BATCH_BYTES", 400_000)
    lengths = [10] * 4000 + [2000] * 100
    rng = np.random.default_rng(0)
    table = pa.table({"rewards": [rng.standard_normal(n) for n in lengths]})
    pq.write_table(table, tmp_path / "s.parquet", row_group_size=len(table))
    tables = arrow_tables.ParquetTables(locate(tmp_path / "s.parquet", None).files)
    parts = list(tables.parts(BEGIN, END))
    assert [n for part in parts for n in pa.compute.list_value_length(part.table["rewards"]).to_pylist()] == lengths
    assert max(part.table.nbytes for part in parts) < 3 * 400_000


@pytest.mark.skipif(int(pa.__version__.split(".")[0]) < 21, reason="this pyarrow reads only lists with 32-bit offsets")
def test_lists_have_offsets_of_64_bits(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    """An episode may have more elements than 32-bit offsets can address.

    test_huge_row_group has a whole row group of such episodes.
    """
    columns = sources.episode_table([r.columns for r in rollouts])
    source = tmp_path / "s.parquet"
    pq.write_table(columns, source, row_group_size=16, store_schema=False)
    tables = arrow_tables.ParquetTables(locate(source, None).files)
    part = next(iter(tables.parts(BEGIN, END)))
    assert pa.types.is_large_list(part.table.schema.field("rewards").type)


# Damaged files.


def test_a_later_file_with_a_column_twice(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    sources.write_episodes(tmp_path / "s" / "a.parquet", rollouts)
    table = pq.read_table(tmp_path / "s" / "a.parquet")
    pq.write_table(table.append_column("rewards", table["rewards"]), tmp_path / "s" / "b.parquet")
    with pytest.raises(CorruptSourceError, match="two columns have this name") as error:
        gear_data.convert(tmp_path / "s", tmp_path / "d")
    assert (error.value.file, error.value.column) == ("b.parquet", "rewards")


@pytest.mark.usefixtures("small_units")
def test_a_damaged_footer_does_not_end_the_process(sources: Any, tmp_path: Path) -> None:
    """pyarrow's own access to column metadata ends the process.

    That access is `row_group(i).column(j)`; no test could continue after it.
    """
    source = sources.write_steps(tmp_path / "s.parquet", sources.make_rollouts(40, seed=3), row_group=40)
    whole = source.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    rng = np.random.default_rng(5)
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[rng.integers(footer, len(whole) - 8)] = rng.integers(256)
        source.write_bytes(damaged)
        try:
            opened, _, _ = open_source(locate(source, None), "step-rows", SourceOptions())
            for unit in opened.units():
                assert unit.position.row >= 0
            for _ in opened.blocks(BEGIN, END):
                pass
        except gear_data.GearError:
            refused += 1
    assert refused > 10
