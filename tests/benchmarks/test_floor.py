"""The floor of benchmarks/feed.py gives gear-data's batches, value for value."""

from __future__ import annotations

import importlib
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gear_data
from tests.support.benchmarks.commands import BENCHMARKS

PEERS = BENCHMARKS / "peers"
#: A compiler's name; no program has the second.
COMPILERS = ("cc", "no-such-compiler")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> gear_data.Dataset:
    """Episodes of 1 to 60 steps; some are terminated, others are not."""
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(5)
    episodes = [
        {
            "observations": random.standard_normal((length, 5), np.float32),
            "actions": random.standard_normal((length, 2), np.float32),
            "rewards": random.standard_normal(length, np.float32),
            "terminated": np.arange(length) == (length - 1 if length % 3 else -1),
        }
        for length in (7, 1, 60, 2, 33, 12, 1, 3)
    ]
    gear_data.convert(episodes, folder / "steps.gear", progress=False)
    return gear_data.open(folder / "steps.gear")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The modules of benchmarks/peers, which are no package."""
    monkeypatch.syspath_prepend(PEERS)
    return {name: importlib.import_module(name) for name in ("floor_batches", "gear_convert", "harness")}


@pytest.mark.processes  # the compiler
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("contract, size, context", [("decision_transformer", 40, 9), ("transitions", 40, 1)])
def test_batches_are_those_of_the_loader(
    dataset, modules, tmp_path: Path, monkeypatch, compiler, fresh, contract, size, context
):
    monkeypatch.setenv("CC", compiler)
    modules["gear_convert"].write_steps(dataset, modules["harness"].COLUMNS, tmp_path / "steps")
    steps = modules["harness"].load_steps(tmp_path / "steps")
    floor = modules["floor_batches"].Floor(steps, contract, size, context, 3, fresh=fresh)
    assert floor.compiler == (compiler if compiler == "cc" else "Numba")
    loader = gear_data.SequenceLoader(
        dataset, batch_size=size, context=context, preset=contract, sampler="uniform", seed=3, prefetch=0
    )
    before = None
    for step, wanted in enumerate(islice(loader, 5)):
        batch = floor.batch(step)
        assert [*batch] == [*wanted]
        for key, tensor in wanted.items():
            assert batch[key].dtype == tensor.dtype and torch.equal(batch[key], tensor), (step, key)
        assert (batch is before) == (not fresh and step > 0)
        before = batch
