"""`gear-data edit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.cli import main
from gear_data.cli.arguments import numbers
from tests.support.rollouts import make_rollouts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    episodes: list[dict[str, Any]] = [{**rollout.columns, "task": "lift"} for rollout in make_rollouts(20, seed=1)]
    gear_data.convert(episodes, tmp_path / "data", shard_bytes=1024, progress=False)
    return tmp_path / "data"


def _json(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    assert main([*map(str, arguments), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_edit(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, out = gear_data.open(path), tmp_path / "out"
    np.save(tmp_path / "values.npy", np.arange(before.num_steps))
    arguments = (
        "edit", path, out, "--rename", "actions=controls", "--add-column", "success=rewards > 0",
        "--add-column", f"number={tmp_path / 'values.npy'}", "--drop", "observations",
        "--set-task", "all of them", "--set-task", "2,5-6=push",
    )  # fmt: skip
    report = _json(capsys, *arguments)
    assert report["linked"] == report["shards"] == len(before.manifest.shards)
    edited = gear_data.open(out)
    assert edited.fingerprint == report["fingerprint"]
    assert "observations" not in edited.schema and "actions" not in edited.schema
    for index in range(len(before)):
        np.testing.assert_array_equal(edited[index]["controls"], before[index]["actions"])
        np.testing.assert_array_equal(edited[index]["success"], before[index]["rewards"] > 0)
        assert edited[index].task == ("push" if index in (2, 5, 6) else "all of them")
    np.testing.assert_array_equal(edited.steps("number", 0, len(edited)), np.arange(before.num_steps))
    assert gear_data.verify(out, deep=True).ok
    assert main(list(map(str, arguments))) == 1
    assert _json(capsys, *arguments, "--resume")["fingerprint"] == edited.fingerprint
    assert main([*map(str, arguments), "--overwrite"]) == 0
    assert "linked" in capsys.readouterr().out


def test_delete_episodes(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = _json(capsys, "edit", path, tmp_path / "out", "--delete-episodes", "0,3-5")
    kept = [index for index in range(20) if index not in (0, 3, 4, 5)]
    assert report["episodes"] == 16
    assert report["fingerprint"] == gear_data.open(path).select(kept).fingerprint


def test_repeated_lists_add_up(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drops = ("--drop", "actions", "--drop", "returns_to_go")
    report = _json(capsys, "edit", path, tmp_path / "out", "--delete-episodes", "0,3", "--delete-episodes", "5", *drops)
    assert report["episodes"] == 17
    assert not {"actions", "returns_to_go"} & set(gear_data.open(tmp_path / "out").schema.names)


@pytest.mark.parametrize(("options", "message"), [
    ([], "nothing to edit"),
    (["--delete-episodes", "20"], "20"),
    (["--set-task", "21=x"], "no episode 21"),
    (["--drop", "nothing"], "nothing"),
    (["--rename", "actions=a", "--rename", "actions=b"], "twice"),
    (["--add-column", "rewards=rewards"], "a column of this name"),
    (["--add-column", "a=nothing > 1"], "nothing"),
    (["--add-column", "a=missing.npy"], "cannot be read"),
    (["--add-column", "a=s3://bucket/a.npy"], "a URL"),
])  # fmt: skip
def test_a_wrong_edit(
    options: list[str], message: str, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["edit", str(path), str(tmp_path / "out"), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_all_episodes_deleted(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edit", str(path), str(tmp_path / "out"), "--delete-episodes", "0-19"]) == 1
    assert "no episode was selected" in capsys.readouterr().err


@pytest.mark.parametrize(("ids", "message"), [
    *((ids, "expected ids of episodes") for ids in ("x", "5-3", "1,,2", "-1", "9" * 19, "1-" + "9" * 5000)),
    ("0-99999999999", "names 100,000,000,000 ids of episodes, and takes at most 16,777,216"),
    ("0-8388607,8388608-16777216", "names 16,777,217 ids"),
])  # fmt: skip
def test_wrong_ids(ids: str, message: str, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["edit", str(path), str(tmp_path / "out"), f"--delete-episodes={ids}"])
    assert message in capsys.readouterr().err


def test_numbers() -> None:
    parse = numbers("ids of episodes", "3,17-20")
    assert parse("7-9, 3,8") == [3, 7, 8, 9]
    assert parse("999999999999999999") == [999_999_999_999_999_999]
