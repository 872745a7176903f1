"""A training run reads a dataset that grows meanwhile, is killed, and goes on with another number of ranks.

A Writer publishes several generations a second, and the oldest episodes leave. A run takes generations and updates
weights at random steps, and writes checkpoints. It is killed with SIGKILL, and goes on from its last checkpoint with
another number of ranks, of prefetched batches, or with DataLoader's workers. The ranks are loaders of one process,
processes of torch.distributed, or processes of torchrun's agent, which starts all again if one is killed. In every
second case the dataset has a camera. Every batch equals, bit for bit, that of one process that reads the same
generations from the same steps on.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import torch.distributed
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.utils.data import DataLoader

import gear_data
from gear_data.common.file_lock import locked
from gear_data.errors import GearError
from gear_data.storage.generations.growth import generation_file
from tests.chaos.result import ChaosResult, Limit
from tests.support.chaos.write_paths import warm_up

#: Most steps of the dataset.
MAX_STEPS = 700
#: Most generations: the Writer holds a descriptor of each.
_MOST_HELD = 400
CAMERA = "observations.images.front"
#: Seconds after which a process counts as hanging.
_HANGS = 240.0
#: Steps between an event and the step from which it holds. No world builds so many batches ahead.
_AHEAD = 40
_FORK = multiprocessing.get_context("fork")
KINDS = ("uniform", "weights of episodes", "weights of steps", "an expression")
Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class _Plan:
    """A loader, as one process would make it.

    Attributes:
        has_camera: whether the dataset has one.
    """

    kind: str
    seed: int
    context: int
    preset: str
    has_camera: bool

    @property
    def steps(self) -> int:
        """The steps of the run. With a camera they take longer, so that the dataset grows meanwhile."""
        return 80 if self.has_camera else 200

    def loader(self, dataset: gear_data.Dataset, **placement: Any) -> gear_data.SequenceLoader:
        sampler: Any = "uniform"
        if self.kind == "an expression":
            sampler = gear_data.Weighted("length")
        elif self.kind != "uniform":
            by, count = ("step", dataset.num_steps) if self.kind.endswith("steps") else ("episode", len(dataset))
            sampler = gear_data.Weighted(1.0 + np.arange(count) % 5, by=by)
        return gear_data.SequenceLoader(
            dataset, 12, context=self.context, seed=self.seed, preset=self.preset, sampler=sampler,
            batch=gear_data.BatchOptions(window_ids=True), **placement,
        )  # fmt: skip


@dataclass(frozen=True)
class _World:
    """How a life of the run reads.

    Attributes:
        has_processes: whether each rank is a process of torch.distributed; else this process has a loader for each.
        has_agent: whether torchrun's agent starts the processes.
    """

    ranks: int
    has_processes: bool
    has_agent: bool
    workers: int
    prefetch: int

    @staticmethod
    def draw(rng: random.Random) -> _World:
        ranks, has_processes = rng.choice(((1, False), (2, False), (2, True), (3, False), (3, True), (4, False)))
        workers = rng.choice((0, 0, 2)) if ranks < 3 and not has_processes else 0
        has_agent = has_processes and rng.random() < 0.5
        return _World(ranks, has_processes, has_agent, workers, rng.choice((0, 1, 2, 5)))


def run(seed: int, limit: Limit) -> ChaosResult:
    """Kills a training run several times in each case."""
    warm_up()
    torch.set_num_threads(1)
    tried: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    failures: list[str] = []
    for number in limit.numbers():
        rng, kind = random.Random(f"{seed} {number}"), KINDS[number % len(KINDS)]
        has_camera = (number + number // len(KINDS)) % 2 == 0
        preset = "raw" if has_camera else rng.choice(("raw", "decision_transformer"))
        plan = _Plan(kind, rng.randrange(1 << 30), rng.choice((1, 4, 9)), preset, has_camera)
        with tempfile.TemporaryDirectory(prefix="gear-training-") as scratch:
            found = _case(Path(scratch), rng, plan, notes)
        tried[f"{kind}, with a camera" if has_camera else kind] += 1
        failures += [f"case {number}: {plan}: {failure}" for failure in found]
    text = ", ".join(f"{what} {count}" for what, count in sorted(notes.items()))
    return ChaosResult("training", seed, tried.total(), dict(tried), tuple(failures), notes=(text,))


def _case(folder: Path, rng: random.Random, plan: _Plan, notes: Counter[str]) -> list[str]:
    writer = _start(folder, write, rng.randrange(1 << 30), plan.has_camera)
    while writer.is_alive() and not (folder / "began").exists():
        time.sleep(0.01)
    lives, stuck = 0, False
    failures = folder / "failures"
    failures.touch()
    while not stuck and not failures.stat().st_size and _checkpoint(folder)["step"] < plan.steps:
        lives += 1
        world = _World.draw(rng)
        life = _start(folder, live, plan, world, rng.randrange(1 << 30))
        if world.has_agent and rng.random() < 0.6:
            life.join(rng.uniform(0.1, 3))
            notes["kills of a rank"] += _kill_rank(folder, life, rng)
        if rng.random() < 0.6 and lives < 8:
            life.join(rng.uniform(0.1, 2.5))
            notes["kills"] += life.is_alive()
            _kill(life)
        else:
            stuck = _outlives(life)
        notes["lives"] += 1
        notes["lives of several processes"] += world.has_processes
        notes["lives of torchrun"] += world.has_agent
    (folder / "stop").touch()
    stuck = _outlives(writer) or stuck
    if not stuck and not failures.stat().st_size:
        stuck = _outlives(_start(folder, compare, plan))
        events = _checkpoint(folder)["events"]
        notes["generations"] += len({each["generation"] for each in events if "generation" in each})
        notes["updates"] += sum("ids" in each for each in events)
    found = failures.read_text()
    return [f"a process hangs: {found}" if stuck else found] if stuck or found else []


def _start(folder: Path, role: Callable[..., None], *arguments: Any) -> Any:
    process = _FORK.Process(target=_in_session, args=(folder, role, *arguments))
    process.start()
    return process


def _in_session(folder: Path, role: Callable[..., None], *arguments: Any) -> None:
    os.setsid()
    _told(folder, role, *arguments)


def _told(folder: Path, role: Callable[..., None], *arguments: Any) -> None:
    """Runs a role, and writes its failure into a file. SIGUSR1 writes the stacks of all threads there."""
    with open(folder / "failures", "a") as failures:
        faulthandler.register(signal.SIGUSR1, failures)
        try:
            role(folder, *arguments)
        except BaseException:
            failures.write(traceback.format_exc())


def _outlives(process: Any) -> bool:
    process.join(_HANGS)
    alive = process.is_alive()
    if alive:
        os.killpg(process.pid, signal.SIGUSR1)
        time.sleep(1)
        _kill(process)
    return bool(alive)


def _kill(process: Any) -> None:
    """Kills a process and its ranks."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # it has not made its session, or has ended
        process.kill()
    process.join()


