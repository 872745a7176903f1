"""Writers, sealers, publishers and evicters of a growing dataset are killed, and disks fail under them.

A process records numbered episodes, publishes generations, and evicts the oldest, or those of small weight, or none. It
is killed before one of its file operations, or one of them fails (EIO), or the disk is full from one of them on, or
it gets only a part of the memory that it needs. Then the dataset is whole, and dataset and journals have each
acknowledged episode once. The next run goes on, and leaves nothing else.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import gear_data
from gear_data.errors import GearError
from gear_data.storage.generations.growth import Growth
from gear_data.storage.journal.reading import read_journal
from tests.chaos.result import ChaosResult, Limit
from tests.support.chaos.case_folder import failure_of, last_lines, log_of
from tests.support.chaos.small_memory import has_error_of_library, measured, need_of, small_memory
from tests.support.chaos.system_calls import SPACE, Answer, Call, Ended, refusal, supervise
from tests.support.chaos.write_paths import Job, inside, warm_up

KINDS = ("killed", "EIO", "ENOSPC", "memory")
#: What leaves first -> number of episodes, most steps, and episodes of a generation. Without a name, nothing leaves.
ORDERS = {"": (14, 1000, 3), "oldest": (14, 40, 3), "weight": (84, 64, 12)}


def steps_of(number: int, evicts: str) -> list[int]:
    """Returns the steps of an episode. With weights, a shard has eight episodes, of which some leave."""
    return [100 * number + t for t in range(1 if evicts == "weight" else 3 + number % 4)]


def _writer(folder: Path, evicts: str) -> gear_data.Writer:
    limits = {"max_steps": ORDERS[evicts][1], "evict": evicts} if evicts else {}
    return gear_data.Writer(
        folder / "data", durability="os", shard_bytes=1024 if evicts != "weight" else 1 << 14, **limits
    )  # type: ignore[arg-type]


def _end_episode(writer: gear_data.Writer, number: int, evicts: str) -> None:
    for value in steps_of(number, evicts):
        writer.append(actions=value, rewards=1.0)
    writer.end_episode(terminated=True, number=number, weight=number * 7 % ORDERS[evicts][0])


def record(folder: Path, evicts: str) -> None:
    """Records the episodes that are missing, and says after each that it is finished."""
    episodes, _, each = ORDERS[evicts]
    writer = _writer(folder, evicts)
    published = gear_data.open(folder / "data").manifest.next_id if (folder / "data/manifest.json").exists() else 0
    said = os.open(folder / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(published + writer.episodes, episodes):
        _end_episode(writer, number, evicts)
        os.write(said, b".")
        if number % each == each - 1:
            writer.seal()
    writer.close()
    os.close(said)


def run(seed: int, limit: Limit) -> ChaosResult:
    """Runs cases: each kind of fault in turn, with and without eviction."""
    if (reason := refusal()) is not None:
        return ChaosResult("growth", seed, 0, {}, skipped={"all": reason})
    warm_up()
    tried: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gear-growth-") as scratch:
        case = Path(scratch, "case")
        wholes = {evicts: _run(case, evicts, lambda _: Answer.PASS, measured) for evicts in ORDERS}
        for number in limit.numbers():
            kind, evicts = KINDS[number // 3 % len(KINDS)], tuple(ORDERS)[number % 3]
            rng = random.Random(f"{seed} {number}")
            # The file of acknowledgements is this harness's own.
            place = rng.choice([call for call in wholes[evicts].calls if "acknowledged" not in call.file])
            extra = round(need_of(wholes[evicts]) * rng.random() ** 3)
            failure = _fault(case, kind, evicts, place, extra)
            tried[kind] += 1
            if failure:
                where = f"{extra:,} bytes" if kind == "memory" else f"at {place}"
                failures.append(f"case {number}: {kind}{f', evicting {evicts}' * bool(evicts)} {where}: {failure}")
    return ChaosResult("growth", seed, tried.total(), dict(tried), tuple(failures))


def _run(
    case: Path, evicts: str, answer: Callable[[Call], Answer | int], around: Callable[[Job], Job] = lambda job: job
) -> Ended:
    shutil.rmtree(case, ignore_errors=True)
    case.mkdir()
    return supervise(inside(case, around(lambda folder: _typed(folder, evicts))), case, log_of(case), answer)


def _typed(folder: Path, evicts: str) -> None:
    try:
        record(folder, evicts)
    except (GearError, MemoryError) as error:
        print(f"typed error: {type(error).__name__}")
        os._exit(3)  # as a process that does not catch it


def _fault(case: Path, kind: str, evicts: str, place: Call, extra: int) -> str | None:
    """Runs one case; returns its failure."""

    def around(job: Job) -> Job:
        def limited(folder: Path) -> None:
            with small_memory(extra):
                job(folder)

        return limited if kind == "memory" else job

    def answer(call: Call) -> Answer | int:
        if kind == "ENOSPC":
            full = call.number >= place.number and call.name in SPACE and "acknowledged" not in call.file
            return errno.ENOSPC if full else Answer.PASS
        if call.number != place.number or "acknowledged" in call.file or kind == "memory":
            return Answer.PASS
        return Answer.KILL if kind == "killed" else errno.EIO

    ended = _run(case, evicts, answer, around)
    failure = None if kind == "memory" and not ended.orphans and has_error_of_library(ended) else failure_of(ended)
    if failure is None and ended.status not in (0, -9, 3) and kind == "killed":
        failure = f"exit status {ended.status}: {last_lines(ended.output)}"
    acknowledged = (case / "acknowledged").stat().st_size if (case / "acknowledged").exists() else 0
    failure = failure or _wrong(case, evicts, acknowledged)
    if failure:
        return failure
    again = supervise(inside(case, lambda folder: record(folder, evicts)), case, log_of(case), lambda _: Answer.PASS)
    if again.status != 0:
        return f"the next run failed: {last_lines(again.output)}"
    if failure := _wrong(case, evicts, ORDERS[evicts][0]):
        return failure
    if kind == "EIO" and _left(case):
        # A file that could not be removed stays until the next publication.
        with _writer(case, evicts) as writer:
            _end_episode(writer, ORDERS[evicts][0], evicts)
    return _left(case)


def _wrong(case: Path, evicts: str, acknowledged: int) -> str | None:
    """Returns what is wrong with the episodes of dataset and journals."""
    found: list[int] = []
    growth: Growth | None = None
    if (case / "data/manifest.json").exists():
        ds = gear_data.open(case / "data")
        report = gear_data.verify(case / "data", deep=True, progress=False)
        if not report.ok:
            return f"does not verify: {[check.error for check in report.shards if not check.ok]} {report.differences}"
        found = [int(number) for number in ds.episodes["number"]]
        if found != [ds[position].id for position in range(len(ds))]:
            return f"ids differ from numbers: {found}"
        if evicts and len(ds.manifest.shards) > 1 and ds.num_steps > ORDERS[evicts][1]:
            return f"{ds.num_steps} steps are above the limit"
        if any(ds[position]["actions"].tolist() != steps_of(number, evicts) for position, number in enumerate(found)):
            return "an episode has other steps"
        growth = ds.manifest.growth
    for path in sorted((case / "data.journal/000").glob("*.arrows")):
        journal = read_journal(path)
        if growth is None or not growth.has_journal(journal.series, int(path.stem)):
            found += [int(episode.facts["number"]) for episode in journal.episodes]
    if evicts == "weight":
        # The episodes that left are not known. The last one stays.
        whole = found == sorted(set(found)) and (not found or acknowledged <= found[-1] + 1 <= acknowledged + 1)
        return None if whole else f"{acknowledged} episodes were acknowledged, and there are {found}"
    first = found[0] if evicts and found else 0
    if found != list(range(first, first + len(found))):
        return f"episodes are missing or twice: {found}"
    if not acknowledged <= first + len(found) <= acknowledged + 1:
        return f"{acknowledged} episodes were acknowledged, and the last one is {first + len(found) - 1}"
    return None


def _left(case: Path) -> str | None:
    """Returns a file that nobody needs after a whole run."""
    manifest = gear_data.open(case / "data").manifest
    wanted = {entry.file for entry in manifest.files} | {"manifest.json", "README.md"}
    wanted |= {f"generations/{manifest.generation:06d}.json"}
    for path in sorted((case / "data").rglob("*")):
        name = str(path.relative_to(case / "data"))
        if path.is_file() and name not in wanted and not name.startswith("parts/"):
            return f"{name} is left"
    return "the journals are left" if (case / "data.journal").exists() else None
