"""On PYTHONPATH: the process has a stand-in for an RDMA device from its start."""

from __future__ import annotations

import pytest

from tests.support.rdma import process_stand_in

process_stand_in.world.install(pytest.MonkeyPatch())
