"""The CUDA kernels on a GPU pass the same checks as on the CPU.

They read device memory and pinned memory.
"""

from __future__ import annotations

from tests.support.cuda.collect_checks import CollectChecks
from tests.support.cuda.frames_checks import FramesChecks
from tests.support.cuda.select_checks import SelectChecks


class TestCollect(CollectChecks):
    pass


class TestFrames(FramesChecks):
    pass


class TestSelect(SelectChecks):
    pass
