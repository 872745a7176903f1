"""Tests worker processes whose parent ends at any moment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from gear_data.ingest.engine.spec import ConversionSpec
from gear_data.ingest.engine.tasks import Task
from gear_data.ingest.source import SourceOptions
from gear_data.storage.episode_block import BEGIN, END

pytestmark = pytest.mark.processes

_TASK = Task("", BEGIN, END, 1)


@pytest.fixture
def work(sources: Any, rollouts: list[Any], tmp_path: Path) -> tuple[Any, str, int]:
    source = sources.write_episodes(tmp_path / "s.parquet", rollouts, row_group=2)
    spec = ConversionSpec(str(source), None, "auto", SourceOptions(), False, False, 2048)
    return spec, str(tmp_path / "d"), 1


def _nothing(parent: Connection[Any, Any], work: Any) -> None:
    pass


def _half_a_message(parent: Connection[Any, Any], work: Any) -> None:
    os.write(parent.fileno(), (1000).to_bytes(4, "big") + b"half")


def _the_work(parent: Connection[Any, Any], work: Any) -> None:
    parent.send(work)


def _a_task(parent: Connection[Any, Any], work: Any) -> None:
    parent.send(work)
    parent.send(_TASK)


def _a_task_with_unread_replies(parent: Connection[Any, Any], work: Any) -> None:
    _a_task(parent, work)
    assert parent.poll(60)


def _a_source_that_fails(parent: Connection[Any, Any], work: Any) -> None:
    Path(work[0].source).write_bytes(b"")
    _a_task(parent, work)


@pytest.mark.parametrize(
    "sent",
    [_nothing, _half_a_message, _the_work, _a_task, _a_task_with_unread_replies, _a_source_that_fails],
)
def test_a_worker_ends_in_silence_when_its_parent_does(sent: Callable[[Any, Any], None], work: Any) -> None:
    parent, theirs = Pipe()
    with theirs:
        command = [sys.executable, "-m", "gear_data.ingest.engine.worker", str(theirs.fileno())]
        worker = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    with parent:
        sent(parent, work)
    output, _ = worker.communicate(timeout=120)
    assert (worker.returncode, output) == (0, "")


def test_a_worker_imports_no_pandas(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    source = sources.write_episodes(tmp_path / "s.parquet", rollouts)
    code = (
        "import sys\n"
        "from gear_data.common.extras import leave_out_pandas\n"
        "leave_out_pandas()\n"
        "import gear_data, pyarrow\n"
        "gear_data.convert(sys.argv[1], sys.argv[2])\n"
        "print('pandas' in sys.modules)\n"
        "import pandas\n"
        "print(pyarrow.table({'a': [1]}).to_pandas()['a'].tolist())\n"
    )
    command = [sys.executable, "-c", code, str(source), str(tmp_path / "d")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n[1]\n"
    sources.check_dataset(tmp_path / "d", rollouts)
