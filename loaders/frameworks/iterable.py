"""The base class of a loader, which torch takes for its IterableDataset."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gear_data.loaders.builders.batch import Batch

TORCH_IS_INSTALLED = find_spec("torch") is not None

if TYPE_CHECKING:
    from torch.utils.data import IterableDataset

    LoaderBase = IterableDataset[Batch]
else:

    class LoaderBase:
        """A virtual subclass of torch's IterableDataset, as soon as torch is imported.

        A real subclass would import torch for loaders of NumPy and JAX, too.
        """

        @property
        def __class__(self):
            # `isinstance` asks for it, and so does torch's DataLoader. Registering twice changes nothing.
            if (torch_data := sys.modules.get("torch.utils.data")) is not None:
                torch_data.IterableDataset.register(type(self))
            return type(self)
