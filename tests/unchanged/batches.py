"""Loaders over all presets and samplers, and what they give."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

import gear_data
from gear_data import Goals, Mixture, SequenceLoader, TopK, Uniform, Weighted
from gear_data.loaders.presets.registry import PRESETS
from tests.support.feed.arguments import grouped
from tests.support.feed.data import convert_episodes, locomotion

_LENGTHS = {"long": [7, 1, 23, 40, 2, 20, 19, 21, 5, 60, 33, 3], "short": [12, 30, 9, 44]}
_SAMPLERS: dict[str, Any] = {
    "uniform": "uniform",
    "by episode": Uniform(by="episode"),
    "weighted": Weighted(pl.col("length") + 1),
    "weighted by step": Weighted("length", by="step"),
    "importance": Weighted("length", beta=0.5),
    "best": TopK("return", k=4),
    "fifo": "fifo",
    "shuffle": "shuffle",
}
#: Arguments that are varied alone.
_OPTIONS: tuple[dict[str, Any], ...] = (
    {"stride": 3},
    {"anchor": "end"},
    {"anchor": "random"},
    {"short": False, "stride": 2, "anchor": "end"},
    {"n_step": 3},
    {"n_step": 2, "discount": 0.5, "preset": "decision_transformer"},
    {"window_ids": True},
    {"dtype": "float16"},
    {"dtype": "bfloat16", "preset": "corl"},
    {"dtype": "float64"},
    {"normalize": True},
    {"normalize": "all"},
    {"normalize": "quantiles"},
    {"normalize": "minmax"},
    {"normalize": {"actions": (0.5, 2.0)}},
    {"columns": ["observations", "next_observations"]},
    {"offsets": {"observations": (-3, 1), "actions": [0, 2, 5]}},
    {"preset": "decision_transformer", "preset_options": {"side": "right"}},
    {"stack": {"both": ["observations", "actions"]}},
    {"epochs": 2, "sampler": "shuffle"},
    {"epochs": 1, "sampler": "fifo", "passes": "repeat"},
    {"rank": 1, "world_size": 3},
    {"goals": Goals(), "preset": "transitions", "context": 1},
    {"goals": Goals(subgoal_steps=4), "preset": "transitions", "context": 1, "anchor": "end"},
    {"framework": "numpy", "prefetch": 0},
    {"batches_at_once": 3},
    {"transform": lambda batch, rng: {**batch, "noise": rng.random(3)}},
    {"columns": ["rewards", "length", "source"], "choose": {"either": ["length", "episode_id"]}},
    {"choose": {"either": ["rewards", "returns_to_go"]}, "preset": "lerobot"},
    {"relative": {"actions": "observations"}, "normalize": "all"},
)
_MIXTURES: dict[str, Callable[[Any, Any], Mixture]] = {
    "alternating": lambda one, two: Mixture([(one, 1), (two, 2)]),
    "joined": lambda one, two: Mixture([(one, 1), (two, 2)], join=True),
    "scheduled": lambda one, two: Mixture([(one, [(0, 1), (10, 5)]), (two, 1, {"sampler": "fifo"})]),
}
#: Arguments of joined mixtures, of both datasets.
_JOINED: tuple[dict[str, Any], ...] = (
    {},
    {"preset": "decision_transformer", "normalize": True},
    {"preset": "lerobot", "normalize": "all", "offsets": {"actions": range(0, 4)}},
    {"preset": "transitions", "context": 1, "goals": Goals(), "dtype": "bfloat16"},
    {"stack": {"both": ["observations", "actions"]}, "normalize": ["both"]},
    {"offsets": {"observations": (-3, 1), "actions": [0, 2, 5]}, "columns": ["observations", "actions"]},
    {"rank": 1, "world_size": 3, "framework": "numpy", "sampler": "shuffle"},
)


def make_datasets(folder: Path) -> None:
    """Writes the datasets that the loaders read."""
    for seed, (name, lengths) in enumerate(_LENGTHS.items()):
        convert_episodes(locomotion(lengths, seed=seed), folder / "datasets" / name, shard_bytes=1024)


def digest(value: Any) -> str:
    """Returns a hash of arrays, tensors, texts and numbers, with their dtypes and shapes."""
    if isinstance(value, Mapping):
        value = [part for key, each in value.items() for part in (key, digest(each))]
    if isinstance(value, torch.Tensor):
        name, value = str(value.dtype), value.view(torch.int16) if value.dtype == torch.bfloat16 else value
        value = [name, digest(value.numpy())]
    if isinstance(value, np.ndarray) and value.dtype != object:
        value = [str(value.dtype), value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    return hashlib.sha256(repr(value).encode()).hexdigest()[:24]


def loaders(folder: Path) -> Iterator[tuple[str, Callable[[], SequenceLoader]]]:
    """Yields (name, function that makes the loader) for every case, over the recorded datasets."""

    def make(dataset: Any, arguments: Mapping[str, Any]) -> Callable[[], SequenceLoader]:
        return lambda: SequenceLoader(dataset, 7, **grouped(**{"seed": 5, "context": 6, **arguments}))

    one, two = (gear_data.open(folder / "datasets" / name) for name in _LENGTHS)
    for preset, batch_format in PRESETS.items():
        for name, sampler in _SAMPLERS.items():
            context = 1 if batch_format.transitions else 9
            yield f"{preset}, {name}", make(one, {"preset": preset, "sampler": sampler, "context": context})
    for number, options in enumerate(_OPTIONS):
        yield f"option {number}: {', '.join(options)}", make(one, options)
    for name, mixture in _MIXTURES.items():
        yield f"mixture, {name}", make(mixture(one, two), {"preset": "corl"})
    renamed = {"rename": {"observations": "observations.state"}, "embodiment": 2}
    entries = [(one, 1, renamed), (two, 2, {"embodiment": 5})]
    for join in (True, False):
        unlike = Mixture(entries, join=join, pad_to={"observations": 8, "actions": 5})
        yield f"mixture, unlike, {'joined' if join else 'alternating'}", make(unlike, {"normalize": True})
    for number, options in enumerate(_JOINED):
        yield f"mixture, joined {number}: {', '.join(options)}", make(_MIXTURES["joined"](one, two), options)
    yield "view", make(one.filter("length > 6"), {"normalize": True})


def observed(make: Callable[[], SequenceLoader], state: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns what a loader gives. state: to resume from; None: its own."""
    loader = make()
    batches = [digest(batch) for batch in islice(loader, 4)]
    windows = [digest(loader.windows(step)) for step in (0, 1, 3)]
    own = json.loads(json.dumps(loader.state_dict()))
    again = make()
    again.load_state_dict(own if state is None else state)
    resumed = [digest(batch) for batch in islice(again, 2)]
    spec = json.loads(json.dumps(loader.spec()))
    return {"batches": batches, "windows": windows, "state": own, "resumed": resumed, "spec": spec}
