"""A process in which no package of an extra can be imported converts, opens, feeds and exports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_main_jobs_work_without_extras(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.running.base_install", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
