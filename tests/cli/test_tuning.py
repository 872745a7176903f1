"""`gear-data tune`."""

from __future__ import annotations

from pathlib import Path

import pytest

import gear_data
from gear_data.cli import main
from tests.support.command_line import run_json

OPTIONS = ["--batch-size", "8", "--context", "5", "--preset", "corl", "--step-ms", "1", "--seconds", "1"]


def test_tune_writes_a_file(rollouts_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "made" / "loader.json"
    facts = run_json(capsys, "tune", rollouts_path, *OPTIONS, "--step-cores", 0, "--output", path)
    assert facts["output"] == str(path) and facts["step"] == "1 ms asleep"
    assert [each["setting"] for each in facts["settings"] if each["verdict"].startswith("chosen")] == [facts["choice"]]
    loader = gear_data.SequenceLoader.from_config(gear_data.open(rollouts_path), path, steps=2)
    assert (loader.batch_size, loader.context, loader.preset, len(list(loader))) == (8, 5, "corl", 2)


def test_tune_prints_the_table(
    rollouts_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tune", str(rollouts_path), *OPTIONS, "--where", "length > 2"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("residency") and "chosen: " in printed
    assert "training step: 1 ms on 1 core; without loading, it takes " in printed
    assert "\nnot tried: " in printed and "SequenceLoader.from_config(ds, 'loader.json')" in printed
    assert (tmp_path / "loader.json").is_file()


def test_bad_usage(rollouts_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "loader.json"
    other.write_text("{}")
    assert main(["tune", str(rollouts_path), "--output", str(other)]) == 1
    assert "is no file of gear-data tune" in capsys.readouterr().err
    assert main(["tune", str(rollouts_path), "--seconds", "0", "--output", str(tmp_path / "new.json")]) == 2
    assert "seconds must be a positive number" in capsys.readouterr().err
