"""Checks of converted datasets and sources, shared by many tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gear_data
from gear_data.storage.episode_block import BEGIN, END
from tests.support.rollouts import Rollout


def check_dataset(path: Path, rollouts: Sequence[Rollout], *, final: bool = False) -> None:
    """Checks that a dataset has exactly these episodes.

    Derived columns, table rows and statistics are computed here a second time and compared.
    """
    ds = gear_data.open(path)
    assert ds.num_episodes == len(rollouts)
    assert ds.num_steps == sum(len(rollout) for rollout in rollouts)
    derived = {"returns_to_go"} if "rewards" in rollouts[0].columns else set()
    assert set(ds.schema.names) == rollouts[0].columns.keys() | derived
    table = ds.episodes
    places: dict[int, int] = {}
    for i, rollout in enumerate(rollouts):
        episode = ds.episode(i)
        assert episode.length == len(rollout)
        for name, expected in rollout.columns.items():
            assert episode[name].dtype == expected.dtype, name
            np.testing.assert_array_equal(episode[name], expected, err_msg=f"episode {i}, {name}")
        row = table.row(i, named=True)
        assert row["episode_id"] == i
        assert row["length"] == len(rollout)
        assert row["start"] == places.get(row["shard"], 0)
        places[row["shard"]] = row["start"] + len(rollout)
        ends = (rollout.columns["terminated"][-1], rollout.columns["truncated"][-1])
        assert any(ends)
        assert (row["terminated"], row["truncated"]) == ends
        if derived:
            total, expected_rtg = 0.0, []
            for reward in reversed(rollout.columns["rewards"].tolist()):
                total += reward
                expected_rtg.append(total)
            np.testing.assert_array_equal(episode["returns_to_go"], np.array(expected_rtg[::-1], np.float32))
            assert row["return"] == pytest.approx(total, rel=1e-12, abs=1e-12)
        else:
            assert row["return"] is None
        if final:
            np.testing.assert_array_equal((ds.final(i) or {})["observations"], rollout.final)
        else:
            assert ds.final(i) is None
    assert [places[shard] for shard in range(len(ds.manifest.shards))] == [s.steps for s in ds.manifest.shards]
    for name in rollouts[0].columns:
        _check_statistics(ds.statistics[name], np.concatenate([r.columns[name] for r in rollouts]))
    assert gear_data.verify(path).ok


def _check_statistics(found: Any, values: npt.NDArray[Any]) -> None:
    flat = values.astype(np.float64)
    flat = flat if flat.ndim == 2 else flat.reshape(-1, 1)
    assert found.count.tolist() == [len(flat)] * flat.shape[1]
    np.testing.assert_allclose(found.mean, flat.mean(axis=0), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.std, flat.std(axis=0), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(found.min, flat.min(axis=0))
    np.testing.assert_array_equal(found.max, flat.max(axis=0))


def check_units(open_source: Callable[[], Any]) -> int:
    """Checks that a source gives the same episodes however it is divided.

    The source is read whole, unit by unit, and from each of several blocks to the end.

    Returns:
        The number of units.
    """

    def read(start: Any, stop: Any) -> tuple[list[Any], dict[Any, int], list[Any]]:
        source = open_source()
        source.findings.restore([])
        episodes, positions = [], []
        for block in source.blocks(start, stop):
            positions.append(block.position)
            for i in range(len(block)):
                one = block.slice(i, i + 1)
                values = [
                    {n: v.tobytes() if isinstance(v, np.ndarray) else v.to_pylist() for n, v in part.items()}
                    for part in (one.columns, one.finals)
                ]
                facts = {name: values[0] for name, values in one.metadata.items() if values[0] is not None}
                episodes.append((one.lengths[0], one.sources[0], one.rows[0], *values, facts))
        return episodes, {(f.code, f.column): f.count for f in source.findings}, positions

    whole, noticed, positions = read(BEGIN, END)
    units = [unit.position for unit in open_source().units()]
    assert units[0] == BEGIN
    assert units == sorted(set(units)) == [unit.position for unit in open_source().units()]
    episodes, counts = [], Counter[Any]()
    for start, stop in pairwise([*units, END]):
        part, found, _ = read(start, stop)
        episodes += part
        counts.update(found)
    assert episodes == whole
    assert counts == noticed
    for position in positions[:: 1 + len(positions) // 6]:
        rest, _, _ = read(position, END)
        assert rest == whole[-len(rest) :]
    return len(units)


def folder_contents(folder: Path) -> dict[str, bytes]:
    """Returns the contents of every file in a folder, by relative name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def warning_codes(report: Any) -> list[str]:
    """Returns the codes of a conversion's warnings, without episodes of one step."""
    return [warning.split(":")[0] for warning in report.warnings if not warning.startswith("one-step-episode")]