def _kill_rank(folder: Path, agent: Any, rng: random.Random) -> bool:
    """Kills one rank that torchrun's agent has started; returns whether there was one."""
    with suppress(psutil.NoSuchProcess):
        if ranks := psutil.Process(agent.pid).children():
            (folder / f"killed-{agent.pid}").touch()
            rng.choice(ranks).kill()
            return True
    return False


# The Writer


def write(folder: Path, seed: int, has_camera: bool) -> None:
    """Publishes generations until the file `stop` is there. It reads all of them, so that none is removed."""
    rng, held, number, seen = random.Random(seed), list[gear_data.Dataset](), 0, dict[str, Any]()
    cameras = {CAMERA: gear_data.Camera(fps=10)} if has_camera else {}
    states = "observations.state" if has_camera else "observations"
    with gear_data.Writer(
        folder / "data", durability="os", max_steps=MAX_STEPS, shard_bytes=2048, cameras=cameras
    ) as writer:
        while not (folder / "stop").exists():
            if len(held) == _MOST_HELD:
                time.sleep(0.1)
                continue
            for _ in range(rng.randint(1, 6) if held else 12):
                for t in range(rng.randint(1, 25)):
                    if has_camera:
                        seen[CAMERA] = np.full((32, 32, 3), (8 * number + t) % 256, np.uint8)
                    seen[states] = [float(number), float(t)]
                    writer.append(actions=[t / 10], rewards=float(number % 7), **seen)
                final = None if has_camera else [float(number), -1.0]
                writer.end_episode(terminated=bool(number % 2), final=final)
                number += 1
            begun = time.monotonic()
            with _alone(folder):
                writer.seal()
                held.append(gear_data.open(folder / "data"))
            (folder / "began").touch()
            # Others get the lock about half of the time.
            time.sleep(rng.uniform(0, 0.3) + time.monotonic() - begun)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keeps all ranks at one generation: they are in one process here, and refresh one after another."""
    with locked(folder / "lock"):
        yield


# The training run


def live(folder: Path, plan: _Plan, world: _World, seed: int) -> None:
    """Goes on from the last checkpoint, and writes further ones."""
    if not world.has_processes:
        train(folder, plan, world, seed, None)
        return
    if world.has_agent:
        # Else restarted ranks find the addresses of ended ones, and hang: https://github.com/pytorch/pytorch/issues/135712
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        config = LaunchConfig(
            1, 1, world.ranks, run_id=str(os.getpid()), rdzv_backend="c10d", rdzv_endpoint="localhost:0",
            max_restarts=1, monitor_interval=0.1, start_method="fork",
        )  # fmt: skip
        elastic_launch(config, _told)(folder, _join, plan, world, seed, None)
        return
    ranks = [_FORK.Process(target=_told, args=(folder, _join, plan, world, seed, rank)) for rank in range(world.ranks)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()


def _join(folder: Path, plan: _Plan, world: _World, seed: int, rank: int | None) -> None:
    """Trains as one rank of torch.distributed. It is None if torchrun's agent has set it."""
    if rank is None:
        try:
            torch.distributed.init_process_group("gloo")
            train(folder, plan, world, seed, torch.distributed.get_rank())
        except (GearError, RuntimeError, SignalException):
            # The others notice that a rank was killed, or the agent ends them first. Then it starts all again.
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and (folder / f"killed-{os.getppid()}").exists():
                os._exit(1)
            raise
    else:
        meeting = f"file://{folder}/ranks-{os.getppid()}"
        torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world.ranks)
        train(folder, plan, world, seed, rank)
    torch.distributed.destroy_process_group()


