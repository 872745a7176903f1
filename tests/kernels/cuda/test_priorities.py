"""`priorities.cu`, run on a CPU with sanitizers, against the CPU kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cuda.priorities_checks import PrioritiesChecks
from tests.support.cuda.runner import Runner, shim_runner

# A compiler builds the shim.
pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with shim_runner("priorities.cu") as found:
        yield found


class TestPrioritiesOnTheCpu(PrioritiesChecks):
    pass
