"""Metrics of a loader: counts, rates and waiting time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gear_data.loaders.builders.batch import BuiltBatch
from gear_data.selection.samplers import Selector
from gear_data.selection.samplers.weighted_selector import WeightedSelector

if TYPE_CHECKING:
    from gear_data.residency.device.buffers import DeferredCount


class Meter:
    """Counts batches in the consumer's thread, with a few additions per batch.

    Args:
        datasets: number of the loader's datasets.
    """

    def __init__(self, datasets: int = 1) -> None:
        self._batches = 0
        self._windows = 0
        self._padded = 0
        self._valid = 0
        self._later: deque[DeferredCount] = deque()
        self._waited = 0.0
        self._seconds = 0.0
        self._resumed = 0.0
        self._dataset_counts = np.zeros(datasets, np.int64)

    def start(self) -> None:
        """Starts the clock of an iteration."""
        self._resumed = time.perf_counter()

    def add(self, built: BuiltBatch, waited: float) -> None:
        """Counts a batch for which the consumer waited `waited` seconds."""
        now = time.perf_counter()
        self._seconds += now - self._resumed
        self._resumed = now
        self._batches += 1
        self._windows += built.rows
        self._padded += built.padded_bytes
        if isinstance(built.valid_bytes, int):
            self._valid += built.valid_bytes
        else:
            self._later.append(built.valid_bytes)
            # A number is known when its pinned memory is used again. The thread that builds may do that at any time.
            while self._later and self._later[0].known:
                self._valid += self._later.popleft().wait()
        self._waited += waited
        if built.dataset_counts is not None:
            self._dataset_counts += built.dataset_counts

    def result(self) -> dict[str, Any]:
        """Returns the metrics since the loader was made.

        Returns:
            `batches`, `windows`, `seconds`, `windows_per_s`, `padded_bytes_per_s`, `valid_bytes_per_s`, `pad_fraction`
            (padding's share of the bytes) and `wait_fraction` (share of the time that the consumer waited). For a
            mixture also `mixture`, each dataset's share of the windows.
        """
        while self._later:
            self._valid += self._later.popleft().wait()
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
        if len(self._dataset_counts) > 1:
            result["mixture"] = (self._dataset_counts / max(1, int(self._dataset_counts.sum()))).tolist()
        return result


def metrics_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """Returns the rates and shares of `Meter.result` between two results, of which `after` has more batches."""
    seconds = after["seconds"] - before["seconds"]

    def mean(name: str) -> float:
        return float((after[name] * after["seconds"] - before[name] * before["seconds"]) / seconds)

    rates = {name: mean(name) for name in ("windows_per_s", "padded_bytes_per_s", "valid_bytes_per_s", "wait_fraction")}
    padded = rates["padded_bytes_per_s"]
    return {**rates, "pad_fraction": 1 - rates["valid_bytes_per_s"] / padded if padded else 0.0}


def weight_metrics(selectors: Sequence[Selector]) -> dict[str, Any]:
    """Returns `effective_sample_size` and `raised_weights` of datasets with weights.

    For a mixture both are lists, with None for each dataset without weights. The result is empty if no dataset has
    weights.
    """
    weighted = [selector if isinstance(selector, WeightedSelector) else None for selector in selectors]
    if not any(weighted):
        return {}
    sizes = [None if each is None else each.effective_sample_size() for each in weighted]
    raised = [None if each is None else each.raised for each in weighted]
    if len(selectors) == 1:
        return {"effective_sample_size": sizes[0], "raised_weights": raised[0]}
    return {"effective_sample_size": sizes, "raised_weights": raised}
