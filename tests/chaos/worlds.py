"""Worlds and workers at random, against one process.

A case draws a dataset, a loader, and a way to read its first batches: ranks, DataLoader workers, prefetching, a
residency or nodes, resumed several times on another number of ranks. A node may be killed or stopped meanwhile, if
others hold its shards. Every batch equals, bit for bit, the batch of one process that reads the folder plainly. Source
columns of preset `raw` also equal an independent computation from the source's arrays.
"""

from __future__ import annotations

import faulthandler
import itertools
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import gear_data
from gear_data import Mixture, SequenceLoader
from tests.chaos.result import ChaosResult, Limit
from tests.support.chaos.nodes import ForkedNode, url
from tests.support.feed import data as feed_data
from tests.support.feed import reference

#: Cases that read the same datasets.
_CASES_OF_DATA = 8
#: Seconds after which a case counts as hanging; the harness ends then.
_HANGS = 240
_NODE_TIMEOUT = 2
_COLUMNS = ("observations", "actions", "rewards")
Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class _Data:
    """Datasets on disk, and the arrays that they were made of."""

    folders: tuple[str, ...]
    episodes: tuple[list[dict[str, np.ndarray]], ...]


@dataclass(frozen=True)
class _Plan:
    """A loader, as one process would make it.

    Attributes:
        parts: the datasets of a mixture with their proportions; one dataset: no mixture.
        options: further arguments of `SequenceLoader`.
        sampler: name of the sampler; `mixture` for a mixture.
    """

    parts: tuple[tuple[int, float], ...]
    join: bool
    options: Mapping[str, Any]
    sampler: str

    def loader(self, datasets: Sequence[gear_data.Dataset], **placement: Any) -> SequenceLoader:
        options = {**self.options, **placement}
        if len(self.parts) == 1:
            return SequenceLoader(datasets[0], **options)
        mixture = Mixture([(datasets[part], share) for part, share in self.parts], join=self.join)
        return SequenceLoader(mixture, **options)


def run(seed: int, limit: Limit) -> ChaosResult:
    """Reads in random worlds."""
    os.environ["GEAR_DATA_NODE_TIMEOUT"] = str(_NODE_TIMEOUT)
    # Torch's own threads do not survive a fork.
    torch.set_num_threads(1)
    tried: Counter[str] = Counter()
    failures: list[str] = []
    made, data = -1, _Data((), ())
    with tempfile.TemporaryDirectory(prefix="gear-chaos-") as scratch:
        os.environ["GEAR_DATA_CACHE"] = str(Path(scratch, "cache"))
        for number in limit.numbers():
            if number // _CASES_OF_DATA != made:
                made = number // _CASES_OF_DATA
                data = _make_data(random.Random(f"{seed} data {made}"), Path(scratch, str(made)))
            faulthandler.dump_traceback_later(_HANGS, exit=True)
            kind, failure = _case(random.Random(f"{seed} {number}"), data)
            tried[kind] += 1
            failures += [f"case {number}: {failure}"] if failure else []
        faulthandler.cancel_dump_traceback_later()
    return ChaosResult("worlds", seed, tried.total(), dict(tried), tuple(failures))


def _make_data(rng: random.Random, folder: Path) -> _Data:
    """Converts two datasets with the same columns."""
    widths = rng.randint(1, 9), rng.randint(1, 4)
    folders, sources = [], []
    for name in ("a", "b"):
        lengths = [rng.choice((1, 2, 7, rng.randint(1, 60))) for _ in range(rng.randint(2, 25))]
        episodes = feed_data.locomotion(lengths, rng.randrange(1 << 30), *widths)
        feed_data.convert_episodes(episodes, folder / name, shard_bytes=rng.choice((1024, 4096, 1 << 20)))
        folders.append(str(folder / name))
        sources.append(episodes)
    return _Data(tuple(folders), tuple(sources))


