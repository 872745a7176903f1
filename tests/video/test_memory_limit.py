"""A process with a limit of memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(("held", "limit", "more", "fits"), [(300, 200, 100, True), (300, 200, 250, False)])
def test_the_limit_is_of_what_is_allocated_later(held: int, limit: int, more: int, fits: bool) -> None:
    """Memory in MiB that the process holds before the limit does not count."""
    code = f"""
from gear_data.video.memory_limit import limit_memory
held = bytearray({held} << 20)
limit_memory({limit} << 20)
more = bytearray({more} << 20)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, "MemoryError" in done.stderr) == ((0, False) if fits else (1, True)), done.stderr
