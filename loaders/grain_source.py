"""GrainSource: the batches of a loader by step, as Grain reads them."""

from __future__ import annotations

import hashlib
import json
import operator
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex

from gear_data.errors import InvalidArgumentError
from gear_data.loaders.arguments import check_range
from gear_data.loaders.frameworks.framework import Framework
from gear_data.loaders.frameworks.values import in_numpy
from gear_data.loaders.misuse import calling_frames

if TYPE_CHECKING:
    from gear_data.loaders.sequence_loader import SequenceLoader

#: Modules of Grain's frames that are looked at. Their methods `__getitem__` have `self`.
_DATA_LOADER = "grain._src.python.data_loader"
_BATCH = "grain._src.python.dataset.transformations.batch"


class GrainSource:
    """A loader's batches as NumPy arrays: a `RandomAccessDataSource` of Grain.

    Item t is this process's rows of the batch of step t, whatever was read before. Threads may read at the same time,
    and worker processes get copies. `repr` names the batches: Grain refuses a checkpoint of another source by it.

    Args:
        loader: the loader.
        framework: the framework of the loader's batches.
        spec: the loader's specification.

    Raises:
        InvalidArgumentError: the batches are not in the CPU's memory.
    """

    def __init__(self, loader: SequenceLoader, framework: Framework, spec: Mapping[str, Any]) -> None:
        if framework.name == "jax":
            raise InvalidArgumentError(
                "Grain reads NumPy arrays, and this loader's are of jax", hint="make the loader with framework='numpy'"
            )
        if framework.device is not None and framework.device.type != "cpu":
            raise InvalidArgumentError(
                f"Grain reads batches in the CPU's memory, and this loader's device is {framework.device.type}",
                hint="make the loader with device='cpu', and copy batches with jax.device_put",
            )
        self._loader, self._checked = loader, False
        # All ranks read one sequence.
        spec = {key: value for key, value in spec.items() if key not in ("rank", "world_size")}
        digest = hashlib.blake2b(json.dumps(spec, sort_keys=True).encode(), digest_size=8).hexdigest()
        self._name = f"GrainSource(fingerprint={spec['fingerprint']}, seed={spec['seed']}, spec={digest})"

    def __len__(self) -> int:
        """Returns the number of steps; `sys.maxsize`, as in Grain, if there is no end."""
        try:
            return len(self._loader)
        except TypeError:
            return sys.maxsize

    def __getitem__(self, step: SupportsIndex) -> dict[str, Any]:
        """Returns the batch of a step: key -> array [B, ...], or a list.

        Raises:
            InvalidArgumentError: the step is negative or past the end; or Grain would batch or divide the batches.
        """
        if not self._checked:
            _check_reader()
            self._checked = True
        number = operator.index(step)
        check_range("step", number, 0, len(self) - 1)
        batch = self._loader.batch(number)
        return {key: in_numpy(value) for key, value in batch.items()}

    def __repr__(self) -> str:
        return self._name


def _check_reader() -> None:
    """Raises InvalidArgumentError if Grain would batch or divide batches again."""
    for module, frame in calling_frames():
        if module == _BATCH:
            raise InvalidArgumentError(
                "Grain's batch() would stack several batches of the loader into one",
                hint="leave batch() out: an item of the source is a whole batch; batch_size= is the loader's",
            )
        if module == _DATA_LOADER and (count := _shards(frame.f_locals.get("self"))) > 1:
            raise InvalidArgumentError(
                f"Grain would give each of {count} processes other steps, but an item of the source already is this "
                "process's rows of the step",
                hint="give shard_options=grain.sharding.NoSharding() to the DataLoader and to its sampler",
            )


def _shards(steps: Any) -> int:
    """Returns among how many processes a DataLoader or its sampler divides the steps."""
    options = [getattr(each, "_shard_options", None) for each in (steps, getattr(steps, "_sampler", None))]
    return max(getattr(each, "shard_count", 1) for each in options)
