"""`select.cu`, run on a CPU with sanitizers, against the CPU kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cuda.runner import Runner, shim_runner
from tests.support.cuda.select_checks import SelectChecks

# A compiler builds the shim.
pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with shim_runner("select.cu") as found:
        yield found


class TestSelectOnTheCpu(SelectChecks):
    pass
