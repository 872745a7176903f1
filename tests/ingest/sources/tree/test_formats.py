"""A format over trees is a value: episodes, steps and names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gear_data.errors import UnknownNameError
from gear_data.ingest.layout import EpisodeRule, Kind
from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.tree.containers import containers
from gear_data.ingest.sources.tree.formats import TreeFormat, open_format
from gear_data.storage.episode_block import BEGIN, END

FORMAT = TreeFormat(
    episodes=EpisodeRule(Kind.FILES, ("*",)),
    steps="ctrl",
    names={"qpos": "observations.qpos", "ctrl": "actions", "rew": "rewards", "height": "infos.height"},
)


def _open(folder: Path, **options: Any) -> Any:
    for i, steps in enumerate((4, 2)):
        states = np.arange(3.0 * (steps + 1)).reshape(-1, 3) + 100 * i
        arrays = {
            "qpos": states,
            "ctrl": np.ones((steps, 2)),
            "rew": np.arange(float(steps)),
            "mass": np.array([5.0 + i]),
        }
        np.savez(folder / f"{i}.npz", **arrays)
    return open_format(FORMAT, containers(locate(folder, None)), SourceOptions(**options), {})


def test_rows_decide_what_an_array_is(tmp_path: Path) -> None:
    source = _open(tmp_path)
    assert {spec.name: spec.has_final for spec in source.columns} == {
        "actions": False, "observations.qpos": True, "rewards": False,
    }  # fmt: skip
    blocks = list(source.blocks(BEGIN, END))
    np.testing.assert_array_equal(np.concatenate([block.lengths for block in blocks]), [4, 2])
    finals = np.concatenate([block.finals["observations.qpos"] for block in blocks])
    np.testing.assert_array_equal(finals, [[12, 13, 14], [106, 107, 108]])
    assert [mass for block in blocks for mass in block.metadata["mass"]] == [5.0, 6.0]
    assert {finding.code for finding in source.findings} == {"row-per-episode", "row-after-last-step"}


def test_columns_are_chosen_by_both_names(tmp_path: Path) -> None:
    for chosen in (["qpos", "actions"], ["observations.qpos", "ctrl"]):
        source = _open(tmp_path, columns=chosen)
        assert {spec.name for spec in source.columns} == {"observations.qpos", "actions"}
    with pytest.raises(UnknownNameError, match=r"known: .*observations\.qpos"):
        _open(tmp_path, columns=["observations.qvel"])


def test_names_of_the_user_come_first(tmp_path: Path) -> None:
    source = _open(tmp_path, rename={"qpos": "observations.joints"})
    assert {spec.name for spec in source.columns} == {"observations.joints", "actions", "rewards"}
