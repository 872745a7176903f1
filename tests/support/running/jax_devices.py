"""Compares sharded batches with whole ones, on four devices of all processes.

python -m tests.support.running.jax_devices DATASET ADDRESS PROCESSES PROCESS
"""

from __future__ import annotations

import itertools
import sys

import jax
import numpy as np

import gear_data
from gear_data.errors import InvalidArgumentError

OPTIONS = {"batch_size": 8, "context": 6, "seed": 3, "preset": "decision_transformer"}


def main(path: str, address: str, count: int, process: int) -> None:
    if count > 1:
        jax.distributed.initialize(address, count, process)
    assert jax.device_count() == 4 and jax.process_index() == process
    ds = gear_data.open(path)
    check_meshes(ds, count)
    check_steps_of_training(ds)
    check_ranks(ds, count, process)
    check_refusals(ds)
    print("ok")


def named(shape: dict[str, int], *axes: str | tuple[str, ...]) -> jax.sharding.NamedSharding:
    mesh = jax.make_mesh(tuple(shape.values()), tuple(shape))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))


def whole(ds: gear_data.Dataset, **options: object) -> gear_data.SequenceLoader:
    """A loader of global batches."""
    return gear_data.SequenceLoader(ds, framework="numpy", rank=0, world_size=1, **OPTIONS, **options)


def check_meshes(ds: gear_data.Dataset, count: int) -> None:
    """Every device has its rows of the global batch, with an axis for the model too."""
    for shape, axes, rows in (
        ({"data": 4}, "data", 8 // count),
        ({"data": 2, "model": 2}, "data", 8 // count),
        # With two processes, the devices of each hold the whole batch.
        ({"model": 2, "data": 2}, "data", 8),
        ({"a": 2, "b": 2}, ("a", "b"), 8 // count),
    ):
        sharding = named(shape, axes)
        loader = gear_data.SequenceLoader(ds, framework="jax", device=sharding, **OPTIONS)
        assert loader.local_batch_size == rows, (shape, loader.local_batch_size)
        for batch, expected in itertools.islice(zip(loader, whole(ds), strict=True), 4):
            for key, array in batch.items():
                assert array.sharding.is_equivalent_to(sharding, array.ndim) and array.shape == expected[key].shape
                for shard in array.addressable_shards:
                    assert np.array_equal(shard.data, expected[key][shard.index].astype(array.dtype)), key


def check_steps_of_training(ds: gear_data.Dataset) -> None:
    """A jitted step over the mesh has the result of one device."""
    loader = gear_data.SequenceLoader(ds, framework="jax", device=named({"data": 4}, "data"), steps=20, **OPTIONS)
    mean = jax.jit(lambda states: states.mean())
    # One at a time: on few cores, many collectives at once may wait for one another.
    found = [float(mean(batch["states"])) for batch in loader]
    expected = [batch["states"].mean() for batch in whole(ds, steps=20)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def check_ranks(ds: gear_data.Dataset, count: int, process: int) -> None:
    """Without a sharding the ranks are JAX's processes, with equal weights."""
    sampler = gear_data.Weighted("length")
    for framework in ("jax", "numpy"):
        loader = gear_data.SequenceLoader(ds, framework=framework, sampler=sampler, steps=3, **OPTIONS)
        assert (loader.spec()["rank"], loader.spec()["world_size"]) == (process, count)
        # Each process changes the weight of another episode; all processes apply both changes.
        loader.update_weights([process], [5.0 + process])
        expected = whole(ds, sampler=sampler, steps=3)
        expected.update_weights(list(range(count)), [5.0 + rank for rank in range(count)])
        rows = slice(8 // count * process, 8 // count * (process + 1))
        for batch, other in zip(loader, expected, strict=True):
            assert np.array_equal(batch["states"], other["states"][rows])


def check_refusals(ds: gear_data.Dataset) -> None:
    sharding = named({"data": 4}, "data")
    for options, words in (
        ({"batch_size": 6}, "does not divide"),
        ({"epochs": 1, "sampler": "shuffle"}, "the last batch has"),
        ({"preset": "gato", "steps": 1}, "cannot be sharded"),
        ({"device": named({"data": 2, "model": 2}, "data", "model")}, "leading axis"),
    ):
        try:
            arguments = {**OPTIONS, "device": sharding, **options}
            next(iter(gear_data.SequenceLoader(ds, framework="jax", **arguments)))
        except InvalidArgumentError as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"{options} are not refused")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
