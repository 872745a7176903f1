"""Kills a rank in one refresh. `make chaos` kills more."""

from __future__ import annotations

import pytest

from tests.chaos.growing import refreshes
from tests.chaos.result import Limit, run_in_own_process


def test_ranks_agree_when_one_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH")  # `make chaos` has none
    result = run_in_own_process(refreshes, seed=1, limit=Limit(runs=1))
    assert not result.failures, "\n".join(result.failures)
