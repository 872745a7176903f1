"""benchmarks/report.py runs, and its table has what the pages have."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import report

from tests.support.benchmarks.results import Result, read_record, rows_of


def check(record: Any, printed: str) -> dict[str, Any]:
    """Checks the cases of a run, and returns name -> case."""
    cases = {each["case"]: each for each in record["cases"]}
    assert list(cases) == [case.name for case in report.CASES]
    for case in report.CASES:
        found = cases[case.name]
        assert found["steps"] == found["steps_read"] == 3000 * case.times
        assert found["seconds"]["median"] > 0
        assert found["cpu_seconds"]["median"] > 0
        # The chart library and little else.
        assert 900_000 < found["bytes"] < report.TARGET_BYTES
    assert cases["episodes of 10 steps"]["episodes"] == 300
    assert [row[0] for row in rows_of(printed, "steps read")] == list(cases)
    assert f"target {report.TARGET_SECONDS:g}" in printed
    return cases


@pytest.mark.nightly
def test_reports_are_measured(run: Any) -> None:
    result: Result = run("reports")
    assert result.status == 0, result.errors
    check(result.record, result.printed)


def test_reports_of_two_datasets_are_measured(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "CASES", [case for case in report.CASES if case.compared or case.episode_steps])
    monkeypatch.setattr(sys, "executable", str(python))
    report.main(["--quick", "--steps", "3000", "--rounds", "1", "--json", str(tmp_path / "record.json")])
    assert len(check(read_record(tmp_path / "record.json"), capsys.readouterr().out)) == 2
