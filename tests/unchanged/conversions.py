"""Conversions of sources of every format: whole, in tasks and processes, killed and resumed, and of damaged files."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gear_data
from gear_data.errors import GearError
from gear_data.ingest.engine import tasks, worker_pool
from gear_data.ingest.sources.registry import known_formats
from gear_data.storage.writing.shard_writer import ShardWriter
from tests.fuzz.damage import damage
from tests.support.rollouts import make_rollouts
from tests.support.source_makers import MAKERS

#: Keys of a manifest, at any depth, that differ between two conversions of one source.
_OF_A_RUN = frozenset(("seconds", "created", "time", "started", "finished", "version", "source", "location"))
#: Sizes of units and blocks, so that a small source has many tasks and shards; and the size of its shards.
_SMALL = {"UNIT_BYTES": 1, "_BLOCK_BYTES": 600, "_BATCH_BYTES": 600, "_CHUNK_BYTES": 600}
_SHARD_BYTES = 2048
#: The same for a source from elsewhere.
_MEDIUM = dict.fromkeys(_SMALL, 1 << 20)
_MEDIUM_SHARD_BYTES = 1 << 21
#: Damaged copies of each source.
_DAMAGED = 12
#: Lance ends the process if a damaged count is too large to allocate.
_NOT_DAMAGED = frozenset({"step-rows-lance"})
_PROCESSES = 3


@dataclass(frozen=True)
class Conversion:
    """A conversion to observe.

    Attributes:
        source: the file or folder.
        options: the arguments of `convert`.
        sizes: names of sizes of units and blocks -> bytes; empty for the usual ones.
        killed: whether a first run is killed before its second shard, and the conversion resumes.
    """

    source: Path
    options: Mapping[str, Any]
    sizes: Mapping[str, int] = field(default_factory=dict)
    killed: bool = False

    def observe(self, destination: Path) -> dict[str, Any]:
        """Converts the source to a new folder, and returns what is there."""
        shutil.rmtree(destination, ignore_errors=True)
        options = {"progress": False, **self.options}
        if self.killed:
            options |= {"resume": True}
            _run_killed(self.source, destination, options)
        try:
            with _sizes(self.sizes), _workers_first(destination, self.options["jobs"]):
                report = gear_data.convert(self.source, destination, **options)
        except GearError as error:
            place = [error.file, error.column, error.row]
            return {"error": [type(error).__name__, *place], "message": str(error)}
        finally:
            files = dict(_contents(destination))
            shutil.rmtree(destination, ignore_errors=True)
        facts = {name: getattr(report, name) for name in ("fingerprint", "format", "reason")}
        return {**facts, "warnings": list(report.warnings), **files}


def make_sources(folder: Path, wanted: Callable[[str], bool]) -> None:
    """Writes a source of every format, and damaged copies of it.

    Args:
        folder: the folder to write to.
        wanted: whether an entry is wanted, given its name. A source without a wanted entry is not written.
    """
    rollouts = make_rollouts(24, seed=3)
    for name, maker in MAKERS.items():
        if not any(map(wanted, _entries_of(name))):
            continue
        maker(folder / "sources" / name, rollouts)
        for i in range(0 if name in _NOT_DAMAGED else _DAMAGED):
            copy = folder / "damaged" / name / str(i)
            shutil.copytree(folder / "sources" / name, copy)
            damage(copy, random.Random(f"{name} {i}"))


def _entries_of(name: str) -> Iterator[str]:
    """Yields the names of the entries of a source."""
    yield from (f"source {name}{variant}" for variant in ("", ", in tasks", ", in processes", ", killed"))
    yield from (f"damaged {name} {i}, {bad}" for i in range(_DAMAGED) for bad in ("error", "skip"))


def conversions(folder: Path, data: Path | None) -> Iterator[tuple[str, Conversion]]:
    """Yields (name, conversion) for every source.

    Args:
        folder: the folder of `make_sources`.
        data: a folder of further sources, up to two levels below it; None for none.
    """
    sources = {name: folder / "sources" / name for name in MAKERS}
    if data is not None:
        below = sorted(path for pattern in ("*", "*/*") for path in data.glob(pattern) if path.is_dir())
        sources |= {str(path.relative_to(data)): path for path in below}
    for name, source in sources.items():
        if not source.exists():  # it was not recorded
            continue
        sizes, shard_bytes = (_SMALL, _SHARD_BYTES) if name in MAKERS else (_MEDIUM, _MEDIUM_SHARD_BYTES)
        found = [
            Conversion(source, {"jobs": 1}),
            Conversion(source, {"jobs": 1, "shard_bytes": shard_bytes}, sizes),
            Conversion(source, {"jobs": _PROCESSES, "shard_bytes": shard_bytes}, sizes),
            Conversion(source, {"jobs": 1, "shard_bytes": shard_bytes}, killed=True),
        ]
        if name in MAKERS and name not in _NOT_DAMAGED:
            copies = [folder / "damaged" / name / str(i) for i in range(_DAMAGED)]
            found += [Conversion(c, {"jobs": 1, "on_bad_episode": bad}) for c in copies for bad in ("error", "skip")]
        yield from zip(_entries_of(name), found, strict=False)


@contextmanager
def _sizes(sizes: Mapping[str, int]) -> Iterator[None]:
    """Sets the sizes of units and blocks, in this process."""
    known_formats()  # imports them all
    modules = [module for name, module in sys.modules.items() if name.startswith("gear_data.ingest.")]
    changed = [(module, name) for module in modules for name in sizes if hasattr(module, name)]
    usual = [getattr(module, name) for module, name in changed]
    for module, name in changed:
        setattr(module, name, sizes[name])
    try:
        yield
    finally:
        for (module, name), value in zip(changed, usual, strict=True):
            setattr(module, name, value)


@contextmanager
def _workers_first(destination: Path, jobs: int) -> Iterator[None]:
    """Makes this process wait until a worker has finished a task, for a minute at most."""
    run_task, end = tasks.run_task, time.monotonic() + 60

    def run(task: tasks.Task, *arguments: Any) -> Any:
        while jobs > 1 and task.prefix and not any(destination.rglob("*done.json")) and time.monotonic() < end:
            time.sleep(0.01)
        return run_task(task, *arguments)

    worker_pool.run_task = run  # type: ignore[attr-defined]
    try:
        yield
    finally:
        worker_pool.run_task = run_task  # type: ignore[attr-defined]


def _run_killed(source: Path, destination: Path, options: Mapping[str, Any]) -> None:
    """Starts a conversion in a process, which is killed before it writes its second shard."""
    arguments = json.dumps([str(source), str(destination), options])
    subprocess.run([sys.executable, "-m", "tests.unchanged.conversions", arguments], capture_output=True, check=False)


def _convert_until_killed(source: str, destination: str, options: dict[str, Any]) -> None:
    write: Callable[[ShardWriter], Any] = ShardWriter._write_shard

    def count(writer: ShardWriter) -> Any:
        if writer.shards:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(writer)

    ShardWriter._write_shard = count  # type: ignore[method-assign]
    gear_data.convert(source, destination, **options)


def _contents(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yields (name of a file, hash), and (key of the manifest, its value or hash)."""
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == "manifest.json":
            manifest = _lasting(json.loads(path.read_text()))
            provenance = manifest.pop("provenance", {})
            yield "findings", manifest.pop("findings", [])
            manifest.pop("checksum", None)
            yield from ((f"{name} {key}", _hash(json.dumps(value).encode())) for key, value in manifest.items())
            yield from ((f"{name} provenance {key}", _hash(json.dumps(v).encode())) for key, v in provenance.items())
        elif path.is_file() and path.name != "README.md":  # which repeats the manifest
            yield name, _hash(path.read_bytes())


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(each) for key, each in value.items() if key not in _OF_A_RUN}
    return [_lasting(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    _convert_until_killed(*json.loads(sys.argv[1]))
