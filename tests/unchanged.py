"""Records what must not change with the code, and compares it at another commit.

    python -m tests.unchanged record before/     # at the commit before a change
    python -m tests.unchanged compare before/    # at the commit after it

`record` makes a source of every format and converts it, and saves digests of batches, windows, states and specs of
loaders over all presets and samplers. `compare` converts the same sources, opens the recorded datasets, loads the
recorded states, and names each entry that differs. The exit status is 1 then. Not a test: nothing here says which value
is right.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

import gear_data
from gear_data import Goals, Mixture, SequenceLoader, TopK, Uniform, Weighted
from gear_data.errors import GearError
from gear_data.loaders.presets.registry import PRESETS
from tests.support.feed.arguments import grouped
from tests.support.feed.data import convert_episodes, locomotion
from tests.support.rollouts import make_rollouts
from tests.support.source_makers import MAKERS

#: Keys of a manifest, at any depth, that differ between two conversions of one source.
_OF_A_RUN = frozenset(("seconds", "created", "time", "started", "finished", "version", "source", "location"))
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
)
_MIXTURES: dict[str, Callable[[Any, Any], Mixture]] = {
    "alternating": lambda one, two: Mixture([(one, 1), (two, 2)]),
    "joined": lambda one, two: Mixture([(one, 1), (two, 2)], join=True),
    "scheduled": lambda one, two: Mixture([(one, [(0, 1), (10, 5)]), (two, 1, {"sampler": "fifo"})]),
}


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


def converted(source: Path, destination: Path) -> dict[str, Any]:
    """Returns the report and the files of a conversion, without the times."""
    report = gear_data.convert(source, destination, progress=False)
    files = {}
    for path in sorted(destination.rglob("*")):
        if path.is_file():
            text = path.read_bytes()
            if path.suffix == ".json":
                text = json.dumps(_lasting(json.loads(text))).encode()
            files[str(path.relative_to(destination))] = hashlib.sha256(text).hexdigest()[:24]
    facts = {name: getattr(report, name) for name in ("fingerprint", "format", "reason")}
    return {**facts, "warnings": list(report.warnings), "files": files}


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(each) for key, each in value.items() if key not in _OF_A_RUN}
    return [_lasting(each) for each in value] if isinstance(value, list) else value


def _attempt(observe: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return observe()
    except GearError as error:
        return {"error": f"{type(error).__name__}: {error.message}"}


def _observe_all(folder: Path, before: Mapping[str, Any]) -> dict[str, Any]:
    entries = {}
    for name, make in loaders(folder):
        state = before.get(name, {}).get("state")
        entries[name] = _attempt(lambda make=make, state=state: observed(make, state))  # type: ignore[misc]
    work = folder / "converted"
    shutil.rmtree(work, ignore_errors=True)
    for name in MAKERS:
        paths = folder / "sources" / name, work / name
        entries[f"source {name}"] = _attempt(lambda paths=paths: converted(*paths))  # type: ignore[misc]
    shutil.rmtree(work, ignore_errors=True)
    return entries


def record(folder: Path) -> int:
    """Makes sources and datasets in a new folder, and writes `entries.json`."""
    (folder / "sources").mkdir(parents=True)
    for seed, (name, lengths) in enumerate(_LENGTHS.items()):
        convert_episodes(locomotion(lengths, seed=seed), folder / "datasets" / name, shard_bytes=1024)
    rollouts = make_rollouts(24, seed=3)
    for name, maker in MAKERS.items():
        maker(folder / "sources" / name, rollouts)
    entries = _observe_all(folder, {})
    (folder / "entries.json").write_text(json.dumps(entries, indent=1))
    print(f"{len(entries)} entries in {folder}/entries.json")
    return 0


def compare(folder: Path) -> int:
    """Prints the entries that differ from the recorded ones."""
    before = json.loads((folder / "entries.json").read_text())
    after = json.loads(json.dumps(_observe_all(folder, before)))
    differing = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    for name in differing:
        old, new = before.get(name, {}), after.get(name, {})
        print(f"{name}:")
        for key in {**old, **new}:
            if old.get(key) != new.get(key):
                print(f"  {key}: {str(old.get(key))[:200]} -> {str(new.get(key))[:200]}")
    print(f"{len(differing)} of {len(before)} entries differ")
    return int(bool(differing))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=("record", "compare"))
    parser.add_argument("folder", type=Path, help="a new folder, or a recorded one")
    options = parser.parse_args(arguments)
    return record(options.folder) if options.job == "record" else compare(options.folder)


if __name__ == "__main__":
    sys.exit(main())
