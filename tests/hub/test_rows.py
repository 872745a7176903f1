"""Rows of a dataset of the hub, by the real library against a server that speaks the hub's API."""

from __future__ import annotations

import io
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

import gear_data
from gear_data.errors import RemoteError
from gear_data.storage.remote.hub_rows import HubRows
from tests.support.hangs import no_hang
from tests.support.running.hub_server import Hub, running_hub
from tests.support.running.warm_python import python

STEPS = 4000


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub with a Parquet file of steps, whose row groups need several requests."""
    columns = {
        "episode": [step // 10 for step in range(STEPS)],
        "action": [float(step) for step in range(STEPS)],
        "reward": [1.0] * STEPS,
        "padding": [os.urandom(300).hex() for _ in range(STEPS)],
    }
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, row_group_size=500)
    with running_hub() as hub:
        hub.add("me/steps", {"steps.parquet": file.getvalue()})
        yield hub


@pytest.mark.processes
@pytest.mark.parametrize("refuses", [False, True])
def test_a_dataset_is_converted_by_its_name(hub: Hub, refuses: bool, tmp_path: Path) -> None:
    requests: list[str] = []

    def answer(line: str) -> int | None:
        requests.extend([line] if line.startswith("GET") and line.endswith("steps.parquet") else [])
        return 403 if refuses and len(requests) > 3 else None

    hub.on_request = answer
    # The library reads HF_ENDPOINT when it is imported.
    environment = {**os.environ, **hub.environment(), "HF_HOME": str(tmp_path / "home")}
    command = [python(), "-m", "gear_data.cli", "convert", "me/steps", str(tmp_path / "data")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    if refuses:
        assert done.returncode == 1
        assert "gear-data: me/steps: cannot be read" in done.stderr
        assert "403" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert gear_data.open(tmp_path / "data").num_steps == STEPS
        assert len(requests) > 3


def test_a_hub_that_falls_silent(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` reads a file of the hub by its address, as the endpoint was set when the library was imported."""
    for module in (constants, datasets.config):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
    file = f"{hub.url}/datasets/me/steps/resolve/main/steps.parquet"
    loaded = datasets.load_dataset("parquet", data_files=file, split="train", streaming=True, cache_dir=str(tmp_path))
    rows = HubRows(loaded, "me/steps").with_format("arrow").select_columns(["action"]).skip(3)
    assert next(rows.iter(batch_size=100))["action"][0].as_py() == 3
    ended = threading.Event()
    hub.on_request = lambda _: (ended.wait(), None)[1]
    monkeypatch.setenv("GEAR_DATA_REQUEST_SECONDS", "0.2")
    with no_hang(20), pytest.raises(RemoteError, match="me/steps: cannot be read, tried once: TimeoutError: no answer"):
        next(rows.iter(batch_size=100))
    ended.set()
