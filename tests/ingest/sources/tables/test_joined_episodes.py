"""Several columns that name an episode, files that are episodes, and episodes that were joined."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import gear_data
from gear_data.cli import main
from gear_data.errors import BadEpisodeError, InvalidArgumentError, UnknownFormatError
from gear_data.ingest.engine.spec import ConversionSpec
from gear_data.ingest.source import SourceOptions
from gear_data.storage.episode_block import END
from tests.support.checks import warning_codes

RUNS = ("a", "a", "b", "b", "c")
NUMBERS = (0, 1, 1, 2, 2)
LENGTHS = (3, 2, 4, 1, 3)


def _log(**more: Any) -> pl.DataFrame:
    """Returns a row a step of three runs, whose numbers meet."""
    return pl.DataFrame(
        {
            "run": np.repeat(RUNS, LENGTHS),
            "episode": np.repeat(NUMBERS, LENGTHS),
            "timestep": np.concatenate([np.arange(n) for n in LENGTHS]),
            "obs": np.arange(float(sum(LENGTHS))),
            "action": np.arange(float(sum(LENGTHS))),
            **more,
        }
    )


@pytest.mark.parametrize("suffix", ["csv", "parquet", "ndjson"])
def test_several_columns_on_the_command_line(suffix: str, tmp_path: Path) -> None:
    source = tmp_path / f"log.{suffix}"
    getattr(_log(), f"write_{suffix}")(source)
    assert main(["convert", str(source), str(tmp_path / "joined")]) == 0
    assert gear_data.open(tmp_path / "joined").episodes["length"].to_list() == [3, 6, 4]
    options = ["--episode-column", "run", "--episode-column", "episode"]
    assert main(["convert", str(source), str(tmp_path / "d"), *options]) == 0
    table = gear_data.open(tmp_path / "d").episodes
    assert table["length"].to_list() == [*LENGTHS]
    assert (table["run"].to_list(), table["episode"].to_list()) == ([*RUNS], [*NUMBERS])


def test_joined_episodes_are_reported_at_their_row(tmp_path: Path) -> None:
    gear_data.convert(_log(), tmp_path / "d")
    found = {each["code"]: each for each in gear_data.open(tmp_path / "d").manifest.findings}
    assert (found["run-changes"]["count"], found["run-changes"]["row"], found["run-changes"]["column"]) == (2, 5, "run")
    falls = found["steps-not-monotonic"]
    assert (falls["count"], falls["row"], falls["column"]) == (1, 5, "timestep")


def test_a_number_that_repeats_is_no_fall(tmp_path: Path) -> None:
    frame = _log(timestep=np.zeros(13)).with_columns(run=pl.lit(1))
    assert warning_codes(gear_data.convert(frame, tmp_path / "d")) == ["no-end-flag"]


def test_ids_that_come_back_are_refused(tmp_path: Path) -> None:
    frame = pl.concat([_log(), _log().head(2)])
    with pytest.raises(BadEpisodeError, match="episode a/0 continues here after another one began") as error:
        gear_data.convert(
            frame, tmp_path / "d", episodes=gear_data.EpisodeBoundaries(episode_column=["run", "episode"])
        )
    assert error.value.row == 13


@pytest.mark.parametrize("kind", ["csv", "parquet", "ndjson", "frame", "npz"])
def test_ids_may_come_back_if_a_flag_ends_the_episodes(kind: str, tmp_path: Path) -> None:
    """Tables and arrays give the same episodes. Neighbours of one id end at the flag."""
    ids, lengths = [0, 0, 1, 0], [3, 2, 4, 1]
    frame = pl.DataFrame(
        {
            "episode": np.repeat(ids, lengths),
            "obs": np.arange(10.0),
            "action": np.arange(10.0),
            "over": [False, False, True, False, True, False, False, False, False, True],
        }
    )
    source: Any = frame if kind == "frame" else tmp_path / f"log.{kind}"
    if kind == "npz":
        np.savez(source, **{name: frame[name].to_numpy() for name in frame.columns})
    elif kind == "parquet":
        frame.write_parquet(source, row_group_size=2)
    elif kind != "frame":
        getattr(frame, f"write_{kind}")(source)
    with pytest.raises(BadEpisodeError, match="episode 0 continues here after another one began") as error:
        gear_data.convert(source, tmp_path / "d", episodes=gear_data.EpisodeBoundaries(episode_column="episode"))
    assert error.value.hint is not None and "name it with --end-column" in error.value.hint
    ends = gear_data.EpisodeBoundaries(episode_column="episode", end_column="over")
    gear_data.convert(source, tmp_path / "d", episodes=ends)
    table = gear_data.open(tmp_path / "d").episodes
    assert (table["length"].to_list(), table["episode"].to_list()) == (lengths, ids)
    assert table["terminated"].to_list() == [True, True, False, True]


def test_units_of_several_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is cut where the first column rises, so several processes may read it."""
    for module in ("read_units", "file_stream"):
        monkeypatch.setattr(f"gear_data.ingest.sources.tables.{module}.UNIT_BYTES", 1)
    frame = _log().with_columns(run=pl.Series(np.repeat([0, 0, 1, 1, 2], LENGTHS)))
    frame.write_parquet(tmp_path / "log.parquet", row_group_size=2)
    options = SourceOptions(episodes=gear_data.EpisodeBoundaries(episode_column=("run", "episode")))
    spec = ConversionSpec(str(tmp_path / "log.parquet"), None, "auto", options, keep_encoded=False)
    source, _, _ = spec.open()
    starts = [unit.position for unit in source.units()]
    assert starts == [(0, 0), (0, 5), (0, 10)]
    blocks = [[*source.blocks(*pair)] for pair in pairwise([*starts, END])]
    lengths = [np.concatenate([block.lengths for block in each]).tolist() for each in blocks]
    assert lengths == [[3, 2], [4, 1], [3]]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "ndjson"])
