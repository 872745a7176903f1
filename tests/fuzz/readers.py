"""Fuzzer of the readers: `python -m tests.fuzz.readers --seconds 600`.

Each case damages a source and converts it in a separate process. The case passes if the conversion succeeds, the
dataset verifies, and its values are those that another library reads. It also passes if the conversion ends with a
GearError. It fails at any other exception, a crash, more than
`TIME_LIMIT` seconds or more than `MEMORY_LIMIT` bytes. A failed case is kept in a folder and printed with the options
that run it again. A case depends only on the seed, the format and its number. Not a test: tests/fuzz/test_smoke.py runs
it for a few seconds.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import gear_data
from gear_data.errors import GearError
from gear_data.ingest.sources.registry import known_formats
from gear_data.recording.journal_folder import journals_of
from gear_data.storage.journal.quarantine import EPISODES, entries
from gear_data.storage.journal.reading import read_journal
from gear_data.video.indexing.demux import index_file
from tests.fuzz.damage import damage
from tests.fuzz.plain_readings import READERS, differences, frames_differ, source_differs, statistics_differ
from tests.support.makers.grown import GROWN_MAKERS
from tests.support.makers.videos import VIDEO_MAKERS
from tests.support.rollouts import make_rollouts
from tests.support.source_makers import MAKERS as SOURCE_MAKERS

MAKERS = SOURCE_MAKERS | VIDEO_MAKERS | GROWN_MAKERS
#: Limits of a case, in seconds and in bytes of memory.
TIME_LIMIT = 20
MEMORY_LIMIT = 512 << 20
#: Address space that a case may add. It is above the memory limit: threads reserve addresses that they do not use.
_ADDRESSES = 4 << 30

#: Sources that are damaged only on request: Lance ends the process if a damaged count is too large to allocate.
_LEFT_OUT = ("step-rows-lance",)

#: Part of the cases that compute statistics again, which takes most of the time of such a case.
_DEEP = 0.1

#: Digests of the packets of undamaged videos.
_PACKETS: set[int] = set()

#: Exit statuses of a case's process.
_CONVERTED, _REFUSED, _FAILED = 0, 3, 4


@dataclass(frozen=True)
class FuzzCase:
    """One source with one damage."""

    seed: int
    format: str
    number: int

    def rng(self) -> random.Random:
        return random.Random(f"{self.seed} {self.format} {self.number}")

    def __str__(self) -> str:
        return f"--seed {self.seed} --format {self.format} --case {self.number}"


def in_child(body: Callable[[], int], log: Path, time_limit: int) -> tuple[int, resource.struct_rusage]:
    """Runs `body` in a forked process; its output goes to `log`.

    Returns the wait status and the used resources.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = _FAILED
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest's time limit has a handler
            signal.alarm(time_limit)  # ends the process even inside C code
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + _ADDRESSES,) * 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            sys.stdout = sys.stderr = log.open("w", buffering=1)
            os.dup2(sys.stdout.fileno(), 1)
            os.dup2(sys.stdout.fileno(), 2)
            status = body()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    _, status, used = os.wait4(child, 0)
    return status, used


def convert(name: str, source: Path, destination: Path, rng: random.Random) -> int:
    """Converts a source with random options, sometimes as another format."""
    chosen = rng.choices(("auto", _format(name), rng.choice(list(known_formats()))), (5, 4, 1))[0]
    bad = rng.choice(("error", "skip"))
    try:
        gear_data.convert(
            source,
            destination,
            format=chosen,
            on_bad_episode=bad,
            keep_encoded=rng.random() < 0.3,
            shard_bytes=rng.choice((1 << 10, 1 << 20)),
            jobs=1,
            progress=False,
        )
    except GearError as error:
        print(f"{type(error).__name__}: {error}")
        return _REFUSED
    deep, decode = rng.random() < _DEEP, rng.random() < _DEEP
    if not gear_data.verify(destination, deep=deep, progress=False).ok:
        print("the converted dataset does not verify")
        return _FAILED
    dataset = gear_data.open(destination)
    difference = differences(destination, iter(dataset)) or statistics_differ(destination, dataset.statistics)
    if difference is None and dataset.schema.videos:
        difference = frames_differ(destination, dataset, _PACKETS)
        if decode:  # a conversion decodes nothing, so frames may be damaged
            gear_data.verify(destination, decode=True, progress=False)
    if (
        difference is None
        and bad == "error"
        and name in READERS
        and dataset.manifest.provenance["format"] == _format(name)
    ):
        difference = source_differs(name, source, dataset)
    if difference is not None:
        print(difference)
        return _FAILED
    return _CONVERTED


def _format(name: str) -> str:
    """Returns the format of a maker's source."""
    return max((known for known in known_formats() if name.startswith(known)), key=len, default="episode-rows")


