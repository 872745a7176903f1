"""JAX's arrays over a batch's memory: on one device, or sharded over several.

On a CPU `jax.device_put` does not copy a NumPy array that begins at a multiple of 64 bytes. The `jax.Array` then holds
the array's base, and with it the lease of the buffer (`gear_data.collection.buffers`), until the last computation that
reads it has ended. A donated array is copied by JAX. So a buffer that is used again is never seen.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from gear_data.collection.buffers import is_leased
from gear_data.error_text import shown
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.builders.batch import Batch
from gear_data.loaders.frameworks.framework import Framework
from gear_data.loaders.frameworks.values import map_arrays

# JAX has no annotations for it.
_from_process: Any = jax.make_array_from_process_local_data
#: Without `jax_enable_x64` JAX has no 64-bit types. It would wrap large integers around in silence.
_NARROWER = {np.dtype(np.int64): np.dtype(np.int32), np.dtype(np.uint64): np.dtype(np.uint32)}


def jax_framework(sharding: Any, batch_size: int, *, transformed: bool) -> Framework:
    """Returns the framework of batches of `jax.Array`.

    Args:
        sharding: of the leading axis of every array; None: JAX's default device.
        batch_size: windows of a global batch.
        transformed: whether a transform may make arrays.

    Raises:
        InvalidArgumentError: not a sharding, or it does not divide the batch among the processes.
    """
    if sharding is None:
        rank, multiple = (jax.process_index(), jax.process_count()), 1
    else:
        rank, multiple = _rows_of_process(sharding, batch_size)
    place = functools.partial(_place, sharding=sharding, world_size=rank[1], transformed=transformed)
    return Framework("jax", place=place, rank=rank, multiple=multiple, sharded=sharding is not None)


def _rows_of_process(sharding: Any, batch_size: int) -> tuple[tuple[int, int], int]:
    """Returns (rank, number of ranks) of this process, and the number of shards.

    Processes whose devices have the same rows have one rank: their devices are the model's axis of the mesh.
    """
    if not isinstance(sharding, Sharding):
        raise InvalidArgumentError(
            f"device is {shown(sharding)}, neither 'cpu' nor a jax.sharding.Sharding",
            hint="give jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))",
        )
    try:
        places: Any = sharding.devices_indices_map((batch_size,))
    except (ValueError, IndexError) as error:
        raise InvalidArgumentError(
            f"batch_size is {batch_size}, and the sharding does not divide it: {error}",
            hint="shard only the leading axis, over a number of devices that divides batch_size",
        ) from error
    rows: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for device, (part,) in places.items():
        first, last, _ = part.indices(batch_size)
        rows[device.process_index].add((first, last))
    parts = sorted({(min(own)[0], max(own)[1]) for own in rows.values()})
    whole = [(i * batch_size // len(parts), (i + 1) * batch_size // len(parts)) for i in range(len(parts))]
    own = rows.get(jax.process_index())
    if own is None or parts != whole or any(_gaps(each) for each in rows.values()):
        raise InvalidArgumentError(
            f"the sharding gives the processes the rows {parts} of {batch_size}; each needs one part of equal size",
            hint="order the devices of the data axis by process, as jax.make_mesh does",
        )
    return (parts.index((min(own)[0], max(own)[1])), len(parts)), len({part for each in rows.values() for part in each})


def _gaps(parts: set[tuple[int, int]]) -> bool:
    ordered = sorted(parts)
    return any(last != first for (_, last), (first, _) in itertools.pairwise(ordered))


def _place(batch: Batch, sharding: Sharding | None, world_size: int, transformed: bool) -> Batch:
    """Returns the batch with `jax.Array` for NumPy arrays, on the sharding's devices."""
    narrow = jax.dtypes.canonicalize_dtype(np.int64) == np.int32
    arrays: dict[str, Any] = {}
    lists: dict[str, Any] = {}
    placed: Any
    for key, value in batch.items():
        if isinstance(value, np.ndarray):
            arrays[key] = _own(key, value, narrow, transformed)
        elif isinstance(value, jax.Array):
            arrays[key] = value
        else:
            lists[key] = map_arrays(value, np.ndarray, functools.partial(_put_item, key, narrow, sharding))
    if sharding is None:
        placed = jax.device_put(arrays)
    else:
        try:
            if world_size == 1 and jax.process_count() == 1:
                placed = jax.device_put(arrays, sharding)
            else:
                placed = {
                    key: _from_process(sharding, value, (len(value) * world_size, *value.shape[1:]))
                    for key, value in arrays.items()
                }
        except (ValueError, TypeError) as error:
            shapes = {key: value.shape for key, value in arrays.items()}
            raise InvalidArgumentError(
                f"JAX cannot shard the batch: {error}", hint=f"the arrays of this process have the shapes {shapes}"
            ) from error
    return {key: placed[key] if key in placed else lists[key] for key in batch}


def _own(key: str, array: Any, narrow: bool, transformed: bool) -> Any:
    """Returns an array that nobody writes to while JAX reads it."""
    if narrow and array.dtype in _NARROWER:
        narrowed = array.astype(_NARROWER[array.dtype])
        if not np.array_equal(narrowed, array):
            raise InvalidArgumentError(
                f"values {array.min()} to {array.max()} do not fit into {narrowed.dtype}: JAX has no 64-bit integers",
                column=key,
                hint="call jax.config.update('jax_enable_x64', True) first, or leave the column out with columns=",
            )
        return narrowed
    # A transform may return one array again and again.
    return array.copy() if transformed and not is_leased(array) else array


def _put_item(key: str, narrow: bool, sharding: Sharding | None, array: Any) -> Any:
    if sharding is not None:
        raise InvalidArgumentError(
            "a list of arrays of different lengths cannot be sharded",
            column=key,
            hint="give BatchOptions(preset_options={'tokens': {'ragged': False}}), or leave device= out",
        )
    return jax.device_put(_own(key, array, narrow, True))