def _make_plan(rng: random.Random) -> _Plan:
    names = {
        "uniform": "uniform",
        "shuffle": "shuffle",
        "fifo": "fifo",
        "topk": gear_data.TopK("return", rng.randint(1, 2)),
        "weighted": gear_data.Weighted("length", by=rng.choice(("step", "episode"))),
    }
    is_mixture = rng.random() < 0.25
    sampler = rng.choice(list(names))
    options = {
        "batch_size": rng.choice((12, 24, 60)),
        "context": rng.choice((1, 2, 5, 20, 33)),
        "seed": rng.randrange(1 << 40),
        "preset": rng.choice(("raw", "raw", "decision_transformer", "corl", "d3rlpy")),
        "sampler": names[sampler],
    }
    if not is_mixture:
        return _Plan(((0, 1.0),), False, options, sampler)
    options["sampler"] = sampler = rng.choice(("uniform", "shuffle"))
    parts = tuple((part, rng.choice((0.25, 0.5, 1.0, 3.0))) for part in (0, 1))
    return _Plan(parts, rng.random() < 0.5, options, "mixture")


def _case(rng: random.Random, data: _Data) -> tuple[str, str | None]:
    """Reads one loader in one series of worlds; returns the kind of case and the failure."""
    plan, count = _make_plan(rng), rng.randint(4, 20)
    kind, worlds = "local", []
    try:
        expected = list(_clones(plan.loader([gear_data.open(each) for each in data.folders], prefetch=0), count))
        problem = _wrong_rows(plan, data, expected)
        if problem is not None:
            return "local", f"one process: {problem}: {plan}"
        with ExitStack() as stack:
            places: Sequence[str] = data.folders
            replicas: list[ForkedNode] = []
            if rng.random() < 0.5:
                places, replicas = _start_nodes(rng, stack, data, len(plan.parts))
                kind = "nodes"
            fault = rng.choice(("none", "killed", "stopped")) if replicas else "none"
            kind += "" if fault == "none" else f", one {fault}"
            victim, fault_step = rng.choice(replicas or [None]), rng.randrange(count)  # type: ignore[list-item]
            step, state = 0, None
            while step < count:
                world = _World.draw(rng, len(places) == len(data.folders) and not kind.startswith("nodes"))
                worlds.append(world)
                end = min(count, step + rng.randint(1, count))
                faults: Iterator[tuple[int, Any]] = iter(())
                if fault != "none" and victim is not None and step <= fault_step < end:
                    faults = iter([(fault_step - step, victim.kill if fault == "killed" else victim.stop)])
                found, state = world.read(plan, places, end - step, state, faults)
                for offset, batch in enumerate(found):
                    problem = _difference(batch, expected[step + offset])
                    if problem is not None:
                        return kind, f"batch {step + offset}: {problem}: {plan}, {worlds}"
                step = end
    except Exception as error:
        return kind, f"{type(error).__name__}: {error}: {plan}, {worlds}"
    return kind, None


def _start_nodes(rng: random.Random, stack: ExitStack, data: _Data, count: int) -> tuple[list[str], list[ForkedNode]]:
    """Starts one to three nodes for each dataset.

    Returns the URLs of the datasets, and the nodes of the first dataset whose shards other nodes hold too.
    """
    urls, spare = [], []
    for number, folder in enumerate(data.folders[:count]):
        shards = range(len(gear_data.open(folder).manifest.shards))
        size = rng.randint(1, 3)
        has_replicas = size > 1 and rng.random() < 0.7
        # With replicas every shard is on two nodes. Every node holds a shard.
        copies = 2 if has_replicas else 1
        held = [
            [s for s in shards if any((s + copy) % size == node for copy in range(copies))] or [0]
            for node in range(size)
        ]
        nodes = [ForkedNode(folder, each) for each in held]
        for node in nodes:
            stack.callback(node.kill)
        urls.append(url(nodes))
        if has_replicas and number == 0:
            spare = nodes
    return urls, spare


