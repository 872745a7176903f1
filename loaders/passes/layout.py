"""The end of a pass: how many batches it has."""

from __future__ import annotations

from gear_data.errors import InvalidArgumentError
from gear_data.loaders.config import LoaderConfig
from gear_data.loaders.window_source import WindowSource


def end_of_pass(config: LoaderConfig, source: WindowSource, num_windows: int) -> tuple[int | None, int]:
    """Returns the number of batches (None: no end) and the windows of the last batch.

    Args:
        config: the arguments of the loader.
        source: samples its windows.
        num_windows: number of windows in its first dataset.
    """
    steps, epochs, size = config.steps, config.epochs, config.batch_size
    if epochs is None:
        return steps, size
    if config.proportions is not None:
        raise InvalidArgumentError("a mixture has no epochs", hint="give steps=, or no end")
    slots = source.epoch_slots(epochs)
    count = -(-(epochs * num_windows if slots is None else slots) // size)
    return count, size if slots is None or not count else slots - (count - 1) * size
