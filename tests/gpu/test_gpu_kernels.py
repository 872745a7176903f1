"""The CUDA kernels on a GPU, reading device memory and pinned memory: the same checks as on the CPU."""

from __future__ import annotations

from cuda_collect_checks import CollectChecks
from cuda_priorities_checks import PrioritiesChecks
from cuda_select_checks import SelectChecks


class TestCollect(CollectChecks):
    pass


class TestSelect(SelectChecks):
    pass


class TestPriorities(PrioritiesChecks):
    pass
