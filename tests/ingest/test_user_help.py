"""Tests help for mistakes: errors and findings with problem, place and advice."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.cli import main
from gear_data.common.progress import pluralize, progress_bar
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    GearError,
    InvalidArgumentError,
    ResumeError,
    SourceChangedError,
    UnknownFormatError,
    UnknownNameError,
    UnsupportedColumnError,
)
from gear_data.ingest.location import files_to_compare, locate, separate_datasets_hint
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.registry import known_formats, open_source
from gear_data.storage.episode_block import BEGIN, END
from gear_data.storage.episode_tables import SOURCE_ROW, concatenate_episode_tables

Array = npt.NDArray[Any]


def an_episode(**more: Any) -> dict[str, Any]:
    """Returns an episode of five steps."""
    return {"observations": np.arange(5.0)[:, None], "actions": np.zeros((5, 1)), "rewards": np.zeros(5), **more}


def write(path: Path, columns: Mapping[str, Any], **options: Any) -> Path:
    """Writes a Parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(columns)), path, **options)
    return path


def findings_of(folder: Path, code: str) -> list[tuple[Any, ...]]:
    """Returns the findings of a code as (message, count, file, row, column)."""
    found = [item for item in gear_data.open(folder).manifest.findings if item["code"] == code]
    return [tuple(item[key] for key in ("message", "count", "file", "row", "column")) for item in found]


# Names.


@pytest.mark.parametrize("name", ["", "a..b", ".", "../x", "x/", "a/../b"])
def test_columns_without_a_name(name: str, tmp_path: Path) -> None:
    source = [an_episode(**{name: np.arange(5)})]
    table = write(tmp_path / "s.parquet", {"episode_index": [0, 0], "action": [1.0, 2.0], name: [3, 4]})
    for i, bad in enumerate((source, table)):
        with pytest.raises(UnsupportedColumnError, match="empty") as error:
            gear_data.convert(bad, tmp_path / f"bad{i}")
        assert error.value.column == name
        assert "--rename" in str(error.value)
        assert not (tmp_path / f"bad{i}").exists()
        gear_data.convert(bad, tmp_path / f"renamed{i}", rename={name: "x"})
        assert gear_data.open(tmp_path / f"renamed{i}").episode(0)["x"].tolist() == [[3, 4], [0, 1, 2, 3, 4]][i == 0]
        gear_data.convert(bad, tmp_path / f"left{i}", columns=["actions"])
        assert name not in gear_data.open(tmp_path / f"left{i}").schema.names


def test_facts_and_new_names_that_are_empty(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedColumnError, match="fact") as error:
        gear_data.convert([an_episode(), an_episode(**{"": 3})], tmp_path / "d")
    assert error.value.column == ""
    with pytest.raises(UnsupportedColumnError, match="empty"):
        gear_data.convert([an_episode()], tmp_path / "d", rename={"observations": ""})


# Skipped bad episodes.


