"""Code that all contenders share.

It has the arguments, the data, the measured loop and the JSON line that a contender prints.

It needs only the standard library and NumPy: contenders run in separate environments with conflicting requirements.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

#: The columns of a batch, in order; those that the steps lack are left out.
COLUMNS = ("observations", "actions", "rewards", "returns_to_go")
#: `Contract` of feeding/scenarios.py says what each is.
CONTRACTS = ("decision_transformer", "raw", "goals", "transitions", "shifted", "stacked", "priorities")
#: Contracts whose batches have observations and actions only.
RAW = ("raw", "shifted", "stacked")
#: The largest shift in pixels of `shifted`.
PAD = 4
#: Exponents of prioritised replay: of priorities, and of importance weights.
ALPHA, BETA = 0.6, 0.4


@dataclass(frozen=True)
class Steps:
    """The steps of all episodes, concatenated.

    They are the columns of a batch and the timesteps.
    """

    columns: Mapping[str, npt.NDArray[Any]]  # [N, *shape]; rewards and undiscounted returns_to_go [N, 1]
    timesteps: IntArray  # [N], from 0 in each episode
    lengths: IntArray  # [E]
    starts: IntArray  # [E]
    terminated: npt.NDArray[np.bool_]  # [E]

    def __len__(self) -> int:
        return len(self.timesteps)


@dataclass(frozen=True)
class Feed:
    """A contender, ready to measure: each call of `next_batch` returns one batch."""

    next_batch: Callable[[], Mapping[str, Any]]  # values have nbytes, shape and dtype
    windows: int | None  # per batch; None if a batch has only bytes
    notes: str
    versions: Mapping[str, str]  # of the packages measured
    held: tuple[Any, ...] = ()  # objects kept alive while batches are drawn: a server, a folder


def load_steps(folder: Path) -> Steps:
    """Loads the arrays that gear_convert.py wrote."""
    lengths = np.load(folder / "lengths.npy", allow_pickle=False)
    starts = np.cumsum(lengths) - lengths
    files = {name: folder / f"{name}.npy" for name in COLUMNS}
    return Steps(
        columns={name: np.load(file, allow_pickle=False) for name, file in files.items() if file.exists()},
        timesteps=np.arange(lengths.sum()) - np.repeat(starts, lengths),
        lengths=lengths,
        starts=starts,
        terminated=np.load(folder / "terminated.npy", allow_pickle=False),
    )


def transitions_of(steps: Steps) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays of all transitions, as loops over D4RL's datasets keep them.

    The last step of an episode that did not terminate has no next observation, and is left out.
    """
    last = steps.starts + steps.lengths - 1
    masks = np.ones(len(steps), np.float32)
    masks[last[steps.terminated]] = 0
    keep = np.ones(len(steps), np.bool_)
    keep[last[~steps.terminated]] = False
    observations = steps.columns["observations"]
    following = np.zeros_like(observations)
    following[:-1] = observations[1:]
    following[last] = 0
    arrays = {
        "observations": observations,
        "actions": steps.columns["actions"],
        "rewards": steps.columns["rewards"][:, 0],
        "next_observations": following,
        "masks": masks,
    }
    return {name: np.ascontiguousarray(array[keep]) for name, array in arrays.items()}


def draw_windows(steps: Steps, batch_size: int, context: int, seed: int) -> Callable[[], IntArray]:
    """Returns a function that draws whole windows: the rows of their steps, int64 [B, T].

    Shorter episodes are left out, and nothing is padded.
    """
    random = np.random.default_rng(seed)
    firsts = np.concatenate(
        [
            np.arange(start, start + length - context + 1)
            for start, length in zip(steps.starts, steps.lengths, strict=True)
        ]
    )
    offsets = np.arange(context)
    return lambda: firsts[random.integers(0, len(firsts), batch_size)][:, None] + offsets


def versions_of(*packages: str) -> dict[str, str]:
    return {package: importlib.metadata.version(package) for package in packages}


def raw_windows(
    args: argparse.Namespace, steps: Steps, observations: Callable[[IntArray], npt.NDArray[Any]], notes: str
) -> Feed:
    """Returns a feed of whole windows, with `actions`, `timesteps` and `mask` by NumPy.

    Args:
        args: the arguments of a contender.
        steps: the steps.
        observations: int64 [B, T], rows of `steps`, -> the observations of the batch.
        notes: what the feed does.
    """
    draw = draw_windows(steps, args.batch_size, args.context, args.seed)
    actions = steps.columns["actions"]

    def next_batch() -> dict[str, Any]:
        rows = draw()
        return {
            "observations": observations(rows),
            "actions": actions[rows],
            "timesteps": steps.timesteps[rows],
            "mask": np.ones(rows.shape, np.float32),
        }

    return Feed(next_batch=next_batch, windows=args.batch_size, notes=notes, versions=versions_of("numpy"))


