"""Systems other than Linux: what runs on macOS, and the error on Windows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_main_jobs_run_with_what_macos_has(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.running.without_linux", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_windows_is_refused_at_import() -> None:
    code = "import sys; sys.platform = 'win32'; import gear_data"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: gear-data runs on Linux")
    assert "WSL 2" in last