def test_a_bad_episode_left_out_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding has the column, reason and row of the error.

    Files and read sizes change nothing.
    """
    state: list[Any] = [[1.0, 2.0]] * 12
    action: list[Any] = [float(i) for i in range(12)]
    ids = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    action[3] = action[8] = None  # episodes 1 and 4
    state[4] = [1.0]  # episode 2, whose action is missing one step later: it counts once
    action[5] = None
    state[9] = [1.0, None]  # episode 4, after its action
    expected = [
        ("holds a null; skipped", 2, "0.parquet", 3, "action"),
        ("has 1 elements in axis 1, where 2 are expected; skipped", 1, "0.parquet", 4, "state"),
    ]

    def columns(rows: slice) -> dict[str, Any]:
        return {"episode_index": ids[rows], "state": state[rows], "action": action[rows]}

    write(tmp_path / "one" / "0.parquet", columns(slice(0, 12)))
    for i, rows in enumerate((slice(0, 5), slice(5, 7), slice(7, 12))):
        write(tmp_path / "three" / f"{i}.parquet", columns(rows))
    for name in ("one", "three"):
        with pytest.raises(BadEpisodeError) as error:
            gear_data.convert(tmp_path / name, tmp_path / "d")
        told = error.value
        assert (f"{told.message}; skipped", told.file, told.row, told.column) in [
            (message, *place) for message, _, *place in expected
        ]
    for batch in (1 << 20, 1):
        import gear_data.ingest.sources.tables.file_stream as module

        monkeypatch.setattr(module, "_BATCH_BYTES", batch)
        for name in ("one", "three"):
            out = tmp_path / f"{name}{batch}"
            assert gear_data.convert(tmp_path / name, out, on_bad_episode="skip").episodes == 3
            assert findings_of(out, "bad-episode") == expected
            noticed = [f for f in gear_data.lint(tmp_path / name).findings if f.code == "bad-episode"]
            assert [(f.message, f.count, f.file, f.row, f.column) for f in noticed] == expected
            kept = [gear_data.open(out).episode(i)["actions"].tolist() for i in range(3)]
            assert kept == [[0.0, 1.0], [6.0, 7.0], [10.0, 11.0]]


# Several datasets in one folder.


def test_folders_of_several_datasets(sources: Any, tmp_path: Path) -> None:
    rollouts, others = sources.make_rollouts(3), sources.make_rollouts(3, states=4)
    for name, some in (("hopper", rollouts), ("walker", others)):
        sources.write_episodes(tmp_path / "parquet" / name / "a" / "0.parquet", some)
        sources.write_d4rl(tmp_path / "d4rl" / name / "0.hdf5", some)
        for i, rollout in enumerate(some):
            path = tmp_path / "npz" / name / f"{i}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(path, **rollout.columns)
    write(tmp_path / "columns" / "cart" / "0.parquet", {"rewards": [[1.0, 2.0]], "observations": [[1.0, 2.0]]})
    write(tmp_path / "columns" / "pole" / "0.parquet", {"rewards": [[1.0, 2.0]], "images": [[1.0, 2.0]]})
    kinds = {"columns": "cart, pole", "d4rl": "hopper, walker", "npz": "hopper, walker", "parquet": "hopper, walker"}
    for kind, folders in kinds.items():
        with pytest.raises((CorruptSourceError, BadEpisodeError)) as error:
            gear_data.convert(tmp_path / kind, tmp_path / "d")
        assert f"one folder at a time: {folders}" in str(error.value), kind
        # Before reading: `units` reads no steps.
        with pytest.raises((CorruptSourceError, BadEpisodeError), match="one folder at a time"):
            open_source(locate(tmp_path / kind, None), "auto", SourceOptions())[0].units()
        # Files of one folder should have the same columns.
        together = tmp_path / f"{kind} together"
        together.mkdir()
        for i, path in enumerate(sorted((tmp_path / kind).rglob("*.*"))):
            shutil.copy(path, together / f"{i}{path.suffix}")
        with pytest.raises((CorruptSourceError, BadEpisodeError)) as error:
            gear_data.convert(together, tmp_path / "d")
        assert "one folder" not in str(error.value), kind


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_large_files_are_compared_before_reading(
    kind: str, sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i, states in enumerate((3, 3, 4)):
        (rollout,) = sources.make_rollouts(1, states=states)
        (tmp_path / "s").mkdir(exist_ok=True)
        if kind == "npz":
            np.savez(tmp_path / f"s/{i}.npz", **rollout.columns)
        else:
            extra = {} if states == 3 else {"more": rollout.columns["rewards"]}
            sources.write_episodes(tmp_path / f"s/{i}.parquet", [rollout.with_columns(**extra)])
    source = open_source(locate(tmp_path / "s", None), "auto", SourceOptions())[0]
    assert source.units()  # small files are compared when they are read
    for module in ("arrays.source", "tables.file_stream"):
        monkeypatch.setattr(f"gear_data.ingest.sources.{module}.UNIT_BYTES", 1)
    with pytest.raises(CorruptSourceError, match=rf"^2\.{kind}"):
        source.units()


def test_which_files_are_compared() -> None:
    names = ["a/0", "a/1", "b/c/0", "b/d/0", "e/0"]
    assert files_to_compare(names, [5, 5, 5, 9, 5], large=8) == [2, 3, 4]
    assert files_to_compare(["0", "1", "2"], [9, 1, 9], large=8) == [2]
    assert files_to_compare([], [], large=8) == files_to_compare(["0"], [9], large=8) == []
    assert files_to_compare([f"{i}/data" for i in range(100)], [1] * 100, large=8) == []


def test_which_folders_are_named() -> None:
    names = ["x/a/0", "x/a/1", "x/b/c/0", "x/0"]
    assert separate_datasets_hint(names, "x/a/0", "x/a/1") is None
    assert str(separate_datasets_hint(names, "x/a/0", "x/b/c/0")).endswith(": x/a, x/b")
    many = [f"{i}/data" for i in range(12)]
    assert str(separate_datasets_hint(many, "0/data", "1/data")).endswith(": 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...")


@pytest.mark.parametrize(
    ("folder", "names"), [("gato_jat", "atari-pong, babyai, cartpole"), ("imitation_npz", "cartpole_0, pendulum_0")]
)
def test_real_folders_of_several_datasets(folder: str, names: str, shared_data: Path, tmp_path: Path) -> None:
    with pytest.raises(CorruptSourceError) as error:
        gear_data.convert(shared_data / folder, tmp_path / "d")
    assert f"one folder at a time: {names}" in str(error.value)


# Unsuitable options.


def test_episode_column_for_tables_of_episodes(tmp_path: Path) -> None:
    steps = [[[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 5.0]]]
    table = {"observations": steps, "rewards": [[1.0, 2.0], [1.0, 3.0]], "seed": [1, 2], "won": [True, False]}
    source = write(tmp_path / "s.parquet", table)
    for option, kind in (
        ({"episodes": gear_data.EpisodeBoundaries(episode_column="seed")}, InvalidArgumentError),
        ({"episodes": gear_data.EpisodeBoundaries(step_column="seed")}, UnsupportedColumnError),
        ({"episodes": gear_data.EpisodeBoundaries(end_column="won")}, UnsupportedColumnError),
        (
            {"episodes": gear_data.EpisodeBoundaries(episode_column="seed"), "format": "episode-rows"},
            InvalidArgumentError,
        ),
    ):
        with pytest.raises(kind) as error:
            gear_data.convert(source, tmp_path / "d", **option)
        assert error.value.column in ("seed", "won")
        assert str(error.value).startswith(f"{source}, column ")
        assert "leave --" in str(error.value)
    # A reward that is a list of one belongs to a step.
    one = {"observations": [[1.0], [2.0], [3.0]], "rewards": [[1.0], [2.0], [3.0]], "run": [0, 0, 1]}
    gear_data.convert(
        write(tmp_path / "one.parquet", one), tmp_path / "d", episodes=gear_data.EpisodeBoundaries(episode_column="run")
    )
    assert gear_data.open(tmp_path / "d").lengths.tolist() == [2, 1]


@pytest.mark.parametrize(
    "option",
    [
        {"columns": ["nope"]},
        {"episodes": gear_data.EpisodeBoundaries(episode_column="nope")},
        {"episodes": gear_data.EpisodeBoundaries(end_column="nope")},
    ],
)
def test_an_unknown_column_is_named_once_with_its_file(option: dict[str, Any], sources: Any, tmp_path: Path) -> None:
    source = sources.write_steps(tmp_path / "s.parquet", sources.make_rollouts(3))
    with pytest.raises(UnknownNameError) as error:
        gear_data.convert(source, tmp_path / "d", **option)
    assert str(error.value).splitlines()[0] == f"{source}: unknown column 'nope'"


def test_two_columns_of_one_name_say_in_which_source(sources: Any, tmp_path: Path) -> None:
    source = sources.write_steps(tmp_path / "s.parquet", sources.make_rollouts(3))
    with pytest.raises(InvalidArgumentError, match="both become 'rewards'") as error:
        gear_data.convert(source, tmp_path / "d", rename={"actions": "rewards"})
    assert error.value.file == str(source)


def test_facts_of_mixed_type(tmp_path: Path) -> None:
    episodes = [an_episode(seed=i if i != 57 else "x") for i in range(70)]
    with pytest.raises(UnsupportedColumnError, match="mixed") as error:
        gear_data.convert(episodes, tmp_path / "d")
    assert (error.value.column, error.value.row, error.value.file) == ("seed", 57, "list in memory")
    assert "one type" in str(error.value.hint)
    # Each block may have another type.
    tables = [pa.table({"source": [file], "seed": values}) for file, values in (("a", [1]), ("b", [0.5]), ("c", ["x"]))]
    assert concatenate_episode_tables(tables[:2]).column("seed").to_pylist() == [1.0, 0.5]
    with pytest.raises(UnsupportedColumnError, match="string, earlier double") as error:
        concatenate_episode_tables(tables)
    assert (error.value.column, error.value.file) == ("seed", "c")


@pytest.mark.parametrize("url", ["s3://", "s3:///", "memory://"])
def test_a_url_without_files(url: str, sources: Any, tmp_path: Path) -> None:
    source = sources.write_episodes(tmp_path / "s.parquet", sources.make_rollouts(1))
    for use in (gear_data.open, gear_data.verify, lambda place: gear_data.convert(source, place)):
        with pytest.raises(InvalidArgumentError, match="the URL names no file or folder") as error:
            use(url)
        assert error.value.file == url


# Invalid sources.


def test_a_gear_dataset_is_not_a_source(sources: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = sources.write_episodes(tmp_path / "s.parquet", sources.make_rollouts(9))
    gear_data.convert(source, tmp_path / "done")
    half = tmp_path / "half"
    (half / ".progress").mkdir(parents=True)
    (half / "shards").mkdir()
    shutil.copy(next((tmp_path / "done" / "shards").iterdir()), half / "shards")
    for folder, message in ((tmp_path / "done", "is already a gear dataset"), (half, "is an unfinished conversion")):
        for use in (gear_data.lint, lambda place: gear_data.convert(place, tmp_path / "d")):
            with pytest.raises(UnknownFormatError, match=message):
                use(folder)
    assert main(["convert", str(half), str(tmp_path / "d")]) == 1
    assert "--resume" in capsys.readouterr().err


def test_an_unknown_source_lists_its_columns(tmp_path: Path) -> None:
    source = write(tmp_path / "s.parquet", {"my run": [0, 0, 1], "act": [1.0, 2.0, 3.0], "x": [1.0, 2.0, 3.0]})
    with pytest.raises(UnknownFormatError) as error:
        gear_data.convert(source, tmp_path / "d")
    hint = str(error.value.hint)
    assert "for example --episode-column 'my run';" not in hint  # `act` is a known name of actions
    assert "for example --episode-column 'my run' --rename act=actions;" in hint
    assert "in-memory" not in hint
    assert all(name in hint for name in known_formats() if name != "in-memory")
    gear_data.convert(
        source, tmp_path / "d", episodes=gear_data.EpisodeBoundaries(episode_column="my run"), rename={"act": "actions"}
    )
    nothing = write(tmp_path / "n.parquet", {"x": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 3.0]})
    with pytest.raises(UnknownFormatError) as error:
        gear_data.convert(nothing, tmp_path / "e")
    assert "for example" not in str(error.value)


@pytest.mark.parametrize("kind", ["empty folder", "npz", "other columns"])
def test_repair_from_another_source(kind: str, sources: Any, tmp_path: Path) -> None:
    source = sources.write_episodes(tmp_path / "s.parquet", sources.make_rollouts(9))
    gear_data.convert(source, tmp_path / "d", rename={"observations": "states"})
    shard = next((tmp_path / "d" / "shards").iterdir())
    shard.write_bytes(shard.read_bytes()[:-10])
    other = tmp_path / "other"
    other.mkdir()
    if kind == "npz":
        np.savez(other / "a.npz", actions=np.zeros(3), rewards=np.zeros(3))
    if kind == "other columns":
        write(other / "a.parquet", {"observations": [[1.0, 2.0]], "rewards": [[1.0, 2.0]]})
    with pytest.raises(SourceChangedError) as error:
        gear_data.repair(tmp_path / "d", other)
    assert "--" not in str(error.value)  # `repair` has no such options
    if kind != "other columns":
        assert str(source) in str(error.value)


# Findings.


def test_a_duplicate_is_named_by_its_row(sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is right for files of steps and of episodes, and with several tasks."""
    one, other = sources.make_rollouts(4, seed=1), sources.make_rollouts(6, seed=2)
    other[4] = one[2]
    first_row = sum(len(rollout) for rollout in other[:4])
    import gear_data.ingest.sources.tables.read_units as module

    monkeypatch.setattr(module, "UNIT_BYTES", 1)
    for kind, row in (("episodes", 4), ("steps", first_row)):
        for i, some in enumerate((one, other)):
            path = tmp_path / kind / f"{i}.parquet"
            if kind == "episodes":
                sources.write_episodes(path, some)
            else:
                numbers = sources.episode_numbers(some) + 10 * i
                sources.write_parquet(path, sources.step_table([r.columns for r in some], episode_index=numbers))
        out = tmp_path / f"{kind} out"
        gear_data.convert(tmp_path / kind, out, shard_bytes=1024)
        message = "episodes hold the same steps as earlier ones, first episode 8 as episode 2; kept"
        assert findings_of(out, "duplicate-episode") == [(message, 1, "1.parquet", row, None)]
        noticed = [f for f in gear_data.lint(tmp_path / kind).findings if f.code == "duplicate-episode"]
        assert [(f.message, f.count, f.file, f.row) for f in noticed] == [(message, 1, "1.parquet", row)]
        # The dataset does not store the row.
        assert not [name for name in gear_data.open(out).episodes.columns if "row" in name]


