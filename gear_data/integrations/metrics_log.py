"""Callback that logs a loader's metrics to a tracker, such as TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gear_data.errors import InvalidArgumentError
from gear_data.loaders.metrics import metrics_between
from gear_data.loaders.sequence_loader import SequenceLoader

#: Write one log: name -> value, and the step.
Write = Callable[[Mapping[str, float], int], None]


class MetricsLog:
    """Callback that logs a loader's metrics at every n-th call.

        log = log_to_tensorboard(loader, writer)
        for step, batch in enumerate(loader):
            train(batch)
            log(step)

    Rates and shares are of the time since the last log. The names are `loader/` and those of `loader.metrics()`; of a
    mixture, `loader/mixture/0` is the first dataset's share since the loader was made. Each rank logs its own loader.

    Args:
        loader: the loader that this process iterates.
        write: writes one log.
        every: number of calls from one log to the next.

    Raises:
        InvalidArgumentError: `every` is not an integer of at least 1.
    """

    def __init__(self, loader: SequenceLoader, write: Write, every: int = 100) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InvalidArgumentError(f"every={every!r} is not an integer of at least 1")
        self._loader, self._write, self._every = loader, write, every
        self._calls = 0
        self._before = loader.metrics()

    def __call__(self, step: int) -> None:
        """Counts a step, and logs if it is the n-th.

        Raises:
            InvalidArgumentError: the loader has made no batch since the last log.
        """
        self._calls += 1
        if self._calls % self._every:
            return
        after = self._loader.metrics()
        if after["batches"] == self._before["batches"]:
            raise InvalidArgumentError(
                "the loader has made no batch since the last log",
                hint="iterate this loader, in this process: DataLoader workers count their batches themselves",
            )
        own = {name: value for name, value in after.items() if name in _OF_SAMPLERS}
        metrics = {"batches": after["batches"], **metrics_between(self._before, after), **own}
        self._write(dict(_scalars("loader", metrics)), step)
        self._before = after


#: Metrics that are no rates.
_OF_SAMPLERS = ("mixture", "effective_sample_size", "raised_weights")


def _scalars(name: str, value: Any) -> list[tuple[str, float]]:
    """Returns the numbers in a metric with their names. None has no number."""
    if isinstance(value, Mapping | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        return [pair for key, each in items for pair in _scalars(f"{name}/{key}", each)]
    return [] if value is None else [(name, float(value))]