def read(folder: Path, rng: random.Random) -> int:
    """Opens the gear datasets of a folder, reads all of them and verifies them."""
    return max([_CONVERTED, *(read_dataset(path, rng) for path in sorted(folder.iterdir()))])


def read_dataset(path: Path, rng: random.Random) -> int:
    """Opens a gear dataset, reads all of it and verifies it.

    The values of a dataset that verifies must be those that pyarrow reads from its files.
    """
    try:
        # First: what cannot be opened is reported too.
        deep = rng.random() < _DEEP
        intact = gear_data.verify(path, deep=deep, progress=False).ok
        ds = gear_data.open(path, residency=rng.choice(("mmap", "host")), on_bad_shard=rng.choice(("error", "skip")))
        episodes = []
        for i in range(len(ds)):
            episode = ds[i]
            episodes.append({name: np.array(episode[name]) for name in ds.schema.names})
            ds.final(i)
        if not intact:
            return _REFUSED
        difference = differences(path, iter(episodes))
        if ds.schema.videos:
            difference = difference or frames_differ(path, ds, _PACKETS)
        if deep:
            difference = difference or statistics_differ(path, ds.statistics)
    except GearError as error:
        print(f"{type(error).__name__}: {error}")
        return _REFUSED
    if difference is not None:
        print(f"{path.name}: {difference}")
        return _FAILED
    return _CONVERTED


def grow(live: Path, rng: random.Random) -> int:
    """Reads a dataset that grew with its sidecars and earlier generations, and publishes the journals beside it.

    If the dataset verifies, it does so afterwards. No intact episode of it or of the journals is lost.
    """
    status = read_dataset(live, rng)
    for generation in rng.sample(range(10), 3):
        with suppress(GearError):
            earlier = gear_data.open(live).at_generation(generation)
            earlier.quantiles("rewards")
            for episode in earlier.with_discount(0.9):
                np.array(episode["returns_to_go"])
    before = _episodes(live) if status == _CONVERTED else Counter()
    for journal in sorted(journals_of(live).glob("*/*.arrows")):
        before += _recorded(journal) if status == _CONVERTED else Counter()
    try:
        gear_data.Writer(live).close()
    except GearError as error:
        print(f"{type(error).__name__}: {error}")
        return max(_REFUSED, status)
    after = read_dataset(live, rng)
    if status != _CONVERTED or after == _FAILED:
        return max(status, after)
    if after == _REFUSED:
        print("a publication has damaged the dataset")
        return _FAILED
    left = _episodes(live)
    for entry in entries(live):
        left += _recorded(entry.episodes) if entry.holds == EPISODES else Counter()
    if lost := before - left:
        print(f"{lost.total()} episodes are lost")
        return _FAILED
    return _CONVERTED


def _episodes(folder: Path) -> Counter[bytes]:
    """Returns the episodes of a dataset, as the bytes of two columns."""
    return Counter(episode["actions"].tobytes() + episode["rewards"].tobytes() for episode in gear_data.open(folder))


def _recorded(journal: Path) -> Counter[bytes]:
    """Returns the intact episodes of a journal, likewise."""
    try:
        episodes = [episode.columns for episode in read_journal(journal).episodes]
    except GearError:
        return Counter()
    names = ("actions", "rewards")
    return Counter(b"".join(each[name].tobytes() for name in names) for each in episodes if {*names} <= each.keys())


def check(name: str, source: Path, destination: Path, rng: random.Random) -> int:
    """Reads a source of a maker: opens a gear dataset, converts any other source."""
    if name in GROWN_MAKERS:
        return grow(source / "live", rng)
    return read(source, rng) if name.startswith("gear") else convert(name, source, destination, rng)


def run(case: FuzzCase, source: Path, keep: Path) -> str:
    """Runs a case, and returns `converted`, `refused` or `failed`."""
    rng = case.rng()
    with tempfile.TemporaryDirectory(prefix="gear-fuzz-") as scratch:
        work = Path(scratch)
        shutil.copytree(source, work / "s")
        done = damage(work / "s", rng)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        def body() -> int:
            return check(case.format, work / "s", work / "d", rng)

        status, used = in_child(body, work / "log", TIME_LIMIT)
        code = os.waitstatus_to_exitcode(status)
        reasons = []
        if code == -signal.SIGALRM:
            reasons.append(f"took more than {TIME_LIMIT} s")
        elif code < 0:
            reasons.append(f"killed by {signal.Signals(-code).name}")
        elif code not in (_CONVERTED, _REFUSED):
            lines = [line for line in (work / "log").read_text(errors="replace").splitlines() if line.strip()]
            reasons.append(lines[-1] if lines else f"exit status {code}")
        if (used.ru_maxrss - before) * 1024 > MEMORY_LIMIT:
            reasons.append(f"took {used.ru_maxrss >> 10} MiB")
        if not reasons:
            return "converted" if code == _CONVERTED else "refused"
        kept = keep / f"{case.format}-{case.seed}-{case.number}"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(work, kept, ignore=lambda folder, names: [] if folder != str(work) else {"d"} & set(names))
        print(f"\nFAILED {case}: {'; '.join(reasons)}\n  damage: {done}\n  kept in {kept}", flush=True)
        return "failed"