def test_a_conversion_begun_by_an_older_version(sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of that version do not have the episodes' rows in the source."""
    import gear_data.storage.writing.shard_writer as module

    source = sources.write_episodes(tmp_path / "s.parquet", sources.make_rollouts(40))
    rows_now = module.episode_rows

    def rows_then(*arguments: Any, **options: Any) -> pa.Table:
        return rows_now(*arguments, **options).drop_columns(SOURCE_ROW)

    for i, run in enumerate(([rows_then], [rows_then] * 2 + [rows_now] * 100)):
        runs = iter(run)
        with monkeypatch.context() as patch:
            patch.setattr(module, "episode_rows", lambda *a, runs=runs, run=run, **o: next(runs, run[0])(*a, **o))
            with pytest.raises(ResumeError, match="another version") as error:
                gear_data.convert(source, tmp_path / f"d{i}", shard_bytes=1024)
        assert "start again" in str(error.value)


def test_the_stated_limit_truncates(tmp_path: Path) -> None:
    """npz and D4RL give the same fingerprint, and the same findings except the place."""
    terminals = np.zeros(32, np.bool_)
    terminals[[3, 9, 21]] = True  # 4 steps; 6 at the limit; 6 stopped and 6 at the limit; 6 stopped and a tail of 4
    columns = {
        "observations": np.arange(96, dtype=np.float32).reshape(32, 3),
        "actions": np.arange(32, dtype=np.float32)[:, None],
        "rewards": np.ones(32, np.float32),
        "terminals": terminals,
    }
    np.savez(tmp_path / "s.npz", **columns)
    with h5py.File(tmp_path / "s.hdf5", "w") as file:
        for name, values in columns.items():
            file[name] = values
    prints = set()
    for name in ("s.npz", "s.hdf5"):
        gear_data.convert(
            tmp_path / name, tmp_path / f"{name} out", episodes=gear_data.EpisodeBoundaries(max_episode_steps=6)
        )
        dataset = gear_data.open(tmp_path / f"{name} out")
        assert dataset.episodes.select("length", "terminated", "truncated").rows() == [
            (4, True, False),
            (6, True, False),
            (6, False, True),
            (6, True, False),
            (6, False, True),
            (4, False, True),
        ]
        prints.add(dataset.fingerprint)
        codes = {item["code"]: item["count"] for item in dataset.manifest.findings}
        assert codes == {"ends-by-length": 1, "unfinished-episode": 1}
    assert len(prints) == 1


# Progress and output.


@pytest.mark.parametrize("kind", ["episodes", "steps"])
@pytest.mark.parametrize("unit_bytes", [1, 1 << 30])
def test_progress_has_a_total_for_several_files(
    kind: str, unit_bytes: int, sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The total is exact if the units need the footers; otherwise it is an estimate.

    No file is opened only for the total.
    """
    import gear_data.ingest.sources.tables.files.parquet as tables
    import gear_data.ingest.sources.tables.open as opening
    import gear_data.ingest.sources.tables.read_units as units
    from gear_data.ingest.location import SourceFile
    from gear_data.ingest.sources.tables.files.kind import FileKind

    monkeypatch.setattr(units, "UNIT_BYTES", unit_bytes)
    opened: list[str] = []

    class Counted(tables.ParquetTable):
        def __init__(self, file: SourceFile, model: Any = None) -> None:
            super().__init__(file, model)
            opened.append(file.name)

    monkeypatch.setattr(opening, "_KINDS", {"Parquet": FileKind("Parquet", Counted)})
    rows = 0
    for i in range(6):
        rollouts = sources.make_rollouts(80 + 40 * i, seed=i)
        numbers = np.arange(len(rollouts)) + 1000 * i
        columns = [rollout.columns for rollout in rollouts]
        numbers = np.repeat(numbers, [len(rollout) for rollout in rollouts])
        table = sources.step_table(columns, episode_index=numbers) if kind == "steps" else None
        path = tmp_path / f"{i}.parquet"
        path = sources.write_episodes(path, rollouts) if table is None else sources.write_parquet(path, table)
        rows += len(rollouts) if table is None else len(table)
    source, _, _ = open_source(locate(tmp_path, None), "auto", SourceOptions())
    source.units()
    before = list(opened)
    total = source.num_rows
    assert opened == before
    assert total == rows if unit_bytes == 1 else abs(total - rows) < 0.2 * rows
    assert sum(block.source_rows for block in source.blocks(BEGIN, END)) == rows


def test_the_bar_is_given_the_total(sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gear_data.ingest.convert as module

    totals: list[Any] = []

    def bar(total: int | None, *arguments: Any) -> Any:
        totals.append(total)
        return progress_bar(total, *arguments)

    monkeypatch.setattr(module, "progress_bar", bar)
    rollouts = sources.make_rollouts(20)
    for i in range(2):
        sources.write_d4rl(tmp_path / "d4rl" / f"{i}.hdf5", rollouts)
        sources.write_episodes(tmp_path / "parquet" / f"{i}.parquet", rollouts)
    gear_data.convert(tmp_path / "d4rl", tmp_path / "a")
    gear_data.convert(tmp_path / "parquet", tmp_path / "b")
    assert totals == [2 * sum(len(rollout) for rollout in rollouts), 40]


def test_numbers_and_their_nouns(sources: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (pluralize(1, "shard"), pluralize(0, "shard"), pluralize(1234, "step")) == (
        "1 shard",
        "0 shards",
        "1,234 steps",
    )
    source = sources.write_episodes(tmp_path / "s.parquet", sources.make_rollouts(1))
    assert main(["lint", str(source)]) == 1
    assert "\n1 episode, 1 step, 1 kind of findings\n" in capsys.readouterr().out
    assert main(["convert", str(source), str(tmp_path / "d")]) == 0
    assert "\n1 episode, 1 step, 1 shard, " in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "d")]) == 0
    assert "1 episode, 1 step, " in capsys.readouterr().out.splitlines()[0]
    assert main(["export", str(tmp_path / "d"), str(tmp_path / "o.npz"), "--format", "npz"]) == 0
    assert "1 episode, 1 step" in capsys.readouterr().out


def test_help_names_the_formats(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10000")  # names with a hyphen stay in one line
    for command in ("convert", "lint"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        words = capsys.readouterr().out.replace(",", " ").split()
        after = words[words.index("FORMAT") :]
        last = next(i for i, word in enumerate(after) if word.endswith(";"))
        named = {word.removesuffix(";") for word in after[after.index("auto") : last + 1]}
        assert named - {"FORMAT"} == {"auto", "(default)", "or", *known_formats()} - {"in-memory"}
    text = (Path(gear_data.__file__).parents[1] / "docs" / "reference" / "formats.md").read_text()
    order = ", ".join(f"`{name}`" for name in known_formats() if name != "in-memory")
    assert order in " ".join(text.split())


@pytest.mark.processes
@pytest.mark.parametrize("command", ["verify", "inspect", "--help"])
def test_commands_load_no_readers(command: str, rollouts_path: Path) -> None:
    """The check leaves pandas out: pyarrow imports it if it is installed."""
    code = (
        "import sys\nfrom gear_data.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "names = ('h5py', 'PIL', 'datasets', 'torch', 'ray', 'tensorflow', 'gear_data.ingest')\n"
        "print([n for n in names if n in sys.modules])"
    )
    arguments = [command] if command == "--help" else [command, str(rollouts_path)]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_failed_ray_task_gives_its_reason() -> None:
    from gear_data.ingest.engine.ray_cluster import reason

    class RayTaskError(Exception):
        cause = KeyError("no such thing")

    assert reason(RayTaskError("ray::_do() (pid=1)\n  File ...")) == "KeyError: 'no such thing'"
    assert reason(GearError("the worker died\nmore")) == "the worker died"
    assert reason(ValueError()) == "ValueError"
