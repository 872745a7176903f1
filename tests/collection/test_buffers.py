"""Buffers of batches: never overwritten while any part of a batch lives.

Dropped buffers are used again.
"""

from __future__ import annotations

import gc
import itertools
import tracemalloc

import numpy as np
import pytest
import torch

from gear_data import SequenceLoader
from gear_data.collection.buffers import IDLE_BUFFERS, BufferPool
from gear_data.loaders.presets.outputs import PRESETS
from tests.support.running.python_calls import python_calls

BATCHES = 1000
OPTIONS = {"batch_size": 6, "context": 5, "seed": 9}


@pytest.fixture(scope="module")
def fresh(dataset):
    """Bytes of each tensor, taken before the next batch, without prefetching."""
    loader = SequenceLoader(dataset, prefetch=0, steps=BATCHES, **OPTIONS)
    return [{key: tensor.numpy().tobytes() for key, tensor in batch.items()} for batch in loader]


def test_the_fresh_batches_are_all_different(fresh):
    assert len({batch["observations"] for batch in fresh}) == BATCHES


KEEP = {
    "batch": lambda batch: batch,
    "one tensor": lambda batch: {"observations": batch["observations"]},
    "numpy view": lambda batch: {key: tensor.numpy() for key, tensor in batch.items()},
    "numpy view of one": lambda batch: {"rewards": batch["rewards"].numpy()},
    "memoryview": lambda batch: {"actions": memoryview(batch["actions"].numpy())},
    "dlpack": lambda batch: {"actions": torch.from_dlpack(batch["actions"])},
    "flat view": lambda batch: {key: tensor.view(-1) for key, tensor in batch.items()},
    "storage": lambda batch: {"timesteps": torch.tensor([]).long().set_(batch["timesteps"].untyped_storage())},
}


@pytest.mark.parametrize("prefetch", [0, 1, 2, 8])
@pytest.mark.parametrize("keep", KEEP.values(), ids=KEEP)
def test_a_thousand_kept_batches_stay_as_they_were(dataset, fresh, keep, prefetch):
    kept = [keep(batch) for batch in SequenceLoader(dataset, prefetch=prefetch, steps=BATCHES, **OPTIONS)]
    gc.collect()
    assert len(kept) == BATCHES
    for part, expected in zip(kept, fresh, strict=True):
        for key, value in part.items():
            got = value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
            assert got.tobytes()[: len(expected[key])] == expected[key], key


@pytest.mark.parametrize("prefetch", [0, 2, 8])
def test_kept_slices_stay_as_they_were(dataset, fresh, prefetch):
    loader = SequenceLoader(dataset, prefetch=prefetch, steps=BATCHES, **OPTIONS)
    kept = [(batch["observations"][2:4, 1:, ::2], batch["actions"].numpy()[5, 4:5]) for batch in loader]
    for (observations, actions), expected in zip(kept, fresh, strict=True):
        whole = np.frombuffer(expected["observations"], np.float32).reshape(6, 5, 4)
        assert np.array_equal(observations.numpy(), whole[2:4, 1:, ::2])
        assert np.array_equal(actions, np.frombuffer(expected["actions"], np.float32).reshape(6, 5, 3)[5, 4:5])


def tensors(batch):
    return [tensor for value in batch.values() for tensor in (value if isinstance(value, list) else [value])]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_writing_to_a_batch_changes_no_other_batch(dataset, fresh, preset, prefetch):
    options = {**OPTIONS, "preset": preset, "steps": 50}
    if PRESETS[preset].transitions is not None:
        options["context"] = 1
    expected = [[t.clone() for t in tensors(batch)] for batch in SequenceLoader(dataset, prefetch=0, **options)]
    for batch, clean in zip(SequenceLoader(dataset, prefetch=prefetch, **options), expected, strict=True):
        for tensor, wanted in zip(tensors(batch), clean, strict=True):
            # One tensor after the other, because two tensors of a batch must not share memory either.
            assert torch.equal(tensor, wanted)
            tensor.fill_(1)


