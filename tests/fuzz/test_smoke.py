"""Runs the fuzzer of the readers for a few seconds.

CONTRIBUTING.md has the command for a longer run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz import readers


def test_damaged_sources_give_typed_errors_only(tmp_path: Path) -> None:
    formats = ("step-rows", "d4rl", "npz", "gear", "grown", "lerobot-videos")
    command = [sys.executable, "-m", "tests.fuzz.readers", "--keep", str(tmp_path), "--seconds", "3", "--seed", "7"]
    command += [f"--format={name}" for name in formats]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("refused    0 failed") == len(formats)


def test_each_kind_of_failure_has_its_exit_status(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def ends(body: object, seconds: int = 60) -> int:
        return os.waitstatus_to_exitcode(readers.in_child(body, log, seconds)[0])

    assert ends(lambda: 0) == 0
    assert ends(lambda: [].pop()) == 4
    assert "IndexError" in log.read_text()
    assert ends(lambda: len(bytearray(8 << 30))) == 4
    assert "MemoryError" in log.read_text()
    assert ends(lambda: time.sleep(60), 1) == -signal.SIGALRM
    assert ends(lambda: os.kill(os.getpid(), signal.SIGKILL)) == -signal.SIGKILL
