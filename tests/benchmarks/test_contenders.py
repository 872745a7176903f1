"""Contenders of benchmarks/feed.py: how they are set up, and how they end."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import feed
import pytest
from feeding.contenders import CONTENDERS, Contender, Process, run_rounds
from feeding.environments import ContenderError
from feeding.scenarios import SCENARIOS


def test_contenders_are_set_up_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [each for each in CONTENDERS if each.environment is None][:4]
    events: list[tuple[str, str]] = []

    class Started:
        """Stands in for a process; that of the third contender ends."""

        def __init__(self, contender: Contender, *_: object) -> None:
            self.name = contender.name
            events.append(("starts", self.name))

        def hear(self, timeout: float) -> dict[str, Any]:
            events.append(("is ready", self.name))
            if self.name == chosen[2].name:
                raise ContenderError("gone")
            return {}

    monkeypatch.setattr(feed, "Process", Started)
    data: Any = SimpleNamespace(dataset="dataset", source="source", steps="steps", contract="raw")
    started, failures = feed.start_all(chosen, SCENARIOS[0], data, feed.parse_arguments([]), tmp_path)
    assert events == [(what, each.name) for each in chosen for what in ("starts", "is ready")]
    assert [*started] == [each.name for each in chosen]
    assert failures == {chosen[2].name: "gone"}


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
