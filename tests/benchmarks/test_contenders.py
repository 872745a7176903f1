"""Contenders of benchmarks/feed.py: how they are set up, and how they end."""

from __future__ import annotations

import sys
from pathlib import Path

from feeding.contenders import Contender, Process, run_rounds


def test_a_contender_that_ends_before_a_round_is_reported(tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text("print('{}', flush=True)\n")
    process = Process(Contender("ends", "ends", str(script), "steps"), Path(sys.executable), [], tmp_path / "log")
    assert process.hear(60) == {}
    assert process.child.wait(60) == 0
    failures: dict[str, str] = {}
    assert run_rounds({"ends": process}, 0.01, 2, failures) == {}
    assert [*failures] == ["ends"]
    # The request that nobody read is no reason to end the benchmark.
    process.close()
