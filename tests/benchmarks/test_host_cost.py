"""benchmarks/host_cost.py runs, and counts what a GPU receives."""

from __future__ import annotations

import json
from pathlib import Path

import host_cost as benchmark
import pytest

from tests.support.benchmarks.commands import COMMANDS


def test_every_case_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, *arguments = COMMANDS["host of a GPU"].format(json=tmp_path / "host.json").split()
    assert script == "host_cost.py"
    assert benchmark.main(arguments) == 0
    printed = capsys.readouterr().out
    results = json.loads((tmp_path / "host.json").read_text())["results"]
    assert results.keys() == benchmark.CASES.keys()
    for case, result in results.items():
        assert case in printed
        assert result["us"] > result["launches us"]
        # The CPU's batch is copied array by array.
        assert result["operations"] <= 3 or case == "mmap, by the CPU"
    assert results["device, uniform"]["operations"] == 2
