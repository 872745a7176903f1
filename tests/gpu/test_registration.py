"""Pinned memory on a GPU: two processes register one copy."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data import SequenceLoader
from tests.support.cuda.loader_checks import OPTIONS, convert, copies, on_gpu, tiered
from tests.support.cuda.segments import mapped_segments

# Prints its pinned memory and the sums of its batches, and holds both until its input ends.
PROCESS = """
import json, sys
from pathlib import Path
from tests.gpu.test_registration import answer

found, opened = answer(Path(sys.argv[1]))
print(json.dumps(found), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _device: None) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return convert(11, tmp_path / "one")


@pytest.fixture
def process(path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PROCESS, str(path)]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield started
    started.kill()
    started.communicate()


def answer(path: Path) -> tuple[dict[str, Any], list[gear_data.Dataset]]:
    """Returns (this process's pinned memory and its batches' sums, the datasets)."""
    opened = [gear_data.open(path, residency="pinned"), tiered(path)]
    batches = [sums(on_gpu(ds)) for ds in opened]
    memory = [[*each] for kind in ("pinned", "tiered") for each in mapped_segments(kind)]
    return {"memory": memory, "sums": batches}, opened


def sums(loader: SequenceLoader) -> list[list[float]]:
    return [[float(value.cpu().double().nansum()) for value in batch.values()] for batch in copies(loader, 5)]


def test_processes_share_one_pinned_copy(path: Path, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    theirs = json.loads(process.stdout.readline())
    ours, opened = answer(path)
    assert theirs == ours
    assert [permissions for permissions, _ in ours["memory"]] == ["r--s", "r--s"]
    expected = sums(SequenceLoader(gear_data.open(path), **OPTIONS))
    assert ours["sums"] == [expected, expected]
    del opened
