"""Batches that the RDMA tests compare.

They are collected locally here, and over RDMA in a guest.

The guest imports this module, and imports take twenty times as long there: do not import torch or pytest.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from gear_data.collection.collector import Collector
from gear_data.collection.output import Output, Padding
from gear_data.collection.plan import CollectSource
from gear_data.collection.reader import ColumnReader
from gear_data.schema import Schema
from gear_data.selection.windows import Windows

ROWS = 64
_VECTOR = ("observations", "float32", (11,))

#: Outputs that RDMA writes directly, outputs that are converted, and outputs with shifted rows among them.
OUTPUTS = {
    "copied": (
        Output("o", *_VECTOR, 0, 20),
        Output("a", "actions", "float32", (3,), 0, 20, pad_left=True, fill=-10),
        Output("r", "rewards", "float32", (), -3, 9, within_window=False, padding=Padding.EDGE),
    ),
    "converted": (
        Output("o", *_VECTOR, 0, 20, mean=np.arange(11.0), scale=np.array([0.5])),
        Output("a", "actions", "float64", (3,), 0, 20),
        Output("r", "rewards", "float32", (), 0, 20, discounts=(1.0, 0.9, 0.81)),
    ),
    "mixed": (
        Output("o", *_VECTOR, 0, 30, within_window=False),
        Output("next", *_VECTOR, 0, 30, shift=1),
        Output("last", "actions", "float32", (3,), 0, 30, shift=-1, fill=5),
        Output("r", "rewards", "float32", (), 0, 30, pad_left=True),
        Output("mask", "mask", "uint8", (), 0, 30, column=False),
    ),
}


def windows(lengths: npt.NDArray[np.int64], seed: int) -> Windows:
    """Returns random windows, some of one step."""
    rng = np.random.default_rng(seed)
    episode = rng.integers(0, len(lengths), ROWS)
    start = (rng.random(ROWS) * lengths[episode]).astype(np.int64)
    return Windows(episode, start, np.minimum(rng.integers(1, 31, ROWS), lengths[episode] - start))


def batches(
    reader: ColumnReader, schema: Schema, lengths: npt.NDArray[np.int64], names: Iterable[str] = OUTPUTS
) -> dict[str, npt.NDArray[np.uint8]]:
    """Returns name -> all bytes of an output.

    There are three batches of each of `OUTPUTS`, collected in buffers that are reused.
    """
    found = {}
    for name in names:
        outputs = OUTPUTS[name]
        collector = Collector([CollectSource(reader, schema, outputs)], ROWS, reuse=True)
        for seed in range(3):
            for key, array in collector(windows(lengths, seed)).arrays.items():
                found[f"{name} {seed} {key}"] = np.frombuffer(array.tobytes(), np.uint8)
    return found
