"""benchmarks/relative_statistics.py runs, and its plain loop finds statistics near the exact ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import relative_statistics as benchmark

import gear_data
from tests.support.benchmarks.results import Result, rows_of


@pytest.mark.nightly
def test_statistics_are_measured(run: Any) -> None:
    result: Result = run("relative statistics")
    assert result.status == 0, result.errors
    assert [case["jobs"] for case in result.record["cases"]] == [None, None, 1]
    assert all(case["seconds"] > case["stored"] > 0 for case in result.record["cases"])
    assert result.record["loop"]["frames"] >= 500
    rows = rows_of(result.printed, "CPU seconds")
    assert [row[1] for row in rows[:3]] == ["threads", "threads", "1 processes"]
    assert f"target {benchmark.TARGET_SECONDS:g}" in result.printed


def test_the_plain_loop_is_about_right(tmp_path: Path) -> None:
    ds = gear_data.open(benchmark.make_dataset(3000, tmp_path))
    loop = benchmark.measure_loop(ds, 3000)
    assert loop["frames"] == 3000
    exact = gear_data.relative_statistics(ds, "actions", "observations", (0, benchmark.CHUNK))
    # The loop counts the repeated last actions, too.
    np.testing.assert_allclose(loop["mean"], exact.mean, atol=0.05)
    np.testing.assert_allclose(loop["std"], exact.std, rtol=0.05)
    np.testing.assert_allclose(loop["q01"], exact.q01, rtol=0.1)
    np.testing.assert_allclose(loop["q99"], exact.q99, rtol=0.1)
