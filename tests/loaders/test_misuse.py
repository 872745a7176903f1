"""Frameworks that would batch or divide batches again are refused."""

from __future__ import annotations

import itertools
import json
import subprocess

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from gear_data import SequenceLoader
from gear_data.errors import InvalidArgumentError
from tests.support.feed import data as feed_data
from tests.support.feed.batches import clones, same
from tests.support.running.warm_python import python

OPTIONS = {"batch_size": 6, "context": 5, "seed": 12}

_ACCELERATE = """
import json, sys
from accelerate import Accelerator
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
import gear_data
from gear_data.errors import InvalidArgumentError

accelerator = Accelerator(cpu=True)
rank = accelerator.process_index
ds = gear_data.open(sys.argv[1])
def make():
    return gear_data.SequenceLoader(ds, 6, context=5, seed=12, steps=3)
def read(batches):
    try:
        return [batch["rewards"].tolist() for batch in batches]
    except InvalidArgumentError as error:
        return str(error)
def prepared(**options):
    return accelerator.prepare(DataLoader(make(), batch_size=None, **options))
result = {
    "loader": read(accelerator.prepare(make())),
    "unprepared": read(DataLoader(make(), batch_size=None)),
    "prepared": read(prepared()),
    "spawned workers": read(prepared(num_workers=1, multiprocessing_context="spawn")),
}
try:
    result["forked workers"] = read(prepared(num_workers=1, multiprocessing_context="fork"))
except RuntimeError:  # Accelerate: rank 0, where the worker fails, has ended
    if rank == 0:
        raise
open(f"{sys.argv[2]}/{rank}.json", "w").write(json.dumps(result))
if rank == 0:
    sys.exit()  # rank 1 waits for rank 0's batch
"""


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 32])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_dataloader_with_a_batch_size(dataset, batch_size, workers):
    batches = DataLoader(SequenceLoader(dataset, **OPTIONS), batch_size=batch_size, num_workers=workers)
    with pytest.raises(InvalidArgumentError, match=r"stack several batches.*\n.*batch_size=None"):
        next(iter(batches))


@pytest.mark.processes
def test_accelerate(tmp_path):
    """Prepared DataLoaders lose rows of other ranks; the loader itself is exact."""
    folder = tmp_path / "d"
    feed_data.convert_episodes(feed_data.locomotion([9, 20, 31, 4], seed=3), folder)
    (tmp_path / "script.py").write_text(_ACCELERATE)
    command = [python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*command, str(tmp_path / "script.py"), str(folder), str(tmp_path)], check=True, timeout=200)
    import gear_data

    expected = [
        batch["rewards"].tolist() for batch in SequenceLoader(gear_data.open(folder), 6, context=5, seed=12, steps=3)
    ]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for exact in ("loader", "unprepared"):
        assert [first + second for first, second in zip(*(rank[exact] for rank in ranks), strict=True)] == expected
    for lossy in ("prepared", "spawned workers"):
        for rank in ranks:
            assert "other ranks' rows are never read" in rank[lossy], lossy
    assert "other ranks' rows are never read" in ranks[0]["forked workers"]


def test_a_distributed_sampler(dataset):
    with pytest.raises(InvalidArgumentError, match=r"already are this rank's rows(.|\n)*leave sampler= out"):
        DataLoader(loader := SequenceLoader(dataset, **OPTIONS), sampler=DistributedSampler(loader, 2, 0))


def test_ranks_of_torchrun_without_a_group(dataset, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = SequenceLoader(dataset, **OPTIONS)
    for read in (iter, lambda each: each.batch(0), lambda each: each.local_batch_size):
        with pytest.raises(InvalidArgumentError, match=r"torchrun started 2 processes(.|\n)*init_process_group"):
            read(loader)
    assert SequenceLoader(dataset, **OPTIONS, rank=0, world_size=1).local_batch_size == 6
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert loader.local_batch_size == 6


def test_more_ranks_than_rows(dataset):
    with pytest.raises(InvalidArgumentError, match=r"batch_size is 2 for 4 ranks.*\n.*at least 4"):
        SequenceLoader(dataset, 2, rank=0, world_size=4)


@pytest.mark.parametrize("options", [{"batch_size": 8}, {"shuffle": True}, {"collate_fn": list}], ids=str)
def test_options_of_a_dataloader_that_would_change_batches(dataset, options):
    with pytest.raises(InvalidArgumentError, match="would change batches that are already whole"):
        SequenceLoader(dataset, **OPTIONS).dataloader(**options)


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 2])
def test_the_dataloader_of_a_loader(dataset, workers):
    expected = list(itertools.islice(SequenceLoader(dataset, **OPTIONS), 8))
    same(list(SequenceLoader(dataset, steps=8, **OPTIONS).dataloader(workers)), expected)


@pytest.mark.parametrize("sampler", ["uniform", "shuffle"])
def test_batches_of_any_step(dataset, sampler):
    """An iteration goes on where it was, and kept batches do not change."""
    options = {**OPTIONS, "sampler": sampler, "epochs": 2, "rank": 1, "world_size": 2}
    loader = SequenceLoader(dataset, **options)
    expected = clones(SequenceLoader(dataset, **options))
    batches = iter(loader)
    found = {}
    for step in np.random.default_rng(1).permutation(len(loader)):
        found[int(step)] = loader.batch(step)
        if step % 2:
            same([next(batches)], [expected[loader.state_dict()["step"] - 1]])
    same([found[step] for step in range(len(loader))], expected)
    assert torch.equal(loader.batch(0)["rewards"], expected[0]["rewards"])
    with pytest.raises(InvalidArgumentError, match="step"):
        loader.batch(-1)
