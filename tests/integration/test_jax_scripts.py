"""The scripts of JAX: they train, and behaviour cloning resumes bit for bit."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "jax"
BATCH = ("--batch-size", "16")


def run(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments), *BATCH])
    runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")


def test_behaviour_cloning_resumes_bit_for_bit(
    rollouts_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(folder: str, steps: int) -> None:
        run("behaviour_cloning", monkeypatch, rollouts_path, "--out", tmp_path / folder, "--steps", steps)

    train("whole", 8)
    train("parts", 3)
    train("parts", 8)
    whole, parts = ((tmp_path / folder / "checkpoint.msgpack").read_bytes() for folder in ("whole", "parts"))
    assert whole == parts
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["step 8", "step 3", "step 8"]


def test_iql_learns_the_value(
    rollouts_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("iql", monkeypatch, rollouts_path, "--steps", 60, "--log-every", 30)
    lines = capsys.readouterr().out.splitlines()
    first, last = (float(line.split("policy loss ")[1].split(",")[0]) for line in lines)
    assert last < first
