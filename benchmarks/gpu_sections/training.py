"""Section (e): Decision Transformer training steps per second, by loader."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import synthetic_episodes, write_parquet

import gear_data
from gear_data.demo.model import MODEL_KEYS, Hyperparameters, build_model, masked_action_loss
from gpu_sections.report import Row, Section

CONTEXT = 20
BATCHES = (64, 512)
DEVICE = "cuda"
TARGET = 0.98
COSTLESS = "the same batch each time"
OURS = "gear-data, pinned, auto"
#: Title -> residency and backend of the loader that feeds the steps.
LOADERS = {
    OURS: ("pinned", "auto"),
    "gear-data, pinned, by the GPU": ("pinned", "cuda"),
    "gear-data, device, by the GPU": ("device", "cuda"),
    "gear-data, host, by the CPU": ("host", "cpu"),
}
TORCHRL = "TorchRL SliceSampler, pin_memory, copied"

Batch = dict[str, torch.Tensor]


class Training:
    """The model and its training steps. Nothing is read back from the GPU."""

    def __init__(self, loader: gear_data.SequenceLoader) -> None:
        self.model = build_model(loader, Hyperparameters()).to(DEVICE).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=1e-4, fused=True)

    def step(self, batch: Batch) -> None:
        inputs = {key: batch[key] for key in MODEL_KEYS}
        predicted = self.model(**inputs, return_dict=True).action_preds
        loss = masked_action_loss(predicted, inputs["actions"], inputs["attention_mask"])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.25)
        self.optimizer.step()

    def steps_per_second(self, batches: Iterator[Batch], steps: int) -> float:
        self.step(next(batches))
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for batch in itertools.islice(batches, steps):
            self.step(batch)
        torch.cuda.synchronize()
        return steps / (time.perf_counter() - begun)


def training(folder: Path, quick: bool, left: Callable[[], float]) -> Section:
    """Measures the feeds in alternating rounds, and returns medians.

    A machine that slows down so slows all feeds.
    """
    episodes = synthetic_episodes(200_000 if not quick else 20_000)
    write_parquet(episodes, folder / "source.parquet")
    gear_data.convert(folder / "source.parquet", folder / "dataset")
    section = Section([])
    for batch_size in BATCHES[:1] if quick else BATCHES:
        _measure(section, folder / "dataset", batch_size, episodes, 10 if quick else 100, 3, left)
    return section


def _measure(
    section: Section, dataset: Path, batch_size: int, episodes: Any, steps: int, rounds: int, left: Callable[[], float]
) -> None:
    plain = make_loader(dataset, batch_size, "host", None)
    model = Training(plain)
    first = {key: value.to(DEVICE) for key, value in next(iter(plain)).items()}
    feeds: dict[str, Iterator[Batch]] = {COSTLESS: itertools.repeat(first)}
    made: dict[str, Callable[[], Iterator[Batch]]] = {
        title: partial(our_batches, dataset, batch_size, *how) for title, how in LOADERS.items()
    }
    made[TORCHRL] = partial(torchrl_batches, episodes, batch_size)
    for title, make in made.items():
        try:
            feed = make()
            next(feed)
        except Exception as error:  # a third-party loader may raise anything; the other feeds are measured anyway
            reason = (str(error).strip() or "no reason").splitlines()[0]
            section.notes.append(f"{title}, batch {batch_size}: not run: {type(error).__name__}: {reason}")
        else:
            feeds[title] = feed
    rates: dict[str, list[float]] = {title: [] for title in feeds}
    for number, title in itertools.product(range(rounds + 1), feeds):
        if left() < 10:
            section.left_out.append(f"batch {batch_size}, round {number}, {title}")
            continue
        rate = model.steps_per_second(feeds[title], steps)
        if number:  # the first round warms up
            rates[title].append(rate)
    for feed in feeds.values():
        close = getattr(feed, "close", None)
        if close is not None:
            close()
    costless = statistics.median(rates[COSTLESS] or [float("nan")])
    for title, seen in rates.items():
        if seen:
            rate = statistics.median(seen)
            values: dict[str, float | str | None] = {"steps/s": rate, "lowest": min(seen), "highest": max(seen)}
            goal = TARGET if title == OURS else None
            section.rows.append(Row(f"batch {batch_size}: {title}", values, rate / costless, goal))


def our_batches(dataset: Path, batch_size: int, residency: str, backend: str) -> Iterator[Batch]:
    """Raises RuntimeError if the first batch differs from the CPU's."""
    batches = iter(make_loader(dataset, batch_size, residency, backend))
    first = next(batches)
    for key, value in next(iter(make_loader(dataset, batch_size, "host", None))).items():
        if not torch.equal(first[key].cpu(), value):
            raise RuntimeError(f"'{key}' differs from the CPU loader's")
    return batches


def make_loader(dataset: Path, batch_size: int, residency: str, backend: str | None) -> gear_data.SequenceLoader:
    """Returns a loader. backend None: the CPU collects."""
    ds = gear_data.open(dataset, residency=residency)
    more = {} if backend is None else {"device": DEVICE, "backend": backend}
    return gear_data.SequenceLoader(
        ds, batch_size=batch_size, context=CONTEXT, preset="decision_transformer", normalize=True, **more
    )


def torchrl_batches(episodes: Any, batch_size: int) -> Iterator[Batch]:
    """Yields TorchRL's slices of the same steps, prefetched, pinned and copied."""
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, ReplayBuffer, SliceSampler

    lengths = episodes.lengths
    ends = np.cumsum(lengths)
    sums = np.cumsum(episodes.rewards, dtype=np.float64)
    to_go = np.repeat(sums[ends - 1], lengths) - sums + episodes.rewards
    count = len(episodes.rewards)
    columns = {
        "states": episodes.observations,
        "actions": episodes.actions,
        "rewards": episodes.rewards[:, None],
        "returns_to_go": (to_go[:, None] / 1000).astype(np.float32),
        "timesteps": np.arange(count) - np.repeat(ends - lengths, lengths),
        "attention_mask": np.ones(count, np.float32),
        "episode": np.repeat(np.arange(len(lengths)), lengths),
    }
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(count),
        sampler=SliceSampler(
            slice_len=CONTEXT, traj_key="episode", cache_values=True, truncated_key=None, init_key=None
        ),
        batch_size=batch_size * CONTEXT,
        pin_memory=DEVICE == "cuda",
        prefetch=2,
    )
    buffer.extend(TensorDict({key: torch.from_numpy(value) for key, value in columns.items()}, batch_size=[count]))

    def batches() -> Iterator[Batch]:
        while True:
            sample = buffer.sample()
            yield {
                key: sample[key].view(batch_size, CONTEXT, *sample[key].shape[1:]).to(DEVICE, non_blocking=True)
                for key in MODEL_KEYS
            }

    return batches()
