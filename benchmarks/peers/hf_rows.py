"""Contender HF datasets: rows of the Parquet source, and a collator.

A row is an episode. Batches have only states.

`--rows python` is the usual way, also in the Decision Transformer blog post: a row is nested Python lists, and a window
of the row becomes an array. `--rows arrow` requests the row as an Arrow table and views it without a copy, which few
users write.
"""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from harness import Feed, main, versions_of

COLUMN = "observations"


def parquet_files(source: Path) -> list[str]:
    return sorted(map(str, source.rglob("*.parquet"))) if source.is_dir() else [str(source)]


def python_window(rows: datasets.Dataset, episode: int, first: int, context: int) -> Any:
    return np.asarray(rows[episode][COLUMN][first : first + context], np.float32)


def arrow_window(rows: datasets.Dataset, episode: int, first: int, context: int) -> Any:
    states = rows[episode][COLUMN].chunk(0)
    values = states.flatten().flatten().to_numpy().reshape(len(states.flatten()), -1)
    return values[first : first + context]


def build(args: argparse.Namespace) -> Feed:
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory(prefix="hf-feed-") as cache:
        rows = datasets.load_dataset(
            "parquet", data_files=parquet_files(args.data), split="train", cache_dir=cache, columns=[COLUMN]
        )
        # Rows stay mapped after the folder's files are unlinked.
        lengths = np.array([len(states) for states in rows.with_format("arrow")[:][COLUMN]], np.int64)
    width = len(rows[0][COLUMN][0])
    window: Callable[[datasets.Dataset, int, int, int], Any] = python_window
    if args.rows == "arrow":
        rows, window = rows.with_format("arrow"), arrow_window
    random = np.random.default_rng(args.seed)
    probability = lengths / lengths.sum()

    def next_batch() -> dict[str, torch.Tensor]:
        states = np.zeros((args.batch_size, args.context, width), np.float32)
        for slot, episode in enumerate(random.choice(len(lengths), size=args.batch_size, p=probability)):
            piece = window(rows, int(episode), int(random.integers(lengths[episode])), args.context)
            states[slot, args.context - len(piece) :] = piece
        return {"states": torch.from_numpy(states)}

    return Feed(
        next_batch=next_batch,
        windows=args.batch_size,
        notes=f"rows as {args.rows} + collator, states only, left-padded; torch tensor; one thread",
        versions=versions_of("datasets", "pyarrow", "numpy", "torch"),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", choices=("python", "arrow"), default="python", help="format of a row")


if __name__ == "__main__":
    main(build, "Feed rate of HF datasets rows and a collator; --data is a Parquet file or folder.", configure)
