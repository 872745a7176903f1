"""GrainSource: the batches of a loader by step, as Grain reads them."""

from __future__ import annotations

import hashlib
import json
import operator
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex

from gear_data.common.keywords import check_range
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.frameworks.framework import Framework
from gear_data.loaders.frameworks.values import in_numpy
from gear_data.loaders.misuse import calling_frames

if TYPE_CHECKING:
    from gear_data.loaders.sequence_loader import SequenceLoader

#: Modules of Grain's frames that are looked at. Methods of the first have `self`, and `__init__` of the last has `sl`.
_DATA_LOADER = "grain._src.python.data_loader"
_BATCH = ("grain._src.python.dataset.transformations.batch", "grain._src.python.dataset.elastic_iterator")
_SLICE = "grain._src.python.dataset.transformations.slice"
#: Slices of this module divide the steps among threads or workers of one process, and join them again.
_PREFETCH = "grain._src.python.dataset.transformations.prefetch"
#: Grain's function that asks for the length before each item.
_BEFORE_ITEM = "_index_mod_len"


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
        self._loader, self._world_size, self._checked = loader, spec["world_size"], False
        try:
            self._length = len(loader)
        except TypeError:
            self._length = sys.maxsize
        # All ranks read one sequence.
        spec = {key: value for key, value in spec.items() if key not in ("rank", "world_size")}
        digest = hashlib.blake2b(json.dumps(spec, sort_keys=True).encode(), digest_size=8).hexdigest()
        self._name = f"GrainSource(fingerprint={spec['fingerprint']}, seed={spec['seed']}, spec={digest})"

    def __len__(self) -> int:
        """Returns the number of steps; `sys.maxsize`, as in Grain, if there is no end.

        Raises:
            InvalidArgumentError: Grain would batch or divide the batches.
        """
        if sys._getframe(1).f_code.co_name != _BEFORE_ITEM:
            _check_reader(self._world_size)
        return self._length

    def __getitem__(self, step: SupportsIndex) -> dict[str, Any]:
        """Returns the batch of a step: key -> array [B, ...], or a list.

        Raises:
            InvalidArgumentError: the step is negative or past the end; or Grain would batch or divide the batches.
        """
        if not self._checked:
            self._checked = _check_reader(self._world_size)
        number = operator.index(step)
        check_range("step", number, 0, self._length - 1)
        batch = self._loader.batch(number)
        return {key: in_numpy(value) for key, value in batch.items()}

    def __repr__(self) -> str:
        return self._name


def _check_reader(world_size: int) -> bool:
    """Raises InvalidArgumentError if Grain would batch or divide batches again.

    Args:
        world_size: number of ranks of the loader.

    Returns:
        Whether Grain reads.
    """
    grain_reads = sliced = False
    for module, frame in calling_frames():
        grain_reads = grain_reads or module.startswith("grain.")
        if module in _BATCH:
            raise InvalidArgumentError(
                "Grain's batch() would stack several batches of the loader into one",
                hint="leave batch() out: an item of the source is a whole batch; batch_size= is the loader's",
            )
        if module == _DATA_LOADER and (count := _shards(frame.f_locals.get("self"))) > 1:
            raise _divides(count, "give shard_options=grain.sharding.NoSharding() to the DataLoader and to its sampler")
        if module == _PREFETCH:
            sliced = False
        elif module == _SLICE and world_size > 1:
            sliced = sliced or getattr(frame.f_locals.get("sl"), "step", None) == world_size
    if sliced:
        raise _divides(world_size, f"leave the slice [rank::{world_size}] of the MapDataset out")
    return grain_reads


def _divides(count: int, hint: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"Grain would give each of {count} processes other steps, but an item of the source already is this process's "
        "rows of the step",
        hint=hint,
    )


def _shards(steps: Any) -> int:
    """Returns among how many processes a DataLoader or its sampler divides the steps."""
    options = [getattr(each, "_shard_options", None) for each in (steps, getattr(steps, "_sampler", None))]
    return max(getattr(each, "shard_count", 1) for each in options)