def padded(feed: Feed, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arrays whose bytes count: a row per window, of several elements.

    A transition's rewards and masks, one number each, do not count: some contenders deliver more of them than others.
    """
    if feed.windows is None:
        return dict(batch)
    return {name: array for name, array in batch.items() if getattr(array, "ndim", 0) >= 2}


def padded_bytes(feed: Feed, batch: Mapping[str, Any]) -> int:
    return sum(int(array.nbytes) for array in padded(feed, batch).values())


def touch(batch: Mapping[str, Any]) -> float:
    """Reads one element, so that a lazily made batch cannot count."""
    array = next(iter(batch.values()))
    return float(array[(0,) * array.ndim])


def measure(feed: Feed, seconds: float) -> dict[str, Any]:
    """Counts the batches drawn in `seconds`.

    A warm-up before it drains the prefetched batches.
    """
    warm_until = time.perf_counter() + min(0.5, seconds / 4)
    batch = feed.next_batch()
    while time.perf_counter() < warm_until:
        batch = feed.next_batch()
    expected, touched, batches = padded_bytes(feed, batch), 0.0, 0
    start = now = time.perf_counter()
    while now < start + seconds:
        # As in a training loop, the previous batch lives until the next one arrives.
        batch = feed.next_batch()
        # Doing this for every batch would add a fifth to the cost of a small one.
        if batches % 16 == 0:
            touched += touch(batch)
        batches += 1
        now = time.perf_counter()
    if padded_bytes(feed, batch) != expected:
        raise RuntimeError("batches differ in size, so bytes per batch times batches would be wrong")
    elapsed = now - start
    return {
        "seconds": elapsed,
        "batches": batches,
        "touched": touched,
        "padded_gb_per_s": batches * expected / elapsed / 1e9,
        "windows_per_s": None if feed.windows is None else batches * feed.windows / elapsed,
        "padded_bytes_per_batch": expected,
        "delivers": {
            name: [list(array.shape), str(array.dtype).removeprefix("torch.")]
            for name, array in padded(feed, batch).items()
        },
        "notes": feed.notes,
        "versions": dict(feed.versions),
    }


def claim_stdout() -> TextIO:
    """Returns the real stdout for the JSON line.

    Redirects the prints of libraries to stderr.
    """
    ours = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return ours


def say(out: TextIO, record: Mapping[str, Any]) -> None:
    print(json.dumps(record), file=out, flush=True)


def parse_arguments(
    description: str, configure: Callable[[argparse.ArgumentParser], None] | None = None
) -> argparse.Namespace:
    """Parses the arguments that all contenders take, and those that `configure` adds."""
    script = Path(sys.argv[0]).name
    parser = argparse.ArgumentParser(
        description=description, epilog=f"example: python benchmarks/peers/{script} --data hopper.steps --seconds 2"
    )
    parser.add_argument("--data", type=Path, required=True, help="data to read, written by feed.py")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a measurement (default 2)")
    parser.add_argument("--batch-size", type=int, default=256, help="windows in a batch (default 256)")
    parser.add_argument("--context", type=int, default=20, help="steps in a window (default 20)")
    parser.add_argument(
        "--contract",
        choices=CONTRACTS,
        default="decision_transformer",
        help="columns of a batch (default decision_transformer)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw (default 0)")
    parser.add_argument(
        "--cold-bytes", type=int, default=1 << 30, help="size of memory that no cache holds (default 1 GiB)"
    )
    parser.add_argument("--on-request", action="store_true", help="measure once for each line on standard input")
    if configure is not None:
        configure(parser)
    return parser.parse_args()


def main(
    build: Callable[[argparse.Namespace], Feed],
    description: str,
    configure: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    """Runs one contender, which `build` creates from the arguments."""
    args = parse_arguments(description, configure)
    out = claim_stdout()
    begun = time.perf_counter()
    feed = build(args)
    if not args.on_request:
        say(out, measure(feed, args.seconds))
        return
    say(out, {"ready": True, "setup_seconds": time.perf_counter() - begun})
    for _ in sys.stdin:
        say(out, measure(feed, args.seconds))
