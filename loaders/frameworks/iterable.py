"""The base class of a loader: torch's IterableDataset where torch is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gear_data.loaders.builders.batch import Batch

if TYPE_CHECKING:
    from torch.utils.data import IterableDataset

    LoaderBase = IterableDataset[Batch]
    TORCH_IS_INSTALLED: bool
else:
    try:
        # torch's DataLoader asks for an instance of this class.
        from torch.utils.data import IterableDataset

        LoaderBase, TORCH_IS_INSTALLED = IterableDataset[Batch], True
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        LoaderBase, TORCH_IS_INSTALLED = object, False
