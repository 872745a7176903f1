"""`gear-data convert`: JSON, options and output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data.cli import main
from tests.support.command_line import run_json


def test_convert_json(sources: Any, rollouts: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = sources.write_episodes(tmp_path / "source.parquet", rollouts)
    facts = run_json(capsys, "convert", source, tmp_path / "out", "--shard-bytes", "2K")
    ds = gear_data.open(tmp_path / "out")
    assert facts["episodes"] == len(rollouts) == ds.num_episodes
    assert facts["steps"] == sum(len(rollout) for rollout in rollouts)
    assert facts["shards"] == len(list((tmp_path / "out" / "shards").iterdir())) > 1
    sizes = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*.arrow"))
    assert facts["bytes"] == sizes
    assert facts["seconds"] > 0
    assert [warning.partition(":")[0] for warning in facts["warnings"]] == ["one-step-episode"]
    assert capsys.readouterr().err == ""


def test_convert_options_reach_the_conversion(
    sources: Any, rollouts: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = sources.write_episodes(tmp_path / "source.parquet", rollouts)
    options = ["--rename", "observations=states", "--columns", "states,rewards"]
    run_json(capsys, "convert", source, tmp_path / "out", *options)
    assert gear_data.open(tmp_path / "out").schema.names == (
        "states", "rewards", "terminated", "truncated", "returns_to_go"
    )  # fmt: skip
    assert main(["convert", str(source), str(tmp_path / "out")]) == 1
    assert "--overwrite" in capsys.readouterr().err
    run_json(capsys, "convert", source, tmp_path / "out", "--overwrite")
    assert "observations" in gear_data.open(tmp_path / "out").schema


@pytest.mark.parametrize("command", ["convert", "lint"])
@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--rename", ("actions=a", "actions=b")),
        ("--stack", ("all=observations", "all=actions")),
        ("--dtype", ("actions=float32", "actions=float64")),
        ("--fill-null", ("rewards=0", "rewards=1")),
        ("--video-column", ("front=a/*.mp4", "front=b/*.mp4")),
    ],
)
def test_an_option_names_a_column_once(
    command: str, option: str, values: tuple[str, str], sources: Any, rollouts: list[Any], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The first value would be lost."""
    places = [sources.write_episodes(tmp_path / "source.parquet", rollouts), tmp_path / "out"]
    given = [word for value in values for word in (option, value)]
    assert main([command, *map(str, places[: 1 + (command == "convert")]), *given]) == 2
    assert f"{option} names '{values[0].partition('=')[0]}' twice" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_convert_prints_format_and_findings(
    sources: Any, rollouts: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = [{**r.columns, "dones": r.columns["terminated"] | r.columns["truncated"]} for r in rollouts]
    for episode in columns:
        del episode["terminated"], episode["truncated"]
    source = sources.write_parquet(tmp_path / "source.parquet", sources.episode_table(columns))
    assert main(["convert", str(source), str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "format episode-rows: a row is an episode" in printed
    assert "warning: no-truncation-flag" in printed
