"""Stacked columns in batches: as if the dataset had been converted with the same stack."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gear_data
from gear_data import BatchOptions, SequenceLoader
from gear_data.errors import InvalidArgumentError, MissingColumnError, UnknownNameError
from tests.support.feed.arguments import grouped

STACK = {"observations": ["observations.pos", "observations.vel", "observations.gear"]}


def episodes() -> list[dict[str, Any]]:
    """Returns episodes whose parts have several dtypes and shapes, with final observations."""
    rng = np.random.default_rng(5)
    result = []
    for i, steps in enumerate([7, 1, 12, 30, 4]):
        result.append(
            {
                "observations": {
                    "vel": rng.normal(size=steps + 1),
                    "pos": rng.normal(size=(steps + 1, 2)).astype(np.float32),
                    "gear": rng.integers(0, 6, steps + 1),
                },
                "actions": rng.uniform(-1, 1, (steps, 2)).astype(np.float32),
                "rewards": rng.normal(size=steps).astype(np.float32),
                "terminated": i % 2 == 0,
                "truncated": i % 2 == 1,
            }
        )
    return result


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Returns a dataset of the parts, and one that was converted with the stack."""
    folder = tmp_path_factory.mktemp("stacked")
    gear_data.convert(episodes(), folder / "parts")
    gear_data.convert(episodes(), folder / "whole", stack=STACK)
    return folder / "parts", folder / "whole"


def assert_equal(batch: Any, expected: Any) -> None:
    assert list(batch) == list(expected) or sorted(batch) == sorted(expected)
    for key, value in expected.items():
        if isinstance(value, list):
            assert len(batch[key]) == len(value)
            assert all(torch.equal(a, b) for a, b in zip(batch[key], value, strict=True)), key
        else:
            assert batch[key].dtype == value.dtype, key
            assert torch.equal(torch.nan_to_num(batch[key]), torch.nan_to_num(value)), key


NORMALIZED = {"observations": (np.arange(4.0), np.array([1.0, 2.0, 0.5, 3.0]))}


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "raw", "context": 5, "columns": ["observations", "next_observations", "rewards"]},
        {"preset": "decision_transformer", "context": 6, "normalize": NORMALIZED},
        {"preset": "corl", "context": 6, "normalize": NORMALIZED, "dtype": "bfloat16"},
        {"preset": "d3rlpy", "context": 4, "offsets": {"observations": (-3, 1)}},
        {"preset": "d3rlpy", "context": 4, "offsets": {"observations": [-3, 0]}, "normalize": NORMALIZED},
        {"preset": "lerobot", "context": 4, "preset_options": {"padding": "edge"}},
        {"preset": "transitions", "n_step": 3, "discount": 0.9},
        {"preset": "transitions", "goals": gear_data.Goals()},
        {"preset": "transitions", "goals": gear_data.Goals(future=True)},
        {"preset": "gato", "context": 4},
    ],
    ids=lambda options: options["preset"],
)
def test_batches_are_those_of_a_dataset_that_was_converted_so(
    paths: tuple[Path, Path], options: dict[str, Any]
) -> None:
    parts, whole = map(gear_data.open, paths)
    arguments = {"batch_size": 9, "steps": 3, "seed": 2, "anchor": "end", **options}
    if options["preset"] == "transitions":
        del arguments["anchor"]
    loader = SequenceLoader(parts, **grouped(stack=STACK, **arguments))
    expected = SequenceLoader(whole, **grouped(**arguments))
    for batch, other in zip(loader, expected, strict=True):
        assert_equal(batch, other)
    assert_equal(loader.batch(1), expected.batch(1))
    assert loader.spec()["outputs"] == expected.spec()["outputs"]
    assert loader.spec()["stack"] == {"observations": STACK["observations"]}


@pytest.mark.parametrize("normalize", [True, "quantiles"])
def test_the_statistics_of_the_parts_are_joined(normalize: Any, paths: tuple[Path, Path]) -> None:
    parts, whole = map(gear_data.open, paths)
    arguments: dict[str, Any] = {
        "batch_size": 64,
        "context": 3,
        "normalize": normalize,
        "steps": 1,
        "framework": "numpy",
    }
    (batch,) = SequenceLoader(parts, **grouped(preset="decision_transformer", stack=STACK, **arguments))
    (expected,) = SequenceLoader(whole, **grouped(preset="decision_transformer", **arguments))
    np.testing.assert_allclose(batch["states"], expected["states"], rtol=1e-6, atol=1e-6)


def test_mixtures_and_copies_of_the_loader(paths: tuple[Path, Path]) -> None:
    parts, whole = map(gear_data.open, paths)
    arguments: dict[str, Any] = {"batch_size": 8, "context": 3, "steps": 2, "seed": 4}
    mixed = gear_data.Mixture([(parts[:3], 0.5), (parts[3:], 0.5)], join=True)
    expected = gear_data.Mixture([(whole[:3], 0.5), (whole[3:], 0.5)], join=True)
    loader = pickle.loads(pickle.dumps(SequenceLoader(mixed, **grouped(stack=STACK, **arguments))))
    for batch, other in zip(loader, SequenceLoader(expected, **grouped(**arguments)), strict=True):
        assert_equal(batch, other)


def test_batches_stay_when_buffers_are_used_again(paths: tuple[Path, Path]) -> None:
    loader = SequenceLoader(
        gear_data.open(paths[0]), 6, context=3, steps=20, batch=BatchOptions(stack=STACK), prefetch=3
    )
    batches = list(loader)
    for step, batch in enumerate(batches):
        assert_equal(batch, loader.batch(step))


@pytest.mark.parametrize(
    ("stack", "error", "words"),
    [
        ({"observations": ["observations.pos", "speed"]}, UnknownNameError, "speed"),
        ({"actions": ["observations.pos"]}, InvalidArgumentError, "already"),
        ({"observations": ["observations.pos", "rewards"]}, InvalidArgumentError, "rewards"),
        ({"observations": ["observations.pos", "actions"]}, InvalidArgumentError, "actions has no final observation"),
        (["observations.pos"], InvalidArgumentError, "must map"),
        ({"states": ["observations.pos"]}, MissingColumnError, "observations"),
    ],
)
def test_bad_stacks(paths: tuple[Path, Path], stack: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        SequenceLoader(gear_data.open(paths[0]), 4, preset="decision_transformer", batch=BatchOptions(stack=stack))
