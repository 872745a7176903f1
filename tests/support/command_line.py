"""Runs `gear-data` with --json and reads its output."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gear_data.cli import main


def _no_json(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def run_json(capsys: pytest.CaptureFixture[str], *arguments: Any, status: int = 0) -> dict[str, Any]:
    """Runs a command with --json and checks its exit status.

    The command must print one JSON object and nothing else.
    """
    assert main([str(argument) for argument in arguments] + ["--json"]) == status
    result: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=_no_json)
    return result