def train(folder: Path, plan: _Plan, world: _World, seed: int, own: int | None) -> None:
    """Trains as one rank of torch.distributed, or as all ranks of the world if `own` is None."""
    rng, found = random.Random(seed), _checkpoint(folder)
    places = [{"rank": rank, "world_size": world.ranks} for rank in range(world.ranks)] if own is None else [{}]
    with _alone(folder) if own is None else nullcontext():
        datasets = [gear_data.open(folder / "data") for _ in places]
    loaders = [
        plan.loader(each, prefetch=world.prefetch, **place) for each, place in zip(datasets, places, strict=True)
    ]
    if found["step"]:
        for loader in loaders:
            loader.load_state_dict(found["state"])
    else:
        found["events"] = [{"step": 0, "from_step": 0, "generation": _generation(loaders[0])}]
    if world.workers:
        _read_by_workers(folder, loaders, world, found, min(plan.steps - found["step"], rng.randint(1, 20)))
        return
    iterators = [iter(loader) for loader in loaders]
    while found["step"] < plan.steps:
        step = found["step"]
        batch = _joined([next(each) for each in iterators])
        if own is not None:
            parts: list[Any] = [None] * world.ranks
            torch.distributed.all_gather_object(parts, batch)
            batch = _joined(parts)
        found["digests"].append(_digest(batch))
        found["step"] += 1
        if rng.random() < 0.15:
            found["events"] += _refreshed(folder, loaders, step + 1, own)
        if plan.kind.startswith("weights") and rng.random() < 0.3:
            found["events"].append(_updated(rng, plan, loaders, batch, step + 1, world, own))
        if rng.random() < 0.2 or found["step"] == plan.steps:
            found["state"] = loaders[0].state_dict()
            if not own:
                _write_checkpoint(folder, found)
        time.sleep(0.05 if plan.has_camera else 0.01)


def _generation(loader: gear_data.SequenceLoader) -> int:
    return int(loader.dataset.generation)  # type: ignore[union-attr]