def test_each_file_is_an_episode(suffix: str, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for i, length in enumerate((3, 1, 4)):
        frame = pl.DataFrame({"obs": np.arange(float(length)), "action": np.full(length, float(i))})
        getattr(frame, f"write_{suffix}")(folder / f"{i}.{suffix}")
    with pytest.raises(UnknownFormatError) as error:
        gear_data.convert(folder, tmp_path / "d")
    assert "--file-is-episode" in str(error.value)
    assert main(["convert", str(folder), str(tmp_path / "d"), "--file-is-episode"]) == 0
    dataset = gear_data.open(tmp_path / "d")
    assert dataset.episodes["length"].to_list() == [3, 1, 4]
    assert [float(dataset[i]["actions"][0]) for i in range(3)] == [0, 1, 2]
    assert dataset.episodes["source"].to_list() == [f"{i}.{suffix}" for i in range(3)]


def test_files_or_a_column(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="both say what an episode is"):
        gear_data.EpisodeBoundaries(episode_column="run", file_is_episode=True)
    with pytest.raises(InvalidArgumentError, match="must be the name of a column, not"):
        gear_data.EpisodeBoundaries(episode_column=("run", 3))  # type: ignore[arg-type]


def test_files_that_number_their_episodes_from_0_are_several_sources(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for i in range(2):
        pl.DataFrame({"episode": [0, 0, 1], "obs": [0.0, 1.0, i], "action": [0.0, 1.0, 2.0]}).write_csv(
            folder / f"{i}.csv"
        )
    with pytest.raises(BadEpisodeError, match="episode 0 continues here") as error:
        gear_data.convert(folder, tmp_path / "d")
    assert (error.value.hint or "").endswith("give the files as several sources")
    assert main(["convert", str(folder / "0.csv"), str(folder / "1.csv"), str(tmp_path / "d")]) == 0
    assert gear_data.open(tmp_path / "d").episodes["length"].to_list() == [2, 1, 2, 1]


def _floats() -> pl.DataFrame:
    """Returns a row a step of three episodes, of which only the last one ends with a flag, as one array of floats."""
    steps = np.arange(9.0)
    return pl.DataFrame(
        {"episode": np.repeat([0.0, 1.0, 2.0], (4, 2, 3)), "obs": steps, "action": -steps, "done": steps == 8}
    ).cast(pl.Float64)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "ndjson", "frame"])
def test_whole_floats_number_the_episodes(suffix: str, tmp_path: Path) -> None:
    source: Any = _floats() if suffix == "frame" else tmp_path / f"log.{suffix}"
    if suffix != "frame":
        getattr(_floats(), f"write_{suffix}")(source)
    report = gear_data.convert(source, tmp_path / "d")
    table = gear_data.open(tmp_path / "d").episodes
    assert (table["length"].to_list(), table["episode"].to_list()) == ([4, 2, 3], [0, 1, 2])
    assert "'episode' numbers the episodes" in report.reason


def test_an_id_that_changes_inside_an_episode_is_reported(tmp_path: Path) -> None:
    arrays = {name: _floats()[name].to_numpy() for name in ("episode", "obs", "action", "done")}
    np.savez(tmp_path / "log.npz", **arrays)
    report = gear_data.convert(tmp_path / "log.npz", tmp_path / "joined")
    (found,) = [each for each in gear_data.open(tmp_path / "joined").manifest.findings if each["code"] == "run-changes"]
    assert (report.episodes, found["count"], found["row"], found["column"]) == (1, 2, 4, "episode")
    assert main(["convert", str(tmp_path / "log.npz"), str(tmp_path / "d"), "--episode-column", "episode"]) == 0
    assert gear_data.open(tmp_path / "d").episodes["length"].to_list() == [4, 2, 3]
