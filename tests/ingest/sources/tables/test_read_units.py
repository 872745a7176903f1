"""Tests of the units of tables."""

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
)
from gear_data.ingest.episode_boundaries import EpisodeBoundaries
from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.registry import open_source
from gear_data.ingest.sources.tables import file_stream, read_units
from gear_data.storage.episode_block import BEGIN, END
from tests.support.makers.step_tables import (
    episode_lengths,
    episode_names,
    flat_table,
    step_numbers,
)


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
    monkeypatch.setattr(read_units, "UNIT_BYTES", 3000)


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
    monkeypatch.setattr(file_stream, "_BATCH_BYTES", batch_bytes)
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
        steps = np.array(step_numbers(rollouts))
        steps[100] += 3
        column = {"trajectory_id": episode_names(rollouts)} if layout == "names" else {"episode_index": ids}
        table = flat_table(sources, rollouts, frame_index=steps, **column)
        source = sources.write_parquet(tmp_path / "s.parquet", table, row_group=40)
    _check_units(source, None)
    whole, _ = _read(source, SourceOptions())
    assert [len(values["rewards"]) for _, _, _, values in whole] == episode_lengths(rollouts)


@pytest.mark.usefixtures("small_units")
def test_tables_that_cannot_be_cut(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(90, seed=3)
    falling = flat_table(sources, rollouts, episode=90 - sources.episode_numbers(rollouts))
    _check_units(sources.write_parquet(tmp_path / "falling.parquet", falling, row_group=40), 1)
    steps = flat_table(sources, rollouts, t=step_numbers(rollouts))
    _check_units(
        sources.write_parquet(tmp_path / "t.parquet", steps, row_group=40),
        1,
        SourceOptions(episodes=EpisodeBoundaries(step_column="t")),
    )
    rising = flat_table(sources, rollouts, episode=sources.episode_numbers(rollouts))
    pq.write_table(rising, tmp_path / "blind.parquet", row_group_size=40, write_statistics=False)
    _check_units(tmp_path / "blind.parquet", None)
    one = flat_table(sources, rollouts, episode=np.zeros(len(rising), np.int64))
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
