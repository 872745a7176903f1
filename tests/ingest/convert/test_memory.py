"""Tests that a conversion's memory is bounded by one read and one shard.

The size of the source does not matter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes

_CONVERT = """
import sys, gear_data
report = gear_data.convert(sys.argv[1], sys.argv[2], shard_bytes=4 << 20)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) << 10, report.bytes)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc to read the peak memory from")
def test_five_times_the_data_takes_no_more_memory(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(100, seed=1, max_length=1000, states=36, actions=8)
    file = sources.write_episodes(tmp_path / "one.parquet", rollouts, row_group=10)
    peaks, sizes = [], []
    for times in (4, 20):  # both sources are larger than one read
        (tmp_path / f"source{times}").mkdir()
        for i in range(times):
            os.link(file, tmp_path / f"source{times}" / f"{i}.parquet")
        found = [_peak_and_size(tmp_path / f"source{times}", tmp_path / f"out{times}-{turn}") for turn in range(2)]
        # The smaller of two runs: on a busy machine the allocators of several threads sometimes keep more memory.
        peaks.append(min(peak for peak, _ in found))
        sizes.append(found[0][1])
    assert sizes[1] - sizes[0] > 100 << 20
    assert peaks[1] - peaks[0] < (sizes[1] - sizes[0]) // 2


def _peak_and_size(source: Path, target: Path) -> tuple[int, int]:
    command = [sys.executable, "-c", _CONVERT, str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, size = (int(word) for word in done.stdout.split())
    return peak, size
