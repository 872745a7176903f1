"""Four writers, two readers and two ranks of a training run share a growing dataset, and are killed.

Writers publish ten generations a second; in every second case the oldest episodes leave. Writers and readers are killed
with SIGKILL and started again. Readers and ranks compare every episode that they look at with its number. Ranks refresh
their loader and compare their windows. In the end no episode is lost or twice, and no reader keeps descriptors.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import struct
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

import gear_data
from tests.chaos.result import ChaosResult, Limit
from tests.support.chaos.write_paths import warm_up

WRITERS, READERS, RANKS = 4, 2, 2
#: Seconds of a case, and between kills.
SECONDS, BETWEEN_KILLS = 12.0, 0.7
MAX_STEPS = 600
_FORK = multiprocessing.get_context("fork")


def steps_of(number: int) -> list[int]:
    return [10 * number + t for t in range(1 + number % 7)]


def write(folder: Path, incarnation: int, evicts: bool) -> None:
    """Records episodes until the file `stop` is there, and says each number that is finished."""
    limits: dict[str, Any] = {"max_steps": MAX_STEPS} if evicts else {}
    said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with gear_data.Writer(folder / "data", durability="os", publish_every=0.1, **limits) as writer:
        number = 100_000 * incarnation
        while not (folder / "stop").exists():
            for value in steps_of(number):
                writer.append(actions=value)
            writer.end_episode(number=number)
            os.write(said, struct.pack("q", number))
            number += 1
            time.sleep(0.004)


def read(folder: Path, incarnation: int, evicts: bool) -> None:
    """Follows the dataset, and compares episodes with their numbers."""
    ds = gear_data.open(folder / "data", follow=True)
    rng, descriptors, looks = random.Random(incarnation), [], 0
    while not (folder / "stop").exists():
        newer = ds.refresh()
        if newer.generation < ds.generation:
            raise RuntimeError(f"generation {newer.generation} came after {ds.generation}")
        for each in (ds, newer):  # the old one has its files still
            numbers = each.episode_table.column("number").to_pylist()
            for position in (0, len(each) - 1, rng.randrange(len(each))):
                if each[position]["actions"].tolist() != steps_of(numbers[position]):
                    raise RuntimeError(f"episode {numbers[position]} has other steps")
        ds = newer
        looks += 1
        if looks % 20 == 0:
            descriptors.append(len(os.listdir("/proc/self/fd")))
    if len(descriptors) > 4 and descriptors[-1] > descriptors[1] + 8:
        raise RuntimeError(f"open descriptors grow: {descriptors}")


def train(folder: Path, rank: int, evicts: bool) -> None:
    """Draws batches as one of two ranks, and takes new generations."""
    import torch.distributed

    ds = gear_data.open(folder / "data", follow=True)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=RANKS)
    loader = gear_data.SequenceLoader(
        ds, 16, context=3, batch=gear_data.BatchOptions(window_ids=True), framework="numpy", prefetch=1
    )
    del ds
    batches, step, over = iter(loader), 0, [False] * RANKS
    while not any(over):
        batch = next(batches)
        windows: list[Any] = [None] * RANKS
        torch.distributed.all_gather_object(windows, loader.windows(step)["episode_id"].tolist())
        if windows[0] != windows[1]:
            raise RuntimeError(f"the ranks have other windows at step {step}")
        first = np.asarray(batch["actions"])[:, 0]
        if ((first % 10) != np.asarray(batch["start"])).any():
            raise RuntimeError(f"a window of step {step} begins at another step of its episode")
        if step % 5 == 4:
            loader.refresh()
        torch.distributed.all_gather_object(over, (folder / "stop").exists())
        step += 1
    torch.distributed.destroy_process_group()


def run(seed: int, limit: Limit) -> ChaosResult:
    """Runs crowds, one after the other."""
    warm_up()
    tried: Counter[str] = Counter()
    failures: list[str] = []
    for number in limit.numbers():
        evicts = bool(number % 2)
        with tempfile.TemporaryDirectory(prefix="gear-crowd-") as scratch:
            found = _crowd(Path(scratch), random.Random(f"{seed} {number}"), evicts)
        tried["evicting" if evicts else "growing"] += 1
        failures += [f"case {number}: {failure}" for failure in found]
    return ChaosResult("crowd", seed, tried.total(), dict(tried), tuple(failures))


def _crowd(folder: Path, rng: random.Random, evicts: bool) -> list[str]:
    incarnation = 0

    def start(role: Callable[[Path, int, bool], None]) -> BaseProcess:
        nonlocal incarnation
        incarnation += 1
        number = incarnation - 1 if role is train else incarnation
        process = _FORK.Process(target=_told, args=(role, folder, number, evicts))
        process.start()
        return process

    ranks = [start(train) for _ in range(RANKS)]
    crowd = [(role, start(role)) for role, count in ((write, WRITERS), (read, READERS)) for _ in range(count)]
    end = time.monotonic() + SECONDS
    kills = 0
    while time.monotonic() < end:
        time.sleep(rng.uniform(0, 2 * BETWEEN_KILLS))
        place = rng.randrange(len(crowd))
        role, process = crowd[place]
        process.kill()
        process.join()
        kills += role is write
        crowd[place] = role, start(role)
    (folder / "stop").touch()
    stuck = [process.name for process in (*ranks, *(each for _, each in crowd)) if _outlives(process)]
    failures = [path.read_text() for path in sorted(folder.glob("failed-*"))]
    failures += [f"processes do not end: {stuck}"] if stuck else []
    return failures or _wrong(folder, kills, evicts)


def _told(role: Callable[[Path, int, bool], None], folder: Path, number: int, evicts: bool) -> None:
    """Runs a role, and writes its failure into a file."""
    try:
        role(folder, number, evicts)
    except BaseException:
        (folder / f"failed-{role.__name__}-{number}").write_text(traceback.format_exc())


def _outlives(process: BaseProcess) -> bool:
    process.join(60)
    alive = process.is_alive()
    if alive:
        process.kill()
    return alive


def _wrong(folder: Path, kills: int, evicts: bool) -> list[str]:
    """Returns what is wrong with the dataset after all processes have ended."""
    with gear_data.Writer(folder / "data"):
        pass
    ds = gear_data.open(folder / "data")
    data = (folder / "said").read_bytes()
    said = {number for (number,) in struct.iter_unpack("q", data[: len(data) // 8 * 8])}
    found = ds.episode_table.column("number").to_pylist()
    failures = []
    if len(set(found)) != len(found):
        failures.append("an episode is there twice")
    if not evicts and (lost := said - set(found)):
        failures.append(f"{len(lost)} finished episodes are lost, such as {min(lost)}")
    if len(unknown := set(found) - said) > kills:
        failures.append(f"{len(unknown)} episodes that nobody finished, after {kills} kills")
    if any(ds[row]["actions"].tolist() != steps_of(number) for row, number in enumerate(found)):
        failures.append("an episode has other steps")
    if evicts and ds.num_steps > MAX_STEPS and len(ds.manifest.shards) > 1:
        failures.append(f"{ds.num_steps} steps are above the limit")
    if not gear_data.verify(folder / "data", deep=True, progress=False).ok:
        failures.append("the dataset does not verify")
    if (folder / "data.journal").exists():
        failures.append("journals are left")
    return failures
