"""A process in which torch cannot be imported converts, opens, feeds and exports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_all_but_tensors_works_without_torch(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.running.without_torch", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
