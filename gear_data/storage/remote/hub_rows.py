"""HubRows: the rows of a dataset on the HuggingFace hub, read within a time limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gear_data.common.retry import MANY, with_retries


class HubRows:
    """The rows of a `datasets.IterableDataset` of the hub. `datasets` tries several times itself.

    Args:
        dataset: the dataset.
        name: of the dataset, for errors.

    Attributes:
        features: of the dataset.
    """

    def __init__(self, dataset: Any, name: str) -> None:
        self._dataset, self._name = dataset, name
        self.features = dataset.features

    def with_format(self, type: str) -> HubRows:
        """Returns the rows in a format of `datasets`."""
        return HubRows(self._dataset.with_format(type), self._name)

    def select_columns(self, names: list[str]) -> HubRows:
        """Returns the rows with some of the columns."""
        return HubRows(self._dataset.select_columns(names), self._name)

    def skip(self, rows: int) -> HubRows:
        """Returns the rows behind the first ones."""
        return HubRows(self._dataset.skip(rows), self._name)

    def iter(self, batch_size: int) -> Iterator[Any]:
        """Yields the rows in batches.

        Raises:
            RemoteError: the hub does not answer in time, or refuses a request.
        """
        rows = self._dataset.iter(batch_size=batch_size)
        # A stream that has failed cannot be read on.
        while (batch := with_retries(lambda: next(rows, None), "be read", self._name, MANY, once=True)) is not None:
            yield batch
