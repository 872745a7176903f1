"""`frames.cu`, run on a CPU with sanitizers, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cuda.frames_checks import FramesChecks
from tests.support.cuda.runner import Runner, shim_runner

# A compiler builds the shim.
pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with shim_runner("frames.cu") as found:
        yield found


class TestFramesOnTheCpu(FramesChecks):
    pass
