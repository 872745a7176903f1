"""Tests that Hopper rollouts in three formats convert to equal datasets.

The formats are Parquet, Minari and D4RL.

The sources differ in some points. Parquet and D4RL hold float32, Minari float64. Parquet has one end flag (`dones`) and
no final observations. D4RL stops at 200,000 rows, inside the last episode. In D4RL the `infos` of a row belong to its
observation. In the converted Minari dataset they are the infos that the step returned.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data

SOURCES = {
    "parquet": "hf_dt_hopper",
    "minari": "minari/hopper/mixture-v0",
    "d4rl": "d4rl/hopper_mixture-v5.hdf5",
}
STEPS = 200_393
CUT = 200_000


@pytest.fixture(scope="module")
def hoppers(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("hopper")
    for name, source in SOURCES.items():
        gear_data.convert(shared_data / source, folder / name)
    return {name: gear_data.open(folder / name) for name in SOURCES}


@pytest.fixture(scope="module")
def columns(hoppers: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns each dataset's columns, concatenated over all episodes."""
    return {
        name: {
            column: np.concatenate([ds.episode(i)[column] for i in range(ds.num_episodes)])
            for column in ds.schema.names
        }
        for name, ds in hoppers.items()
    }


def test_episodes(hoppers: dict[str, Any], shared_data: Path) -> None:
    known = json.loads((shared_data / "d4rl" / "hopper_mixture.episodes.json").read_text())
    lengths = [episode[1] for episode in known]
    assert sum(lengths) == STEPS
    for name, ds in hoppers.items():
        expected = lengths if name != "d4rl" else [*lengths[:-1], lengths[-1] - (STEPS - CUT)]
        assert ds.episodes["length"].to_list() == expected, name
    for name in ("minari", "d4rl"):
        ends = hoppers[name].episodes
        whole = slice(0, len(known) - (name == "d4rl"))
        assert ends["terminated"].to_list()[whole] == [episode[3] for episode in known][whole]
        assert ends["truncated"].to_list()[whole] == [episode[4] for episode in known][whole]
    cut = hoppers["d4rl"].episodes.row(len(known) - 1, named=True)
    assert (cut["terminated"], cut["truncated"]) == (False, True)


@pytest.mark.parametrize("column", ["observations", "actions", "rewards"])
def test_steps(column: str, columns: dict[str, dict[str, Any]]) -> None:
    parquet, minari, d4rl = (columns[name][column] for name in SOURCES)
    assert (len(parquet), len(minari), len(d4rl)) == (STEPS, STEPS, CUT)
    np.testing.assert_array_equal(minari.astype(np.float32), parquet)
    np.testing.assert_array_equal(d4rl, parquet[:CUT])


def test_ends(columns: dict[str, dict[str, Any]]) -> None:
    minari, d4rl = columns["minari"], columns["d4rl"]
    dones = minari["terminated"] | minari["truncated"]
    np.testing.assert_array_equal(columns["parquet"]["terminated"], dones)
    for flag in ("terminated", "truncated"):
        np.testing.assert_array_equal(d4rl[flag][: CUT - 1], minari[flag][: CUT - 1])


def test_final_observations(hoppers: dict[str, Any], columns: dict[str, dict[str, Any]]) -> None:
    minari, d4rl = hoppers["minari"], hoppers["d4rl"]
    for i in range(minari.num_episodes - 1):
        ours, theirs = (minari.final(i) or {})["observations"], (d4rl.final(i) or {})["observations"]
        np.testing.assert_array_equal(ours.astype(np.float32), theirs)
    last = minari.num_episodes - 1
    after_cut = minari.episode(last)["observations"][d4rl.episode(last).length]
    np.testing.assert_array_equal(after_cut.astype(np.float32), (d4rl.final(last) or {})["observations"])


@pytest.mark.parametrize("info", ["infos.qpos", "infos.qvel"])
def test_infos_are_one_step_apart(info: str, hoppers: dict[str, Any]) -> None:
    for i in range(0, hoppers["minari"].num_episodes - 1, 25):
        ours, theirs = hoppers["minari"].episode(i)[info], hoppers["d4rl"].episode(i)[info]
        np.testing.assert_array_equal(ours[:-1], theirs[1:])