def _read_by_workers(
    folder: Path, loaders: list[gear_data.SequenceLoader], world: _World, found: dict[str, Any], count: int
) -> None:
    state = loaders[0].state_dict()
    iterators = [
        iter(DataLoader(each, batch_size=None, num_workers=world.workers, multiprocessing_context="fork"))
        for each in loaders
    ]
    for _ in range(count):
        found["digests"].append(_digest(_joined([next(each) for each in iterators])))
    found["step"] += count
    # Only the DataLoader knows the position of its workers.
    _write_checkpoint(folder, {**found, "state": {**state, "step": found["step"]}})


def _refreshed(
    folder: Path, loaders: list[gear_data.SequenceLoader], step: int, own: int | None
) -> list[dict[str, Any]]:
    """Takes the newest generation on all ranks, and returns what a replay must do; nothing if there is none."""
    before = _generation(loaders[0])
    with _alone(folder) if own is None else nullcontext():
        firsts = {loader.refresh(from_step=step + _AHEAD) for loader in loaders}
    (generation,) = {_generation(loader) for loader in loaders}
    (first,) = firsts
    return [{"step": step, "from_step": first, "generation": generation}] if generation != before else []


def _updated(
    rng: random.Random, plan: _Plan, loaders: list[gear_data.SequenceLoader], batch: Batch, step: int, world: _World,
    own: int | None,
) -> dict[str, Any]:  # fmt: skip
    """Updates weights of the episodes of a batch, as priorities are, and returns what a replay must do."""
    rows = rng.sample(range(len(batch["start"])), 4)
    values = [rng.choice((0.5, 1.0, 3.0, 20.0)) for _ in rows]
    # Each process updates a part. All ranks apply the parts in the order of the ranks.
    parts = [list(range(rank, 4, world.ranks)) for rank in range(world.ranks)]

    def event(places: list[int]) -> dict[str, Any]:
        chosen = [rows[place] for place in places]
        return {
            "step": step,
            "from_step": step + _AHEAD,
            "ids": [int(batch["episode_id"][row]) for row in chosen],
            "values": [values[place] for place in places],
            "steps": [int(batch["start"][row]) for row in chosen] if plan.kind.endswith("steps") else None,
        }

    together = event([place for part in parts for place in part])
    for loader in loaders:
        _update(loader, together if own is None else event(parts[own]))
    return together


def _update(loader: gear_data.SequenceLoader, event: dict[str, Any]) -> None:
    loader.update_weights(event["ids"], event["values"], steps=event["steps"], from_step=event["from_step"])


def _joined(parts: list[Batch]) -> Batch:
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


def _digest(batch: Batch) -> str:
    """Returns a hash of all names, dtypes, shapes and bytes."""
    found = hashlib.sha256()
    for key, value in sorted(batch.items()):
        found.update(f"{key} {value.dtype} {list(value.shape)}".encode() + value.numpy().tobytes())
    return found.hexdigest()


def _checkpoint(folder: Path) -> dict[str, Any]:
    """Returns the last checkpoint: the state, the hashes of all batches before it, and the events."""
    path = folder / "checkpoint.json"
    empty = {"step": 0, "state": None, "digests": [], "events": []}
    return json.loads(path.read_text()) if path.exists() else empty  # type: ignore[no-any-return]


def _write_checkpoint(folder: Path, found: dict[str, Any]) -> None:
    (folder / "checkpoint.tmp").write_text(json.dumps(found))
    os.replace(folder / "checkpoint.tmp", folder / "checkpoint.json")


# The reference


def compare(folder: Path, plan: _Plan) -> None:
    """Reads all batches in one process. The generations come in the order in which the run took them."""
    found = _checkpoint(folder)
    first, *events = found["events"]
    _publish(folder, first["generation"])
    loader = plan.loader(gear_data.open(folder / "data"), rank=0, world_size=1, prefetch=0)
    iterator = iter(loader)
    for step, wanted in enumerate(found["digests"]):
        for event in (each for each in events if each["step"] == step):
            if "generation" in event:
                _publish(folder, event["generation"])
                loader.refresh(from_step=event["from_step"])
            else:
                _update(loader, event)
        if _digest(next(iterator)) != wanted:
            raise AssertionError(f"batch {step} differs; {events}")


def _publish(folder: Path, generation: int) -> None:
    """Makes a generation the newest one. No Writer runs any more."""
    (folder / "manifest.tmp").write_bytes((folder / "data" / generation_file(generation)).read_bytes())
    os.replace(folder / "manifest.tmp", folder / "data/manifest.json")
