"""Runs benchmarks by `tests/support/benchmarks/commands.py`.

Their processes start quickly, because they are forks of one server that has imported torch.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.benchmarks.commands import BENCHMARKS, COMMANDS
from tests.support.benchmarks.results import Result, read_record
from tests.support.running.warm_python import MODULES, warm_python

#: Only for a benchmark that hangs.
TIMEOUT_SECONDS = 300
#: Modules of peers, and pandas, which pyarrow imports if it is installed.
PEERS = ("d3rlpy", "datasets", "h5py", "pandas", "tensordict", "torchrl.data")

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    with warm_python([*MODULES, *PEERS]) as executable:
        yield executable


@pytest.fixture(scope="module")
def run(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """run(name, **places) runs the command `COMMANDS[name]`, by `interpreter` if it is given."""

    def run(name: str, *, interpreter: str | None = None, **places: object) -> Result:
        folder = tmp_path_factory.mktemp("run")
        written = folder / "record.json"
        script, *arguments = COMMANDS[name].format(json=written, scratch=folder, python=python, **places).split()
        # No peer may be fetched from the network.
        variables = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        done = subprocess.run(
            [interpreter or python, BENCHMARKS / script, *arguments],
            cwd=folder, capture_output=True, text=True, env=variables, timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
        return Result(done.returncode, done.stdout, done.stderr, read_record(written))

    return run
