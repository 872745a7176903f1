"""`gear-data cache`, and sources in place of datasets on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import gear_data
from gear_data.cli import main
from tests.support.command_line import run_json
from tests.support.rollouts import Rollout, write_d4rl, write_steps


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path: Path, rollouts: list[Rollout]) -> Path:
    return write_d4rl(tmp_path / "hops.hdf5", rollouts)


def test_the_cache_is_listed_and_emptied(
    source: Path, rollouts: list[Rollout], tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_json(capsys, "cache", "list") == {"folder": str(cache), "conversions": []}
    assert run_json(capsys, "cache", "size")["bytes"] == 0
    other = write_d4rl(tmp_path / "other.hdf5", rollouts)
    assert run_json(capsys, "inspect", source)["steps"] == sum(map(len, rollouts))
    run_json(capsys, "inspect", other)
    entries = run_json(capsys, "cache", "list")["conversions"]
    assert [entry["source"] for entry in entries] == [str(source), str(other)]
    size = run_json(capsys, "cache", "size")
    assert size["bytes"] == size["conversions"] == sum(entry["bytes"] for entry in entries)
    assert run_json(capsys, "cache", "remove", source)["removed"] == [entries[0]["key"]]
    used = gear_data.open(other)
    assert run_json(capsys, "cache", "remove", entries[1]["key"], status=1)["in_use"] == [entries[1]["key"]]
    assert run_json(capsys, "cache", "prune", "--max-bytes", "0") == {"removed_bytes": 0, "bytes": entries[1]["bytes"]}
    del used
    assert main(["cache", "list"]) == 0
    assert "1 conversion in" in capsys.readouterr().out
    assert run_json(capsys, "cache", "prune", "--max-bytes", "0")["bytes"] == 0
    assert run_json(capsys, "cache", "remove", "nothing", status=2)["error"] == "InvalidArgumentError"
    run_json(capsys, "cache", "prune", "--max-bytes", "-1", status=2)
    assert run_json(capsys, "cache", "size", "--folder", tmp_path / "elsewhere")["bytes"] == 0


def test_commands_take_sources(
    source: Path, rollouts: list[Rollout], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = sum(map(len, rollouts))
    assert run_json(capsys, "feed", source, "--steps", "3", "--batch-size", "4", "--prefetch", "0")["batches"] == 3
    assert run_json(capsys, "verify", source)["ok"]
    assert run_json(capsys, "export", source, tmp_path / "out.npz", "--format", "npz")["steps"] == steps
    report = run_json(capsys, "report", source, tmp_path / "page.html", "--compare", source)
    assert report["name"] == "hops.hdf5"
    assert run_json(capsys, "filter", source, tmp_path / "long", "--where", "length > 5")["episodes"] > 0
    assert run_json(capsys, "plan", source, "--nodes", "2")
    other = write_d4rl(tmp_path / "other.hdf5", rollouts[:5])
    merged = run_json(capsys, "merge", source, other, tmp_path / "both")
    assert merged["episodes"] == len(rollouts) + 5
    both = gear_data.open(tmp_path / "both")
    assert both.episodes["embodiment"].unique(maintain_order=True).to_list() == ["hops", "other"]
    assert len(run_json(capsys, "cache", "list")["conversions"]) == 2


def test_options_of_the_conversion(rollouts: list[Rollout], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_steps(tmp_path / "steps.parquet", rollouts)
    options = "{columns: [actions], episodes: {episode_column: episode_index}}"
    found = run_json(capsys, "inspect", path, "--convert", options)
    assert "observations" not in found["columns"]
    assert found["episodes"] == len(rollouts)
    with pytest.raises(SystemExit):
        main(["inspect", str(path), "--convert", "{colums: [actions]}"])
    assert "did you mean 'columns'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["inspect", str(path), "--convert", "{columns"])
    assert "is not YAML" in capsys.readouterr().err
