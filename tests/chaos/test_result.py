"""Tests the run of a harness in a separate process, and the table of the results."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from types import ModuleType

from tests.chaos import test_result
from tests.chaos.__main__ import HARNESSES
from tests.chaos.result import ChaosResult, Limit, markdown, run_in_own_process


def run(seed: int, limit: Limit) -> ChaosResult:
    """A harness: ends as the seed says."""
    if seed == 1:
        raise KeyError("a bug of the harness")
    if seed == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if seed == 4:
        if (child := os.fork()) == 0:
            signal.pause()
        raise KeyError(f"child {child}")
    cases = list(limit.numbers())
    return ChaosResult("test_result", seed, len(cases), {"first": cases[0]}, ("case 5: bad",), {"more": "no root"})


def test_a_result_leaves_its_process() -> None:
    module: ModuleType = test_result
    result = run_in_own_process(module, 3, Limit(runs=4, first=5))
    assert result == ChaosResult("test_result", 3, 4, {"first": 5}, ("case 5: bad",), {"more": "no root"})
    assert markdown([result]).splitlines()[2:] == ["| test_result | first 5; not run: more (no root) | 4 | 1 |"]


def test_a_harness_that_ends_early_is_a_failure() -> None:
    assert "status 1" in run_in_own_process(test_result, 1, Limit(runs=1)).failures[0]
    assert "status -9" in run_in_own_process(test_result, 2, Limit(runs=1)).failures[0]
    assert list(Limit(seconds=0).numbers()) == [0]


def test_a_harness_that_leaves_a_process_behind() -> None:
    (failure,) = run_in_own_process(test_result, 4, Limit(runs=1)).failures
    found = re.search(r"child (\d+)", failure)
    assert found is not None
    os.kill(int(found[1]), signal.SIGKILL)


def test_the_tables_have_a_row_of_each_harness() -> None:
    """The README has the names that the table of a run has: those of the modules."""
    root = Path(__file__).parents[2]
    described = re.findall(r"^\| `([\w.]+)` \|", (root / "docs/explanation/reliability.md").read_text(), re.MULTILINE)
    assert described == list(HARNESSES)
    table = (root / "README.md").read_text().partition("| harness | cases | runs | failures |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| (\w+) \|", table, re.MULTILINE) == [name.rpartition(".")[2] for name in HARNESSES]
