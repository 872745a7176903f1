"""Tests of tables whose columns the user names, and of step numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.errors import (
    BadEpisodeError,
    InvalidArgumentError,
    UnknownFormatError,
    UnknownNameError,
    UnsupportedColumnError,
)
from gear_data.ingest.pipeline.id_ranges import SeenIds
from gear_data.ingest.sources.tables import file_stream
from tests.support.makers.step_tables import (
    Rollouts,
    as_terminated,
    as_truncated,
    episode_lengths,
    episode_names,
    finding_counts,
    flat_table,
    step_numbers,
)

# Columns that the user names.


@pytest.mark.parametrize("names", [False, True], ids=["numbers", "names"])
def test_episode_column(names: bool, sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    ids = episode_names(rollouts, "run {}") if names else (1000 - 7 * sources.episode_numbers(rollouts)).tolist()
    source = sources.write_parquet(tmp_path / "s.parquet", flat_table(sources, rollouts, run=ids), row_group=5)
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
    report = gear_data.convert(source, tmp_path / "d", episodes=gear_data.EpisodeBoundaries(episode_column="run"))
    assert (report.format, "--episode-column" in report.reason) == ("step-rows", True)
    sources.check_dataset(tmp_path / "d", as_truncated(rollouts))
    starts = np.cumsum([0, *episode_lengths(rollouts)[:-1]])
    assert gear_data.open(tmp_path / "d").episodes["run"].to_list() == [ids[i] for i in starts]


def test_names_of_episodes_are_found(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    table = flat_table(sources, rollouts, trajectory_id=pa.array(episode_names(rollouts)).dictionary_encode())
    report = gear_data.convert(sources.write_parquet(tmp_path / "s.parquet", table), tmp_path / "d")
    assert "'trajectory_id' names the episodes" in report.reason
    sources.check_dataset(tmp_path / "d", as_truncated(rollouts))


def test_a_name_that_comes_back_is_refused_also_by_the_resumed_run(
    sources: Any, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_stream, "_BATCH_BYTES", 400)
    ids = episode_names(rollouts)
    ids[-1] = ids[0]
    source = sources.write_parquet(
        tmp_path / "s.parquet", flat_table(sources, rollouts, trajectory_id=ids), row_group=20
    )
    for resume in (False, True):
        with pytest.raises(BadEpisodeError, match="episode run-0000 continues here") as error:
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
    table = flat_table(sources, rollouts, stop=last.astype(np.int8) if as_integers else last)
    source = sources.write_parquet(tmp_path / "s.parquet", table, row_group=11)
    gear_data.convert(source, tmp_path / "d", episodes=gear_data.EpisodeBoundaries(end_column="stop"))
    sources.check_dataset(tmp_path / "d", as_terminated(rollouts))
    assert "no-truncation-flag" in finding_counts(tmp_path / "d")


def test_end_column_of_nested_rows(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    columns = [{n: r.columns[n] for n in ("observations", "actions", "rewards")} for r in rollouts]
    table = sources.episode_table(
        columns,
        stop=[(np.arange(len(r)) == len(r) - 1).tolist() for r in rollouts],
        t=[[*range(len(r))] for r in rollouts],
    )
    source = sources.write_parquet(tmp_path / "s.parquet", table, row_group=3)
    report = gear_data.convert(
        source, tmp_path / "d", episodes=gear_data.EpisodeBoundaries(end_column="stop", step_column="t")
    )
    assert report.format == "episode-rows"
    sources.check_dataset(tmp_path / "d", as_terminated(rollouts))
    with pytest.raises(InvalidArgumentError, match="a row is an episode"):
        gear_data.convert(
            source, tmp_path / "e", format="episode-rows", episodes=gear_data.EpisodeBoundaries(episode_column="t")
        )


@pytest.mark.parametrize("first", [0, 1, 17])
def test_step_column_begins_episodes(
    first: int, sources: Any, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_stream, "_BATCH_BYTES", 200)
    table = flat_table(sources, rollouts, t=step_numbers(rollouts, first))
    gear_data.convert(
        sources.write_parquet(tmp_path / "s.parquet", table, row_group=7),
        tmp_path / "d",
        episodes=gear_data.EpisodeBoundaries(step_column="t"),
    )
    sources.check_dataset(tmp_path / "d", as_truncated(rollouts))
    assert finding_counts(tmp_path / "d").keys() == {"no-end-flag"}


def test_a_column_that_is_not_there(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    source = sources.write_parquet(tmp_path / "s.parquet", flat_table(sources, rollouts, run=step_numbers(rollouts)))
    for option in ("episode_column", "step_column", "end_column"):
        for format in ("auto", "step-rows", "episode-rows"):
            with pytest.raises(UnknownNameError, match="'rum'") as error:
                gear_data.convert(
                    source, tmp_path / "d", format=format, episodes=gear_data.EpisodeBoundaries(**{option: "rum"})
                )
            assert "run" in str(error.value)


@pytest.mark.parametrize(
    ("option", "column"),
    [("episode_column", "rewards"), ("episode_column", "observations"), ("step_column", "rewards")],
)
def test_a_column_of_the_wrong_kind(option: str, column: str, sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    table = flat_table(sources, rollouts, episode=sources.episode_numbers(rollouts))
    source = sources.write_parquet(tmp_path / "s.parquet", table)
    with pytest.raises(UnsupportedColumnError) as error:
        gear_data.convert(source, tmp_path / "d", episodes=gear_data.EpisodeBoundaries(**{option: column}))
    assert error.value.column == column


# Step numbers.


@pytest.mark.parametrize("batch_bytes", [150, 1 << 20])
def test_step_numbers_are_compared_with_the_rows(
    batch_bytes: int, sources: Any, rollouts: Rollouts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_stream, "_BATCH_BYTES", batch_bytes)
    long = [i for i, r in enumerate(rollouts) if len(r) >= 6]
    starts = np.cumsum([0, *episode_lengths(rollouts)])
    steps = np.array(step_numbers(rollouts))
    gap, fall, late = starts[long[0]] + 3, starts[long[1]] + 4, starts[long[2]]
    steps[gap : starts[long[0] + 1]] += 5  # one gap
    steps[fall] -= 2  # falls here; a gap follows
    steps[late : starts[long[2] + 1]] += 1  # does not begin with 0
    clean = flat_table(sources, rollouts, episode=sources.episode_numbers(rollouts), frame_index=step_numbers(rollouts))
    table = flat_table(sources, rollouts, episode=sources.episode_numbers(rollouts), frame_index=steps)
    for name, made in (("clean", clean), ("flawed", table)):
        gear_data.convert(sources.write_parquet(tmp_path / f"{name}.parquet", made, row_group=6), tmp_path / name)
        sources.check_dataset(tmp_path / name, as_truncated(rollouts))
    assert finding_counts(tmp_path / "clean").keys() == {"no-end-flag"}
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
        episodes=gear_data.EpisodeBoundaries(step_column="t"),
    )
    assert (finding_counts(tmp_path / "t")["steps-gapped"], finding_counts(tmp_path / "t")["steps-not-monotonic"]) == (
        2,
        1,
    )


def test_order_columns_with_nulls_are_noted(sources: Any, rollouts: Rollouts, tmp_path: Path) -> None:
    index = [None if i == 5 else i for i in range(sum(episode_lengths(rollouts)))]
    table = flat_table(sources, rollouts, episode=sources.episode_numbers(rollouts), index=pa.array(index, pa.int64()))
    gear_data.convert(sources.write_parquet(tmp_path / "s.parquet", table), tmp_path / "d")
    sources.check_dataset(tmp_path / "d", as_truncated(rollouts))
    assert finding_counts(tmp_path / "d").keys() & {"steps-gapped", "steps-not-monotonic"}


@pytest.mark.parametrize("name", ["is_first", "episode_starts"])
def test_flags_of_first_steps_begin_episodes(name: str, tmp_path: Path) -> None:
    """They end an episode also where no end flag does."""
    first = np.isin(np.arange(12), [0, 4, 9])
    table = {"observations": np.arange(12.0), "actions": np.ones(12), name: first, "terminals": np.arange(12) == 3}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    gear_data.convert(tmp_path / "a.parquet", tmp_path / "d")
    episodes = gear_data.open(tmp_path / "d").episodes
    assert episodes["length"].to_list() == [4, 5, 3]
    assert episodes["terminated"].to_list() == [True, False, False]


@pytest.mark.parametrize("flag", ["done", "is_first"])
def test_an_episode_beside_a_bad_row_is_kept(flag: str, tmp_path: Path) -> None:
    """The bad row is the last one of the first episode, or the first one of the second, and has the flag."""
    marks, bad, first = {"done": ([0, 0, 1] * 3, 2, 3), "is_first": ([1, 0, 0] * 3, 3, 0)}[flag]
    obs: list[Any] = [[float(t), 0.5] for t in range(9)]
    obs[bad] = [1.0]
    table = pa.table({"obs": obs, "action": np.arange(9.0), flag: marks})
    gear_data.convert(table, tmp_path / "d", on_bad_episode="skip")
    dataset = gear_data.open(tmp_path / "d")
    assert [dataset[i]["actions"].tolist() for i in range(len(dataset))] == [[first, first + 1, first + 2], [6, 7, 8]]
    assert finding_counts(tmp_path / "d")["bad-episode"] == 1


def test_bad_rows_of_two_columns(tmp_path: Path) -> None:
    """The first bad row ends an episode. The second is bad because of the flag itself."""
    obs: list[Any] = [[float(t), 0.5] for t in range(9)]
    obs[2] = [1.0]
    table = pa.table({"obs": obs, "action": np.arange(9.0), "done": [0, 0, 1, 0, None, 1, 0, 0, 1]})
    gear_data.convert(table, tmp_path / "d", on_bad_episode="skip")
    dataset = gear_data.open(tmp_path / "d")
    assert [dataset[i]["actions"].tolist() for i in range(len(dataset))] == [[6, 7, 8]]
    bad = [each for each in dataset.manifest.findings if each["code"] == "bad-episode"]
    assert {each["column"]: (each["count"], each["row"]) for each in bad} == {"obs": (1, 2), "done": (1, 4)}
