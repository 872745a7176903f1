"""Nodes serve an edited dataset: each has the files of its own shards only."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import InvalidArgumentError
from tests.support.cluster.nodes import NodeProcess, url
from tests.support.rollouts import make_rollouts

pytestmark = pytest.mark.processes


def test_nodes_serve_an_edited_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path / "cache"))
    episodes: list[dict[str, Any]] = [dict(rollout.columns) for rollout in make_rollouts(40, seed=1)]
    gear_data.convert(episodes, tmp_path / "data", shard_bytes=1024, progress=False)
    edited = gear_data.open(tmp_path / "data").with_column("double", lambda e: 2 * e["rewards"])
    edited = edited.with_column("words", lambda e: [f"step {step}" for step in range(e.length)])
    edited.rename({"actions": "controls"}).save(tmp_path / "edited", progress=False)
    local = gear_data.open(tmp_path / "edited")
    shards = local.manifest.shards
    half = len(shards) // 2
    folders = []
    for name, gone in (("first", shards[half:]), ("last", shards[:half])):
        shutil.copytree(tmp_path / "edited", folder := tmp_path / name)
        for shard in gone:
            for entry in shard.files:
                (folder / entry.file).unlink()
        folders.append(folder)
    nodes = [
        NodeProcess(folders[0], f"0-{half - 1}"),
        NodeProcess(folders[1], f"{half}-{len(shards) - 1}", ["--residency", "host"]),
    ]
    try:
        for node in nodes:
            node.wait()
        remote = gear_data.open(url(*nodes))
        for index in range(len(local)):
            for name in ("double", "controls", "words", "observations"):
                np.testing.assert_array_equal(remote[index][name], local[index][name])
        options: dict[str, Any] = {
            "batch_size": 16,
            "context": 4,
            "seed": 2,
            "columns": ["double", "controls", "words"],
        }
        found, expected = (next(iter(gear_data.SequenceLoader(each, **options))) for each in (remote, local))
        np.testing.assert_array_equal(np.asarray(found["double"]), np.asarray(expected["double"]))
        assert found["words"] == expected["words"]
        with pytest.raises(InvalidArgumentError, match="served by other nodes"):
            remote.drop("double")
    finally:
        for node in nodes:
            node.kill()