@dataclass(frozen=True)
class _World:
    """Ranks, workers and memory with which some batches are read."""

    size: int
    workers: int
    start: str
    prefetch: int
    residency: str | None

    @staticmethod
    def draw(rng: random.Random, is_local: bool) -> _World:
        # Every worker is a process: seldom many of them.
        size = rng.choice((1, 1, 2, 3, 4))
        workers = rng.choice((0, 0, 0, 1, 2, 3)) if size < 3 else rng.choice((0, 0, 0, 0, 1))
        start = rng.choice(("fork", "fork", "fork", "forkserver"))
        return _World(
            size, workers, start, rng.choice((0, 1, 2, 5)), rng.choice(("mmap", "host")) if is_local else None
        )

    def read(
        self, plan: _Plan, places: Sequence[str], count: int, state: Any, faults: Iterator[tuple[int, Any]]
    ) -> tuple[list[Batch], Any]:
        """Reads the next batches, each joined from the rows of all ranks; returns them and the next state."""
        options = {} if self.residency is None else {"residency": self.residency}
        ranks: list[list[Batch]] = []
        step = 0 if state is None else state["step"]
        for rank in range(self.size):
            loader = plan.loader(
                [gear_data.open(each, **options) for each in places],
                rank=rank, world_size=self.size, prefetch=self.prefetch,
            )  # fmt: skip
            if state is not None:
                loader.load_state_dict(state)
            source: Any = loader
            if self.workers:
                source = DataLoader(
                    loader, batch_size=None, num_workers=self.workers, multiprocessing_context=self.start
                )
            before = loader.state_dict()
            ranks.append(list(_clones(source, count, faults)))
            # Only a DataLoader knows the position of its workers.
            after = {**before, "step": step + count} if self.workers else loader.state_dict()
        return [
            {key: torch.cat([rows[key] for rows in each]) for key in each[0]} for each in zip(*ranks, strict=True)
        ], after


def _clones(batches: Any, count: int, faults: Iterator[tuple[int, Any]] | None = None) -> Iterator[Batch]:
    """Yields copies of the first batches. Before some of them, something is done."""
    iterator = iter(batches)
    at, action = next(faults or iter(()), (None, None))
    for number in range(count):
        if number == at:
            action()
        yield {key: value.clone() for key, value in next(iterator).items()}


def _difference(batch: Batch, expected: Batch) -> str | None:
    if batch.keys() != expected.keys():
        return f"keys {sorted(batch)}, not {sorted(expected)}"
    for key, value in batch.items():
        other = expected[key]
        if (value.dtype, value.shape) != (other.dtype, other.shape):
            return f"{key} is {value.dtype} {list(value.shape)}, not {other.dtype} {list(other.shape)}"
        if value.numpy().tobytes() != other.numpy().tobytes():
            return f"{key} differs"
    return None


def _wrong_rows(plan: _Plan, data: _Data, batches: Sequence[Batch]) -> str | None:
    """Compares batches of preset `raw` with the source's arrays.

    The windows of the uniform and the shuffled sampler are drawn again by the reference; others are the loader's.
    """
    options = plan.options
    if options["preset"] != "raw":
        return None
    loader = plan.loader([gear_data.open(each) for each in data.folders], prefetch=0)
    for step, batch in enumerate(batches):
        selection = loader.windows(step)
        windows = reference.as_windows(selection)
        of = selection["dataset"].tolist() if plan.sampler == "mixture" else [0] * len(windows)
        if plan.sampler in reference.WINDOWS:
            lengths = [len(episode["rewards"]) for episode in data.episodes[0]]
            draw = reference.WINDOWS[plan.sampler]
            if draw(options["seed"], step, options["batch_size"], lengths, options["context"]) != windows:
                return f"windows of batch {step} differ from the reference"
        for name, row in itertools.product(_COLUMNS, range(len(windows))):
            column = [episode[name] for episode in data.episodes[of[row]]]
            rows = reference.right_padded(column, [windows[row]], 0, options["context"])[0]
            if batch[name][row].numpy().tobytes() != rows.tobytes():
                return f"{name} of batch {step}, row {row}, differs from the source"
    return None
