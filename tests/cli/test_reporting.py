"""`gear-data report`."""

from __future__ import annotations

from pathlib import Path

import pytest

import gear_data
from gear_data.cli import main
from tests.support.command_line import run_json


def test_report_writes_a_page(
    rollouts_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(rollouts_path)]) == 0
    assert (tmp_path / "dataset-report.html").read_text().startswith("<!DOCTYPE html>")
    assert "40 episodes" in capsys.readouterr().out
    monkeypatch.chdir(rollouts_path)
    assert main(["report", "."]) == 0
    assert "dataset-report.html" in capsys.readouterr().out and Path("dataset-report.html").is_file()
    Path("dataset-report.html").unlink()
    facts = run_json(
        capsys, "report", rollouts_path, tmp_path / "out.html", "--where", "length > 3", "--weights", "length"
    )
    dataset = gear_data.open(rollouts_path).filter("length > 3")
    assert facts["summary"]["episodes"] == facts["sampler"]["episodes"] == len(dataset)
    assert facts["output_bytes"] == (tmp_path / "out.html").stat().st_size
    facts = run_json(
        capsys, "report", rollouts_path, tmp_path / "out.html", "--compare", rollouts_path, "--sampler", "fifo"
    )
    assert facts["comparison"]["facts"]["fingerprint"] == gear_data.open(rollouts_path).fingerprint


def test_bad_usage(rollouts_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out.html")
    assert main(["report", str(rollouts_path), out, "--sampler", "fifo", "--weights", "length"]) == 2
    assert "give one of them" in capsys.readouterr().err
    assert main(["report", str(rollouts_path), out, "--frames", "-1"]) == 2
    assert not Path(out).exists()
