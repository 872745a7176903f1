"""Measures selection by sampler and number of episodes.

NumPy's and torch's methods are measured for comparison.

    python benchmarks/selection.py --episodes 1000 1000000 100000000 --json selection.json

Every kind and size runs in a separate process. The set-up goes from the episodes' lengths (and weights) to a selector.
Bytes per episode are the growth of the process's memory, after the set-up and at its peak; they include the dataset's
offsets and the weights. A draw is of 4,096 windows, and an update sets 4,096 weights; times are medians. `fit` is the
chi-square of 1.6 million draws against the weights, minus its degrees of freedom, in standard deviations.

    python benchmarks/selection.py --refresh

measures how long a dataset with `--episodes` (default 10^6) takes 100 new ones into its weights: without updates, after
updates, and while the 100 oldest episodes leave. The new selector, and its first update, are timed.

    python benchmarks/selection.py --loaders

measures batches of loaders by sampler beside the uniform sampler, without prefetching. The dataset has `--episodes`
(default 10^6) of 5 steps on average. An update of weights, and the batch after it, are timed.

    python benchmarks/selection.py --sparse

creates a dataset of 10^10 steps in 10^7 episodes from sparse files, which take no space on most file systems. A process
opens the dataset, splits it, reads its episode table, and draws from it. The script prints the peak memory of this
process. With `--episodes` the dataset has other numbers of episodes, of 1,000 steps on average.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, describe_machine, figure, format_table, machine_facts, median_ms, progress, write_json
from loader_ratios import measure_loaders, ratios_text
from refresh_costs import measure_refresh
from sparse_dataset import EPISODE_STEPS, EPISODES_MULTIPLE, SMALL, SPARSE, write_sparse_dataset
from sparse_dataset import EPISODES as SPARSE_EPISODES

BATCH = 4096
CONTEXT = 20
BATCHES = 100
#: The most categories of torch.multinomial.
MULTINOMIAL_LIMIT = 1 << 24
SPARSE_LIMIT_BYTES = 2 << 30
#: Parts of a split, and the seconds in which 10^7 episodes are split, or give a first batch.
PARTS, SPARSE_SECONDS = {"train": 0.5, "val": 0.5}, 0.5

KINDS = (
    "uniform by step",
    "uniform by episode",
    "weighted by episode",
    "weighted by step",
    "weighted, no repeats",
    "weighted, updated",
    "topk",
    "fifo",
    "shuffle",
    "np.searchsorted",
    "torch.multinomial",
)
WITHOUT_WEIGHTS = ("uniform by step", "uniform by episode", "fifo", "shuffle")


@dataclass(frozen=True)
class Cost:
    kind: str
    episodes: int
    setup_seconds: float
    bytes_an_episode: float
    peak_bytes_an_episode: float
    draw_ms: float
    update_ms: float | None
    chi_square: float | None


def memory(field: str) -> int:
    """Returns a field of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise KeyError(field)


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def random_weights(count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Returns weights from 1e-12 to 1e12, log-uniform, computed in place."""
    weights = np.random.default_rng(1).random(count)
    weights *= 24
    weights -= 12
    return np.power(10.0, weights, out=weights)


def measure(kind: str, episodes: int) -> Cost:
    lengths = np.random.default_rng(0).integers(1, 1001, episodes)
    base = memory("RssAnon")
    weights = None if kind in WITHOUT_WEIGHTS else random_weights(episodes)
    forget_peak()
    begun = time.perf_counter()
    draw, update = prepare(kind, lengths, weights)
    setup = time.perf_counter() - begun
    peak, held = memory("VmHWM"), memory("RssAnon")
    resident = memory("VmRSS")
    draw_ms = median_ms(draw, BATCHES)
    fit = None
    if kind in ("weighted by episode", "weighted by step"):
        drawn = np.concatenate([draw(step).episode_id for step in range(4 * BATCHES)])
        fit = chi_square(weights if kind == "weighted by episode" else weights * lengths, weights, drawn)
    return Cost(
        kind,
        episodes,
        setup,
        (held - base) / episodes,
        (peak - resident + held - base) / episodes,
        draw_ms,
        None if update is None else median_ms(update, BATCHES),
        fit,
    )


def chi_square(shares: Any, weights: Any, drawn: Any) -> float:
    """Returns how well draws fit the weights.

    Episodes are classed by weight, ten classes for each decade. The result is chi-square minus its degrees of freedom,
    in standard deviations. A result far from 0, on either side, is not random.
    """
    classes = np.log10(weights)
    classes += 12
    classes *= 10
    classes = np.clip(classes, 0, 239).astype(np.int16)
    expected = np.bincount(classes, shares, 240)
    expected *= len(drawn) / expected.sum()
    counts = np.bincount(classes[drawn], minlength=240)
    often = expected >= 5
    rest = expected[~often].sum()
    terms = [*((counts - expected)[often] ** 2 / expected[often])]
    if rest >= 5:
        terms.append((counts[~often].sum() - rest) ** 2 / rest)
    freedom = len(terms) - 1
    return float((sum(terms) - freedom) / math.sqrt(2 * freedom))


Prepared = tuple[Callable[[int], Any], Callable[[int], Any] | None]


def prepare(kind: str, lengths: Any, weights: Any) -> Prepared:
    """Returns a function that draws batch i, and a function that makes update i."""
    if kind == "np.searchsorted":
        rng, sums = np.random.default_rng(2), np.cumsum(weights)
        return (lambda step: np.searchsorted(sums, rng.random(BATCH) * sums[-1], side="right")), None
    if kind == "torch.multinomial":
        import torch

        tensor = torch.from_numpy(weights)
        return (lambda step: torch.multinomial(tensor, BATCH, replacement=True)), None
    return prepare_selector(kind, lengths, weights)


def prepare_selector(kind: str, lengths: Any, weights: Any) -> Prepared:
    from gear_data.selection.anchors import Anchors
    from gear_data.selection.samplers import Candidates, Fifo, Shuffle, TopK, Uniform, Weighted
    from gear_data.selection.windows import WindowRule

    sampler: Any = {
        "uniform by step": Uniform(),
        "uniform by episode": Uniform("episode"),
        "weighted by episode": Weighted("weight"),
        "weighted by step": Weighted("weight", by="step"),
        "weighted, no repeats": Weighted("weight", replacement=False),
        "weighted, updated": Weighted("weight"),
        "topk": TopK("weight", max(1, len(lengths) // 10)),
        "fifo": Fifo(),
        "shuffle": Shuffle(),
    }[kind]
    anchors = Anchors(lengths, None, None, None, WindowRule(CONTEXT))
    selector = sampler.bind(Candidates(anchors, lambda expression, what: weights), 7)
    count = min(BATCH, len(lengths) // 2) if kind == "weighted, no repeats" else BATCH

    def draw(step: int) -> Any:
        return selector.select(step, count, step * count)

    if kind != "weighted, updated":
        return draw, None
    rng = np.random.default_rng(3)
    changes = [(rng.integers(0, len(lengths), BATCH), rng.random(BATCH)) for _ in range(BATCHES + 1)]
    # The first update builds the tree.
    selector.update(0, *changes[-1])
    return draw, lambda i: selector.update(BATCHES + i, *changes[i])


def warm_up(kind: str) -> None:
    """Compiles or loads the measured kernels."""
    draw, update = prepare(kind, np.full(5000, 9), np.full(5000, 0.5))
    draw(0)
    if update is not None:
        update(0)


def in_fresh_process(*arguments: str) -> Any:
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def cost_table(costs: list[Cost]) -> str:
    header = (
        "kind",
        "episodes",
        "set-up s",
        "bytes/episode",
        "at the peak",
        f"ms per {BATCH:,} draws",
        "ms per update",
        "fit",
    )
    return format_table(
        header,
        [
            (
                cost.kind,
                f"{cost.episodes:,}",
                figure(cost.setup_seconds),
                figure(cost.bytes_an_episode),
                figure(cost.peak_bytes_an_episode),
                figure(cost.draw_ms),
                figure(cost.update_ms),
                "-" if cost.chi_square is None else f"{cost.chi_square:+.1f}",
            )
            for cost in costs
        ],
    )


def measure_sparse(folder: Path, episodes: int) -> dict[str, float]:
    """Opens the dataset in `folder`, reads its episode table and draws.

    All of it happens in this process. It first draws from the small dataset there, so that modules and kernels are
    loaded.
    """
    import polars as pl

    import gear_data
    from gear_data.selection.samplers import Weighted

    steps = episodes * EPISODE_STEPS
    samplers = {"uniform": "uniform", "weighted": Weighted(pl.col("return") + 1)}

    def draw(ds: gear_data.Dataset, name: str) -> int:
        begun = time.perf_counter()
        batches = iter(
            gear_data.SequenceLoader(ds, batch_size=256, context=CONTEXT, sampler=samplers[name], prefetch=0, steps=20)
        )
        next(batches)
        figures[f"{name}_first_seconds"] = time.perf_counter() - begun
        return 1 + sum(1 for _ in batches)

    figures: dict[str, float] = {}
    small = gear_data.open(folder / SMALL)
    small.split(PARTS)
    for name in samplers:
        draw(small, name)
    figures.update(episodes=episodes, imports_bytes=memory("VmHWM"))
    begun = time.perf_counter()
    ds = gear_data.open(folder / SPARSE)
    figures["open_seconds"] = time.perf_counter() - begun
    begun = time.perf_counter()
    ds.split(PARTS)
    figures["split_seconds"] = time.perf_counter() - begun
    begun = time.perf_counter()
    if ds.num_steps != steps or ds.episodes["length"].sum() != steps:
        raise SystemExit("the dataset differs from the written one")
    figures["episodes_seconds"] = time.perf_counter() - begun
    figures["episodes_bytes"] = memory("VmHWM")
    for name in samplers:
        begun = time.perf_counter()
        batches = draw(ds, name)
        figures[f"{name}_seconds"] = time.perf_counter() - begun
        figures[f"{name}_bytes"] = memory("VmHWM")
        if batches != 20:
            raise SystemExit("some batches are missing")
    return figures


def run_sparse(episodes: int, scratch: Path | None) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="gear-bench-", dir=scratch) as name:
        progress("writing the sparse dataset")
        write_sparse_dataset(Path(name), episodes)
        progress("")
        found: dict[str, float] = in_fresh_process("--open", name, "--episodes", str(episodes))
    mib = 1 << 20
    print(
        f"{episodes * EPISODE_STEPS:,} steps in {episodes:,} episodes: opened in {found['open_seconds']:.2f} s, "
        f"episode table in {found['episodes_seconds']:.2f} s; 20 batches of 256 windows, loader and all: uniform "
        f"{found['uniform_seconds']:.2f} s, weighted {found['weighted_seconds']:.2f} s"
    )
    print(
        f"split in {found['split_seconds']:.2f} s, first batch uniformly {found['uniform_first_seconds']:.2f} s, by "
        f"weight {found['weighted_first_seconds']:.2f} s; target of each for 10^7 episodes {SPARSE_SECONDS} s"
    )
    print(
        f"peak memory (MiB): modules and kernels {found['imports_bytes'] / mib:.0f}, with the episode table "
        f"{found['episodes_bytes'] / mib:.0f}, drawn from uniformly {found['uniform_bytes'] / mib:.0f}, by weight "
        f"{found['weighted_bytes'] / mib:.0f}; target below {SPARSE_LIMIT_BYTES / mib:.0f}: "
        f"{'met' if found['weighted_bytes'] < SPARSE_LIMIT_BYTES else 'NOT met'}"
    )
    return found


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--episodes",
        type=int,
        nargs="+",
        help="numbers of episodes (default 10^3 to 10^8; with --loaders 10^6, with --sparse 10^7, both multiples of "
        "200)",
    )
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="kinds of selection (default all)"
    )
    parser.add_argument("--refresh", action="store_true", help="measure how 100 new episodes enter the weights instead")
    parser.add_argument("--loaders", action="store_true", help="measure batches of loaders by sampler instead")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of --loaders (default 40)")
    parser.add_argument("--sparse", action="store_true", help="measure a dataset of 10^10 steps instead")
    parser.add_argument("--scratch", type=Path, help="folder for the sparse dataset")
    parser.add_argument("--json", type=Path, help="write the full record here")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    return parser


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser()
    args = parser.parse_args(arguments)
    if args.episodes is None:
        one_size = SPARSE_EPISODES if args.sparse else 10**6 if args.refresh or args.loaders else None
        args.episodes = [10**k for k in range(3, 9)] if one_size is None else [one_size]
    if (args.sparse or args.loaders) and any(count % EPISODES_MULTIPLE for count in args.episodes):
        parser.error(f"--loaders and --sparse take multiples of {EPISODES_MULTIPLE} for --episodes")
    return args


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse_arguments(arguments)
    # The checkout's own gear_data, installed or not.
    sys.path.insert(0, str(ROOT))
    if args.worker is not None:
        warm_up(args.worker)
        print(json.dumps(asdict(measure(args.worker, args.episodes[0]))))
        return
    if args.open is not None:
        print(json.dumps(measure_sparse(args.open, args.episodes[0])))
        return
    facts = machine_facts()
    print(describe_machine(facts))
    record: dict[str, Any] = {"benchmark": "selection", "machine": facts}
    if args.refresh:
        measure_refresh(1000)  # compiles
        record["refresh"] = [each for episodes in args.episodes for each in measure_refresh(episodes)]
        rows = [
            [str(value) if isinstance(value, int) else figure(value) for value in each.values()]
            for each in record["refresh"]
        ]
        print(format_table(list(record["refresh"][0]), rows))
    elif args.loaders:
        record["loaders"] = [measure_loaders(episodes, args.rounds, args.scratch) for episodes in args.episodes]
        print("\n\n".join(map(ratios_text, record["loaders"])))
    elif args.sparse:
        record["sparse"] = [run_sparse(episodes, args.scratch) for episodes in args.episodes]
    else:
        costs = []
        for kind in args.kinds:
            for episodes in args.episodes:
                if kind == "torch.multinomial" and episodes > MULTINOMIAL_LIMIT:
                    continue
                progress(f"{kind}, {episodes:,} episodes")
                costs.append(Cost(**in_fresh_process("--worker", kind, "--episodes", str(episodes))))
        progress("")
        print(f"batches of {BATCH:,} windows, episodes of 1 to 1,000 steps; weights from 1e-12 to 1e12\n")
        print(cost_table(costs))
        record["costs"] = [asdict(cost) for cost in costs]
    if args.json is not None:
        write_json(args.json, record)


if __name__ == "__main__":
    main()
