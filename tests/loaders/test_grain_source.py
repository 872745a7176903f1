"""Grain reads batches by step: in threads and processes, for any number of ranks."""

from __future__ import annotations

import itertools
import json
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from gear_data import BatchOptions, SequenceLoader
from gear_data.errors import InvalidArgumentError
from tests.support.feed.batches import clones
from tests.support.running.imported_when_used import ImportedWhenUsed

grain = ImportedWhenUsed("grain")
OPTIONS = {"batch_size": 7, "context": 5, "seed": 12}
#: Grain keeps 500 elements in its buffer by default.


def few() -> Any:
    """Returns options of few threads."""
    return grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)


def expected(dataset, count, **options):
    batches = clones(itertools.islice(SequenceLoader(dataset, prefetch=0, **{**OPTIONS, **options}), count))
    return [{key: as_array(value) for key, value in batch.items()} for batch in batches]


def as_array(value):
    # bfloat16 has fewer bits than float32, so the conversion is exact.
    return value.float().numpy().astype(ml_dtypes.bfloat16) if value.dtype == torch.bfloat16 else value.numpy()


def same(found, batches):
    for batch, other in zip(found, batches, strict=True):
        assert batch.keys() == other.keys()
        for key in batch:
            assert isinstance(batch[key], np.ndarray) and batch[key].dtype == other[key].dtype, key
            assert np.array_equal(batch[key], other[key]), key


def test_steps_in_any_order_and_thread(dataset):
    source = SequenceLoader(dataset, steps=40, **OPTIONS).as_grain_source()
    order = np.random.default_rng(3).permutation(40)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(source.__getitem__, order))
    batches = expected(dataset, 40)
    same(found, [batches[step] for step in order])
    assert len(source) == 40
    with pytest.raises(InvalidArgumentError, match="step"):
        source[40]


def test_a_map_dataset_resumes_on_another_number_of_ranks(dataset):
    """The state of one rank is valid for each rank of any other number."""
    loader = SequenceLoader(dataset, **OPTIONS)
    assert len(loader.as_grain_source()) == sys.maxsize
    batches = iter(grain.MapDataset.source(loader.as_grain_source()).to_iter_dataset(few()))
    whole = expected(dataset, 12)
    same(itertools.islice(batches, 5), whole[:5])
    state = json.loads(json.dumps(batches.get_state()))
    assert state == {"next_index": 5}
    ranks = []
    for rank in range(3):
        source = SequenceLoader(dataset, **OPTIONS, rank=rank, world_size=3).as_grain_source()
        ranks.append(iter(grain.MapDataset.source(source).to_iter_dataset(few())))
        ranks[-1].set_state(state)
    for batch in whole[5:]:
        parts = [next(rank) for rank in ranks]
        same([{key: np.concatenate([part[key] for part in parts]) for key in batch}], [batch])


def data_loader(loader, shards=None, **options):
    source = loader.as_grain_source()
    return grain.DataLoader(
        data_source=source, sampler=grain.samplers.SequentialSampler(len(source)), read_options=few(),
        shard_options=shards or grain.sharding.NoSharding(), **options,
    )  # fmt: skip


def test_a_data_loader_refuses_the_state_of_another_loader(dataset):
    batches = iter(data_loader(SequenceLoader(dataset, **OPTIONS)))
    whole = expected(dataset, 6)
    same(itertools.islice(batches, 4), whole[:4])
    resumed = iter(data_loader(SequenceLoader(dataset, **OPTIONS, rank=1, world_size=2, prefetch=0)))
    resumed.set_state(batches.get_state())
    same(itertools.islice(resumed, 2), [{key: value[3:] for key, value in batch.items()} for batch in whole[4:]])
    for changed in ({"seed": 13}, {"preset": "decision_transformer"}):
        with pytest.raises(ValueError, match="DataSource in checkpoint does not match"):
            iter(data_loader(SequenceLoader(dataset, **{**OPTIONS, **changed}))).set_state(batches.get_state())