def make_sources(names: list[str], folder: Path) -> dict[str, Path]:
    """Returns format -> folder of a valid source.

    The sources are written in other processes, because Arrow's threads must not be forked.
    """
    sources = {}
    for name in names:

        def body(name: str = name) -> int:
            try:
                MAKERS[name](folder / name, make_rollouts(4, seed=1, max_length=9))
            except ImportError as error:
                print(f"{error}")
                return _REFUSED
            return check(name, folder / name, folder / f"{name}.converted", random.Random(0))

        log = folder / f"{name}.log"
        status, _ = in_child(body, log, 120)
        if status == 0:
            sources[name] = folder / name
            for path in (folder / name).rglob("*.mp4"):
                _PACKETS.update(index_file(path, path.name).packets.digest.tolist())
        else:
            print(f"no source of format {name}: {log.read_text().strip().splitlines()[-1:]}")
    return sources


def warm_up(names: list[str]) -> None:
    """Imports the modules that a case needs, so that a fork has them.

    Nothing here may start a thread.
    """
    for module in (
        "h5py",
        "imagecodecs",
        "pandas",
        "pyarrow.pandas_compat",
        "pyarrow.parquet",
        "gear_data.ingest.convert",
        "gear_data.dataset.open",
        "gear_data.storage.verify",
        "gear_data.ingest.sources.zarr.bounded",
    ):
        importlib.import_module(module)
    known_formats()
    if any(name.endswith(("-json", "-csv", "-saved", "-tar")) for name in names):
        for module in ("csv.csv", "json.json", "webdataset.webdataset"):
            importlib.import_module(f"datasets.packaged_modules.{module}")
    if VIDEO_MAKERS.keys() & {*names}:
        for module in ("av", "gear_data.video.decoding.pyav"):
            importlib.import_module(module)
    if GROWN_MAKERS.keys() & {*names}:
        for module in ("sealing", "sinks.journal_sink", "writer"):
            importlib.import_module(f"gear_data.recording.{module}")
    if "rlds" in names:
        try:
            for module in ("tensorflow_datasets", "tensorflow", "keras"):
                importlib.import_module(module)
        except ImportError:
            names.remove("rlds")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="default 60")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    parser.add_argument("--format", action="append", choices=sorted(MAKERS), help="default all")
    parser.add_argument("--case", type=int, help="run only this case")
    parser.add_argument(
        "--keep", type=Path, default=Path(tempfile.gettempdir()) / "gear-fuzz", help="folder for failed cases"
    )
    options = parser.parse_args()
    names = options.format or [name for name in MAKERS if name not in _LEFT_OUT]
    os.fsync = lambda _: None  # durability is not needed, and fsync takes most of a case's time
    warm_up(names)
    counts = {name: Counter[str]() for name in names}
    with tempfile.TemporaryDirectory(prefix="gear-fuzz-") as scratch:
        sources = make_sources(names, Path(scratch))
        end = time.monotonic() + options.seconds
        spent = dict.fromkeys(sources, 0.0)
        while sources and (
            time.monotonic() < end or not all(spent.values())
        ):  # every format at least once, even on a slow machine
            name = min(spent, key=lambda name: spent[name])  # equal time for all formats
            number = options.case if options.case is not None else counts[name].total()
            started = time.monotonic()
            counts[name][run(FuzzCase(options.seed, name, number), sources[name], options.keep)] += 1
            spent[name] += time.monotonic() - started
            if options.case is not None:
                break
            cases, failed = (sum(pick(count) for count in counts.values()) for pick in (Counter.total, _failed))
            if sys.stdout.isatty():
                print(f"\r{cases} cases, {failed} failed", end="", flush=True)
    print()
    for name, count in counts.items():
        print(f"{name:18s} {count['converted']:6d} read {count['refused']:6d} refused {count['failed']:4d} failed")
    missing = [name for name, count in counts.items() if not count]
    if missing:
        print(f"not run: {', '.join(missing)}")
    return 1 if missing or any(_failed(count) for count in counts.values()) else 0


def _failed(count: Counter[str]) -> int:
    return count["failed"]


if __name__ == "__main__":
    sys.exit(main())