@pytest.mark.parametrize("keep_every", [2, 7])
def test_keeping_some_batches_while_others_are_dropped(dataset, fresh, keep_every):
    kept = {}
    for step, batch in enumerate(SequenceLoader(dataset, prefetch=2, steps=BATCHES, **OPTIONS)):
        if step % keep_every == 0:
            kept[step] = batch
        if step % 50 == 49:
            kept.pop(step // 50 * keep_every, None)
    assert len(kept) > BATCHES // keep_every - 21
    for step, batch in kept.items():
        assert all(batch[key].numpy().tobytes() == fresh[step][key] for key in batch)


def test_batches_outlive_their_loader(dataset, fresh):
    batches = list(itertools.islice(SequenceLoader(dataset, prefetch=2, **OPTIONS), 30))
    gc.collect()
    for batch, expected in zip(batches, fresh, strict=False):
        assert all(batch[key].numpy().tobytes() == expected[key] for key in batch)


@pytest.mark.parametrize("prefetch", [0, 1, 2, 8])
def test_dropped_buffers_are_used_again(dataset, prefetch, monkeypatch):
    loader = SequenceLoader(dataset, batch_size=64, context=40, prefetch=prefetch, steps=300)
    bytes_of_a_batch = sum(tensor.nbytes for tensor in next(iter(loader)).values())
    allocated = []
    empty = np.empty

    def counted(shape, *args, **kwargs):
        result = empty(shape, *args, **kwargs)
        if result.nbytes > bytes_of_a_batch // 2:
            allocated.append(result.nbytes)
        return result

    monkeypatch.setattr(np, "empty", counted)
    assert sum(1 for _ in loader) == 300
    # Inline: one buffer is in use while the next batch is made. With prefetching: if the consumer empties a deep
    # queue at once, the pool keeps eight buffers and frees the others.
    assert 1 <= len(allocated) <= (2 if prefetch == 0 else 75)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_memory_does_not_grow(dataset, prefetch):
    loader = iter(SequenceLoader(dataset, batch_size=64, context=40, prefetch=prefetch))
    size = sum(tensor.nbytes for tensor in next(loader).values())
    tracemalloc.start()
    try:
        for _ in range(50):
            next(loader)
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(500):
            next(loader)
        growth = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    loader.close()
    # 500 lost batches would be 500 sizes. Prefetching may hold a few groups of batches more or fewer.
    assert growth < (2 if prefetch == 0 else 25) * size


@pytest.mark.parametrize("keep", KEEP.values(), ids=KEEP)
def test_no_python_code_runs_when_a_batch_dies(dataset, keep):
    """An interrupt in such code would be lost."""
    loader = iter(SequenceLoader(dataset, prefetch=0, **OPTIONS))
    kept = [keep(next(loader)) for _ in range(IDLE_BUFFERS + 3)]
    assert python_calls(kept.clear) == []
    loader.close()


def test_the_pool_lends_the_buffer_that_came_back_last():
    pool = BufferPool(100, lambda memory: memory.ctypes.data, reuse=True)
    leases = [pool.lease() for _ in range(5)]
    addresses = [description for _, description in leases]
    assert len(set(addresses)) == 5
    for number in (3, 0, 4, 1, 2):
        leases[number] = None
    again = [pool.lease() for _ in range(6)]
    assert [description for _, description in again[:5]] == [addresses[number] for number in (2, 1, 4, 0, 3)]
    assert again[5][1] not in addresses
    assert all(memory.ctypes.data == description for memory, description in again)


def test_the_pool_keeps_a_limited_number_of_buffers():
    pool = BufferPool(100, lambda memory: memory.ctypes.data, reuse=True)
    leases = [pool.lease() for _ in range(IDLE_BUFFERS + 4)]
    addresses = [description for _, description in leases]
    while leases:
        leases.pop(0)
    kept = [pool.lease() for _ in range(IDLE_BUFFERS)]
    assert [description for _, description in kept] == addresses[-1 : -IDLE_BUFFERS - 1 : -1]


@pytest.mark.parametrize(
    "take", [lambda lent: lent[3:], lambda lent: memoryview(lent), lambda lent: lent.view(np.int32)]
)
def test_a_part_of_a_lease_keeps_its_buffer(take):
    pool = BufferPool(100, lambda memory: memory.ctypes.data, reuse=True)
    lent, address = pool.lease()
    part = take(lent)
    del lent
    assert pool.lease()[1] != address
    del part
    assert address in [lease[1] for lease in [pool.lease(), pool.lease()]]