@pytest.mark.processes
def test_worker_processes(dataset):
    """A worker has no process group; the rank travels with the source."""
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # Grain's workers read a flag
    options = {
        "rank": 1,
        "world_size": 2,
        "batch": BatchOptions(dtype="bfloat16"),
        "normalize": True,
        "columns": ["observations"],
    }
    batches = iter(data_loader(SequenceLoader(dataset, **OPTIONS, **options), worker_count=1))
    same(itertools.islice(batches, 8), expected(dataset, 8, **options))


def test_a_copy_has_the_rank_of_the_process_that_copied(dataset):
    source = SequenceLoader(dataset, **OPTIONS, rank=1, world_size=2).as_grain_source()
    copied = pickle.loads(pickle.dumps(source))
    same([copied[3]], [source[3]])
    assert repr(copied) == repr(source)


def test_arrays_share_the_memory_of_the_batch(dataset):
    """Memory is not used again while an array lives; bfloat16 is JAX's."""
    loader = SequenceLoader(dataset, **OPTIONS, batch=BatchOptions(dtype="bfloat16"), columns=["observations"])
    source = loader.as_grain_source()
    kept = [source[step]["observations"] for step in range(30)]
    for step, array in enumerate(kept):
        assert array.dtype.name == "bfloat16" and not array.flags.owndata
        assert torch.equal(torch.from_numpy(array.astype(np.float32)), loader.batch(step)["observations"].float())


def refused(make, match):
    with pytest.raises(InvalidArgumentError, match=match):
        make()


def test_misuse(dataset):
    loader = SequenceLoader(dataset, **OPTIONS)
    assert loader.as_grain_source()[0].keys() == loader.batch(0).keys()
    shards = grain.sharding.ShardOptions(1, 2)
    refused(lambda: next(iter(data_loader(loader, shards))), r"each of 2 processes other steps(.|\n)*NoSharding")
    source = loader.as_grain_source()
    sampler = grain.samplers.IndexSampler(100, shards, num_epochs=1)
    divided = grain.DataLoader(
        data_source=source, sampler=sampler, shard_options=grain.sharding.NoSharding(), read_options=few()
    )
    refused(lambda: next(iter(divided)), "each of 2 processes other steps")


def test_batches_are_not_stacked(dataset):
    """Reads an item first: Grain reads items in threads, which do not know the pipeline."""
    source = SequenceLoader(dataset, steps=20, **OPTIONS).as_grain_source()
    assert len(source[0]["observations"]) == 7
    steps = grain.MapDataset.source(source)
    for ahead in (steps, steps.seed(1).shuffle(), steps.map(lambda batch: batch)):
        refused(lambda ahead=ahead: ahead.batch(4), "stack several batches")
        refused(lambda ahead=ahead: iter(ahead.to_iter_dataset(few()).batch(4)), "stack several batches")
    elastic = grain.experimental.ElasticIterator(steps, 4, grain.sharding.NoSharding())
    refused(lambda: next(elastic), "stack several batches")
    same(steps.to_iter_dataset(few()), [source[step] for step in range(20)])


def test_a_slice_by_process(dataset):
    """Slices that choose steps stay."""
    source = SequenceLoader(dataset, **OPTIONS, rank=1, world_size=2).as_grain_source()
    steps = grain.MapDataset.source(source)
    refused(lambda: steps[1::2], r"each of 2 processes other steps(.|\n)*\[rank::2\]")
    refused(lambda: steps.slice(slice(0, None, 2)), "each of 2 processes other steps")
    same(steps[10:30:3].to_iter_dataset(few()), [source[step] for step in range(10, 30, 3)])
    whole = SequenceLoader(dataset, **OPTIONS, rank=0, world_size=1).as_grain_source()
    same(itertools.islice(grain.MapDataset.source(whole)[1::2].to_iter_dataset(few()), 2), [whole[1], whole[3]])
    threads = grain.experimental.multithread_prefetch(steps[:8].to_iter_dataset(few()), num_threads=2, buffer_size=2)
    same(threads, [source[step] for step in range(8)])
