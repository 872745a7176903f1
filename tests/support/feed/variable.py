"""A dataset with text and images, decoders, and the expected batches.

Spawned workers can import the decoders. Plain loops make the expected batches.
"""

from __future__ import annotations

import io
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

import gear_data

TEXT, IMAGE = "observations.text", "observations.image"
VOCABULARY = ["", "go", "to", "the", "red", "ball", "größer", "漢字"]
LENGTHS = [3, 1, 9, 6, 2, 7, 12]


def image_bytes(pixels, kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def make_episodes(lengths=LENGTHS, seed=1, size=(4, 5)):
    """Returns episodes: texts of 0 to 4 words, images, and numbers.

    Each episode also has the images' pixels, uint8 [T, H, W, 3].
    """
    rng = np.random.default_rng(seed)
    episodes = []
    for count in lengths:
        pixels = rng.integers(0, 256, (count, *size, 3), dtype=np.uint8)
        words = [rng.integers(1, len(VOCABULARY), rng.integers(0, 5)) for _ in range(count)]
        episodes.append(
            {
                "observations": rng.normal(size=(count, 2)).astype(np.float32),
                "actions": rng.normal(size=(count, 1)).astype(np.float32),
                "rewards": rng.normal(size=count).astype(np.float32),
                TEXT: [" ".join(VOCABULARY[i] for i in each) for each in words],
                IMAGE: [image_bytes(each) for each in pixels],
                "pixels": pixels,
            }
        )
    return episodes


def convert(episodes, folder: Path, names=(TEXT, IMAGE), **options):
    types = {TEXT: pa.list_(pa.string()), IMAGE: pa.list_(pa.binary())}
    columns = {name: pa.array([each[name].tolist() for each in episodes]) for name in ("observations", "actions")}
    columns["rewards"] = pa.array([each["rewards"].tolist() for each in episodes], pa.list_(pa.float32()))
    columns |= {name: pa.array([each[name] for each in episodes], types[name]) for name in names}
    folder.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder.with_suffix(".parquet"))
    options = {"progress": False, "format": "episode-rows", "keep_encoded": True, **options}
    gear_data.convert(folder.with_suffix(".parquet"), folder, **options)
    return gear_data.open(folder)


def words(texts):
    """A word-level tokenizer: lists of numbers, as many as words."""
    return [[VOCABULARY.index(word) for word in text.split()] for text in texts]


def word_mapping(texts):
    """The same as a mapping, as tokenizers return it, and one number for each text."""
    ids = words(texts)
    return {
        "input_ids": ids,
        "attention_mask": [[1] * len(each) for each in ids],
        "count": np.array([len(each) for each in ids], np.int16),
    }


class Alone:
    """The decoder `words`, which fails if two threads call it at the same time."""

    def __init__(self):
        self._inside = False
        self.threads = set()

    def __call__(self, texts):
        if self._inside:
            raise RuntimeError("two at once")
        self._inside = True
        self.threads.add(threading.get_ident())
        try:
            threading.Event().wait(0.002)
            return words(texts)
        finally:
            self._inside = False


def padded(rows, context, side, dtype):
    """[B, context, ...] of B lists of arrays of one shape, by plain loops."""
    shape = np.asarray(rows[0][0]).shape
    result = np.zeros((len(rows), context, *shape), dtype)
    for b, row in enumerate(rows):
        for t, item in enumerate(row):
            result[b, t + (context - len(row) if side == "left" else 0)] = item
    return result


def padded_sequences(rows, context, side, dtype=np.int64):
    """Returns padded numbers [B, context, longest], and their lengths.

    Lengths are int64 [B, context]. Plain loops pad B lists of lists of numbers.
    """
    longest = max(len(item) for row in rows for item in row)
    filled = [[list(item) + [0] * (longest - len(item)) for item in row] for row in rows]
    return padded(filled, context, side, dtype), padded([[len(i) for i in row] for row in rows], context, side, int)


def cut(episodes, windows, name):
    """B lists: the valid steps of each window."""
    return [episodes[e][name][first : first + n] for e, first, n in windows]
