"""What a loader did so far."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from gear_data.loaders.batch_builder import BuiltBatch
from gear_data.residency.device.collector import Later
from gear_data.selection.samplers import Selector
from gear_data.selection.samplers.weighted import WeightedSelector


class Meter:
    """Counts batches on the consumer's side: a few additions a batch.

    Args:
        datasets: how many the loader draws from.
    """

    def __init__(self, datasets: int = 1) -> None:
        self._batches = 0
        self._windows = 0
        self._padded = 0
        self._valid = 0
        self._later: deque[Later] = deque()
        self._waited = 0.0
        self._seconds = 0.0
        self._resumed = 0.0
        self._sources = np.zeros(datasets, np.int64)

    def start(self) -> None:
        self._resumed = time.perf_counter()

    def add(self, made: BuiltBatch, waited: float) -> None:
        now = time.perf_counter()
        self._seconds += now - self._resumed
        self._resumed = now
        self._batches += 1
        self._windows += made.windows
        self._padded += made.padded_bytes
        if isinstance(made.valid_bytes, int):
            self._valid += made.valid_bytes
        else:
            self._later.append(made.valid_bytes)
            # Those of batches whose memory is used again are known.
            while self._later[0].known:
                self._valid += self._later.popleft().settle()
        self._waited += waited
        if made.sources is not None:
            self._sources += made.sources

    def result(self) -> dict[str, Any]:
        """`batches`, `windows`, `seconds`, `windows_per_s`, `padded_bytes_per_s`, `valid_bytes_per_s`,
        `pad_fraction` (of the padded bytes) and `wait_fraction` (of the time, spent waiting for a batch); for a mixture
        also `mixture`, the share of the windows that came from each dataset."""
        while self._later:
            self._valid += self._later.popleft().settle()
        seconds = self._seconds or float("inf")
        result: dict[str, Any] = {
            "batches": self._batches,
            "windows": self._windows,
            "seconds": self._seconds,
            "windows_per_s": self._windows / seconds,
            "padded_bytes_per_s": self._padded / seconds,
            "valid_bytes_per_s": self._valid / seconds,
            "pad_fraction": 1 - self._valid / self._padded if self._padded else 0.0,
            "wait_fraction": self._waited / seconds,
        }
        if len(self._sources) > 1:
            result["mixture"] = (self._sources / max(1, int(self._sources.sum()))).tolist()
        return result


def weight_metrics(selectors: Sequence[Selector]) -> dict[str, Any]:
    """`effective_sample_size` and `raised_weights` of a dataset with weights; of a mixture, lists with None for each
    dataset that has none. Nothing where none has."""
    weighted = [selector if isinstance(selector, WeightedSelector) else None for selector in selectors]
    if not any(weighted):
        return {}
    sizes = [None if each is None else each.effective_sample_size() for each in weighted]
    raised = [None if each is None else each.raised for each in weighted]
    if len(selectors) == 1:
        return {"effective_sample_size": sizes[0], "raised_weights": raised[0]}
    return {"effective_sample_size": sizes, "raised_weights": raised}
