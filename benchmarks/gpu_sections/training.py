"""Section (e): Decision Transformer training steps per second, by loader.

Steps run one operation after another, and as replays of a CUDA graph. The steps of a graph are shorter, so a slow
loader shows sooner.
"""

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
from gpu_sections.report import Row, Section, ratio_of_rounds

CONTEXT = 20
BATCHES = (64, 512)
DEVICE = "cuda"
TARGET = 0.98
#: Steps before a capture, as torch.cuda.graph asks for.
_WARM_STEPS = 3
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
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, weight_decay=1e-4, fused=True, capturable=DEVICE == "cuda"
        )

    def step(self, batch: Batch) -> None:
        inputs = {key: batch[key] for key in MODEL_KEYS}
        predicted = self.model(**inputs, return_dict=True).action_preds
        loss = masked_action_loss(predicted, inputs["actions"], inputs["attention_mask"])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.25)
        self.optimizer.step()


class GraphTraining:
    """The same training steps as replays of a CUDA graph.

    A graph reads fixed addresses, so each batch is copied to them first.

    Args:
        training: the model. Its steps before the capture warm it up.
        batch: a first batch.
    """

    def __init__(self, training: Training, batch: Batch) -> None:
        self._inputs = {key: batch[key].clone() for key in MODEL_KEYS}
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_STEPS):
                training.step(self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # Loaders' threads continue meanwhile.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            training.step(self._inputs)

    def step(self, batch: Batch) -> None:
        for key, tensor in self._inputs.items():
            tensor.copy_(batch[key], non_blocking=True)
        self._graph.replay()


def steps_per_second(step: Callable[[Batch], None], batches: Iterator[Batch], steps: int) -> float:
    step(next(batches))
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for batch in itertools.islice(batches, steps):
        step(batch)
    torch.cuda.synchronize()
    return steps / (time.perf_counter() - begun)


def training(folder: Path, quick: bool, left: Callable[[], float]) -> Section:
    """Measures the feeds in alternating rounds, and returns medians. Ratios are of the same round.

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
    ways = {"": model.step}
    try:
        ways[", as a graph"] = GraphTraining(model, first).step
    except Exception as error:  # not every version of transformers can be captured; the other steps are measured anyway
        reason = (str(error).strip() or "no reason").splitlines()[0]
        section.notes.append(f"batch {batch_size}, as a graph: not run: {type(error).__name__}: {reason}")
    rates: dict[tuple[str, str], list[float]] = {key: [] for key in itertools.product(ways, feeds)}
    for number, (way, title) in itertools.product(range(rounds + 1), rates):
        if left() < 10:
            section.left_out.append(f"batch {batch_size}{way}, round {number}, {title}")
            continue
        rate = steps_per_second(ways[way], feeds[title], steps)
        if number:  # the first round warms up
            rates[way, title].append(rate)
    for feed in feeds.values():
        close = getattr(feed, "close", None)
        if close is not None:
            close()
    for (way, title), seen in rates.items():
        if seen and rates[way, COSTLESS]:
            rate = statistics.median(seen)
            values: dict[str, float | str | None] = {"steps/s": rate, "lowest": min(seen), "highest": max(seen)}
            goal = TARGET if title == OURS else None
            ratio = ratio_of_rounds(seen, rates[way, COSTLESS])
            section.rows.append(Row(f"batch {batch_size}{way}: {title}", values, ratio, goal))


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
    more = {} if backend is None else {"device": DEVICE, "execution": gear_data.ExecutionOptions(backend=backend)}
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
