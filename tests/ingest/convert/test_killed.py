"""Tests conversions that are killed at any moment."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import (
    DatasetNotFoundError,
    ResumeError,
)

pytestmark = pytest.mark.processes

#: As in the fixture `small_reads`.
_READ_BYTES = 2000
_OPTIONS: dict[str, Any] = {"shard_bytes": 4096, "on_bad_episode": "skip"}

# Forks a process per kill, so that modules are imported once. A process kills itself before one of the calls that
# change files (`calls`), or is killed from outside after a part of a whole conversion's time.
_KILLER = """
import json, os, random, signal, sys, time
import pyarrow
from gear_data.ingest.convert import convert
from gear_data.ingest.sources.registry import known_formats
from gear_data.ingest.sources.tables import file_stream
from gear_data.ingest.sources.tree import source as tree

known_formats()
pyarrow.array([0])  # looks for pandas, which takes its time
source, folder, options, read_bytes, calls, moments = json.loads(sys.argv[1])
file_stream._BATCH_BYTES = tree._BLOCK_BYTES = read_bytes

def run(name, kill_before=None, kill_after=None):
    started = time.perf_counter()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        count = 0
        def counted(call):
            def before(*args, **kwargs):
                nonlocal count
                if count == kill_before:
                    os.kill(os.getpid(), signal.SIGKILL)
                count += 1
                return call(*args, **kwargs)
            return before
        os.fsync = lambda descriptor: None
        for call in ("mkdir", "fsync", "replace", "unlink", "rmdir"):
            setattr(os, call, counted(getattr(os, call)))
        convert(source, os.path.join(folder, name), **options)
        os.write(writer, str(count).encode())
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    total = os.read(reader, 100).decode()
    os.close(reader)
    return os.WIFSIGNALED(status), total, time.perf_counter() - started

killed, total, seconds = run("whole")
assert not killed
rng = random.Random(5)
places = sorted(rng.sample(range(int(total)), calls - 2) + [0, int(total) - 1])
for place in places:
    assert run(f"call{place}", kill_before=place)[0]
for i in range(moments):
    run(f"moment{i}", kill_after=rng.uniform(0, seconds))
"""


@dataclass(frozen=True)
class Killed:
    """A source, the folder of its whole conversion, and folders of killed ones."""

    source: Path
    whole: Path
    folders: list[Path]


def _flawed_source(sources: Any, folder: Path, kind: str) -> Path:
    """Writes rollouts with findings of several kinds everywhere."""
    rollouts = sources.make_rollouts(60, seed=11, max_length=30)
    for i in range(0, 60, 7):
        observations = rollouts[i].columns["observations"].copy()
        observations[-1, 0] = np.nan
        both = rollouts[i].columns["terminated"] | rollouts[i].columns["truncated"]
        rollouts[i] = rollouts[i].with_columns(observations=observations, truncated=both)
    if kind == "d4rl":
        return sources.write_d4rl(folder / "s.hdf5", rollouts)  # type: ignore[no-any-return]
    if kind == "steps":
        return sources.write_steps(folder / "s.parquet", rollouts, row_group=20)  # type: ignore[no-any-return]
    empty = sources.make_rollouts(1)[0]
    nothing = sources.Rollout({name: values[:0] for name, values in empty.columns.items()}, empty.final)
    for i in (0, 13, 14, 30, 59):
        rollouts[i] = nothing
    return sources.write_episodes(folder / "s.parquet", rollouts, row_group=4)  # type: ignore[no-any-return]


@pytest.fixture(scope="module", params=["episodes", "steps", "d4rl"])
def killed(request: pytest.FixtureRequest, sources: Any, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    folder = tmp_path_factory.mktemp("killed")
    source = _flawed_source(sources, folder, request.param)
    (folder / "out").mkdir()
    arguments = json.dumps([str(source), str(folder / "out"), _OPTIONS, _READ_BYTES, 16, 4])
    subprocess.run([sys.executable, "-c", _KILLER, arguments], check=True, timeout=120)
    folders = sorted(path for path in (folder / "out").iterdir() if path.name != "whole")
    return Killed(source, folder / "out" / "whole", folders)


@pytest.mark.usefixtures("small_reads")
def test_killed_at_any_moment_resumes_to_the_same_bytes(killed: Killed, sources: Any, tmp_path: Path) -> None:
    expected = sources.folder_contents(killed.whole)
    assert gear_data.verify(killed.whole).ok
    assert json.loads(expected["manifest.json"])["findings"]
    resumed = 0
    for folder in killed.folders:
        copy = tmp_path / folder.name
        shutil.copytree(folder, copy)
        try:
            gear_data.convert(killed.source, copy, **_OPTIONS, resume=True)
            resumed += 1
        except ResumeError as error:  # killed before it wrote its options
            assert "overwrite" in str(error)
            assert not list(copy.rglob("*.arrow"))
            gear_data.convert(killed.source, copy, **_OPTIONS, overwrite=True)
        assert sources.folder_contents(copy) == expected, folder.name
    assert resumed > len(killed.folders) // 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name for folder in killed.folders]


def test_an_unfinished_conversion_never_opens(killed: Killed) -> None:
    finished = 0
    for folder in killed.folders:
        if (folder / "manifest.json").exists():
            # Killed during the final cleanup: the dataset is complete.
            assert gear_data.verify(folder).ok
            assert gear_data.open(folder).fingerprint == gear_data.open(killed.whole).fingerprint
            finished += 1
        else:
            with pytest.raises(DatasetNotFoundError) as error:
                gear_data.open(folder)
            assert "did not finish" in str(error.value) or not (folder / ".progress").exists()
    assert finished < len(killed.folders)
