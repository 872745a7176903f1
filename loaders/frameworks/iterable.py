"""The base class of a loader, which torch takes for its IterableDataset."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gear_data.loaders.builders.batch import Batch

TORCH_IS_INSTALLED = find_spec("torch") is not None

if TYPE_CHECKING:
    from torch.utils.data import IterableDataset

    LoaderBase = IterableDataset[Batch]
else:

    class LoaderBase:
        """An IterableDataset for every `isinstance`, as soon as torch is imported.

        A real subclass would import torch for loaders of NumPy and JAX, too.
        """

        @property
        def __class__(self):
            # `isinstance` asks for it.
            if hasattr(torch_data := sys.modules.get("torch.utils.data"), "IterableDataset"):
                return _with_base(type(self), torch_data.IterableDataset)
            return type(self)

        def __reduce_ex__(self, protocol):
            # By default, pickle would compare the class with `__class__`.
            return object.__new__, (type(self),), self.__getstate__()

    @cache
    def _with_base(loader, base):
        return type(loader.__name__, (loader, base), {"__module__": loader.__module__})
