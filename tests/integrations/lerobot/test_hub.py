"""LeRobotDataset of a repository on the hub, whose videos stay there."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.integrations.lerobot.conftest import Recorded
from tests.support.cameras.filmed import FPS
from tests.support.checks import folder_contents
from tests.support.running.hub_server import Hub, running_hub
from tests.support.running.warm_python import python

pytestmark = pytest.mark.processes

#: Compares the items of a repository with those of a folder. The library reads HF_ENDPOINT when it is imported.
SCRIPT = f"""
import sys
import torch
from gear_data.errors import GearError
from tests.support.integrations.lerobot_metadata import lerobot_modules

with lerobot_modules():
    from gear_data.integrations.lerobot import LeRobotDataset
    name, root, folder = sys.argv[1:]
    options = {{"delta_timestamps": {{"observation.images.front": [-1 / {FPS}, 0.0]}}, "return_uint8": True}}
    try:
        found = LeRobotDataset(name, root, **options)
    except GearError as error:
        sys.exit(f"{{type(error).__name__}} {{error}}")
    expected = LeRobotDataset("a/b", folder, **options)
    assert len(found) == len(expected) > 0
    for item, other in zip(*(each.__getitems__(range(len(each))) for each in (found, expected)), strict=True):
        assert list(item) == list(other)
        assert all(torch.equal(item[key], other[key]) if key != "task" else item[key] == other[key] for key in other)
    print("equal")
"""


@pytest.fixture
def hub(recorded: Recorded) -> Iterator[Hub]:
    """A hub with the dataset."""
    with running_hub() as hub:
        hub.add("me/robot", folder_contents(recorded.root), tag="v3.0")
        yield hub


def run(hub: Hub, folder: Path, name: str, root: Path, **environment: str) -> str:
    """Returns what the script prints."""
    known: dict[str, Any] = {"HF_HOME": root.parent / "home", "GEAR_DATA_CACHE": root.parent / "cache"}
    done = subprocess.run(
        [python(), "-c", SCRIPT, name, str(root), str(folder)],
        env={**os.environ, **hub.environment(), **{key: str(value) for key, value in known.items()}, **environment},
        text=True, capture_output=True, timeout=240, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_videos_stay_on_the_hub(hub: Hub, recorded: Recorded, tmp_path: Path) -> None:
    root = tmp_path / "robot"
    fetched = run(hub, recorded.root, "me/robot", root)
    assert fetched.startswith("equal"), fetched
    assert any(".mp4" in line for line in hub.requests)
    assert list(root.rglob("*.parquet")) and not list(root.rglob("*.mp4"))
    offline = run(hub, recorded.root, "me/robot", root, HF_HUB_OFFLINE="1")
    assert offline.startswith("equal") and "cannot reach the hub; using the conversion of" in offline, offline


def test_rows_are_of_the_commit_of_the_metadata(hub: Hub, recorded: Recorded, tmp_path: Path) -> None:
    """The tag moves to a commit in which the frames have other tasks."""
    root = tmp_path / "robot"
    assert run(hub, recorded.root, "me/robot", root).startswith("equal")
    repository = hub.repositories["me/robot"]
    files = repository.files("v3.0")
    rows = {name: other_tasks(data) for name, data in files.items() if name.startswith("data/")}
    repository.commits["f" * 40] = {**files, **rows}
    for commits in repository.branches.values():
        commits.append("f" * 40)
    shutil.rmtree(tmp_path / "cache")
    moved = run(hub, recorded.root, "me/robot", root)
    assert moved.startswith("equal"), moved


def test_rows_that_are_downloaded_later(hub: Hub, recorded: Recorded, tmp_path: Path) -> None:
    """The tag moves to a commit in which the tasks have another order, before the rows are downloaded."""
    root = tmp_path / "robot"
    assert run(hub, recorded.root, "me/robot", root).startswith("equal")
    repository = hub.repositories["me/robot"]
    files = dict(repository.files("v3.0"))
    for name, data in files.items():
        if name.startswith("data/"):
            files[name] = other_tasks(data)
        elif name == "meta/tasks.parquet":
            files[name] = other_tasks(data, reverse=True)
        (tmp_path / "moved" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "moved" / name).write_bytes(files[name])
    repository.commits["f" * 40] = files
    for commits in repository.branches.values():
        commits.append("f" * 40)
    shutil.rmtree(tmp_path / "cache")
    shutil.rmtree(root / "data")
    moved = run(hub, tmp_path / "moved", "me/robot", root)
    assert moved.startswith("equal"), moved


def other_tasks(data: bytes, *, reverse: bool = False) -> bytes:
    """Returns a Parquet file of frames with the other one of two tasks; or of two tasks, in reverse order."""
    table, file = pq.read_table(io.BytesIO(data)), io.BytesIO()
    table = table.take([1, 0]) if reverse else table
    column = table.schema.get_field_index("task_index")
    swapped = pc.subtract(1, table.column(column))
    pq.write_table(table.set_column(column, table.schema.field(column), swapped), file)
    return file.getvalue()


def test_a_folder_with_a_part_of_the_files(hub: Hub, recorded: Recorded, tmp_path: Path) -> None:
    root = shutil.copytree(recorded.root, tmp_path / "robot")
    for file in [*root.glob("data/*/*"), *root.glob("videos/observation.images.wrist/*/*")]:
        file.unlink()
    fetched = run(hub, recorded.root, "me/robot", root)
    assert fetched.startswith("equal"), fetched
    (kept,) = {file.parent.parent.name for file in root.rglob("*.mp4")}
    assert kept == "observation.images.front"


def test_a_video_that_is_nowhere(hub: Hub, recorded: Recorded, tmp_path: Path) -> None:
    root = shutil.copytree(recorded.root, tmp_path / "robot")
    (file, *_) = sorted(root.glob("videos/observation.images.front/*/*"))
    file.unlink()
    failed = run(hub, recorded.root, "me/absent", root)
    assert "DatasetNotFoundError hf://datasets/me/absent@v3.0" in failed
    assert f"the hub is asked because {file.relative_to(root)} is not in {root}" in failed


def test_a_repository_that_is_nowhere(hub: Hub, recorded: Recorded, tmp_path: Path) -> None:
    hub.add("me/other", {"README.md": b"#"}, tag="v3.0")
    for name, text in (("me/absent", "does not exist"), ("me/other", "is no LeRobot dataset")):
        failed = run(hub, recorded.root, name, tmp_path / "robot")
        assert f"DatasetNotFoundError hf://datasets/{name}: {text}" in failed, failed
        assert f"LeRobot asks the hub for files that are not in {tmp_path / 'robot'}" in failed


def test_a_hub_that_does_not_answer(hub: Hub, recorded: Recorded, tmp_path: Path) -> None:
    ended = threading.Event()

    def wait(line: str) -> None:
        ended.wait(240)

    hub.on_request = wait
    try:
        failed = run(hub, recorded.root, "me/robot", tmp_path / "robot", GEAR_DATA_REQUEST_SECONDS="1")
    finally:
        ended.set()
    assert "RemoteError hf://datasets/me/robot: the hub failed" in failed, failed
