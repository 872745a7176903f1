"""On PYTHONPATH: the process has a stand-in for an RDMA device from its start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

import process_stand_in

process_stand_in.world.install(pytest.MonkeyPatch())
