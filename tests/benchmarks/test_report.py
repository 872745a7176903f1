"""benchmarks/report.py runs, and its table has what the pages have."""

from __future__ import annotations

from typing import Any

import report

from tests.support.benchmarks.results import Result, rows_of


def test_reports_are_measured(run: Any) -> None:
    result: Result = run("reports")
    assert result.status == 0, result.errors
    cases = {each["case"]: each for each in result.record["cases"]}
    assert list(cases) == [case.name for case in report.CASES]
    for case in report.CASES:
        found = cases[case.name]
        assert found["steps"] == found["steps_read"] == 3000 * case.times
        assert found["seconds"]["median"] > 0
        assert found["cpu_seconds"]["median"] > 0
        # The chart library and little else.
        assert 900_000 < found["bytes"] < report.TARGET_BYTES
    assert cases["episodes of 10 steps"]["episodes"] == 300
    assert [row[0] for row in rows_of(result.printed, "steps read")] == list(cases)
    assert f"target {report.TARGET_SECONDS:g}" in result.printed
