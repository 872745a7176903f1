"""Batches of NumPy: equal to torch's, over the same memory, and refused arguments."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import gear_data
from gear_data import ExecutionOptions, SequenceLoader
from gear_data.errors import InvalidArgumentError, UnknownNameError
from gear_data.loaders.decoding.images import ImageDecoder
from gear_data.loaders.frameworks.values import as_numpy
from tests.support.feed import variable
from tests.support.feed.arguments import grouped
from tests.support.feed.variable import IMAGE, TEXT

OPTIONS = {"batch_size": 10, "context": 6, "seed": 3}


def assert_same_values(value, tensors):
    """Asserts that a value of NumPy's batch equals torch's, bit for bit."""
    if isinstance(value, list):
        assert len(value) == len(tensors)
        for each, other in zip(value, tensors, strict=True):
            assert_same_values(each, other)
    elif isinstance(value, str | bytes):
        assert value == tensors
    else:
        assert type(value) is np.ndarray and isinstance(tensors, torch.Tensor)
        assert str(tensors.dtype) == f"torch.{value.dtype.name}"
        assert value.shape == tensors.shape
        assert value.tobytes() == as_numpy(tensors).tobytes()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"preset": "decision_transformer", "dtype": "bfloat16", "normalize": True},
        {"preset": "corl", "dtype": np.float16, "prefetch": 0},
        {"preset": "gato", "dtype": "bfloat16", "columns": ["rewards"], "normalize": True},
        {"preset": "gato", "preset_options": {"tokens": {"ragged": False}}},
        {"sampler": gear_data.Weighted("length"), "rank": 1, "world_size": 3},
    ],
)
def test_numpy_and_torch_have_equal_batches(dataset, options):
    loaders = [SequenceLoader(dataset, **grouped(framework=name, **OPTIONS, **options)) for name in ("numpy", "torch")]
    for arrays, tensors in itertools.islice(zip(*loaders, strict=True), 12):
        assert list(arrays) == list(tensors)
        for key, value in arrays.items():
            assert_same_values(value, tensors[key])


def test_text_and_decoded_images_are_equal(tmp_path):
    opened = variable.convert(variable.make_episodes(), tmp_path / "d")
    decoders = {IMAGE: ImageDecoder("float32"), TEXT: lambda texts: [list(text.encode()) for text in texts]}
    for given in ({}, decoders):
        loaders = [
            SequenceLoader(opened, **grouped(framework=name, decoders=given, **OPTIONS)) for name in ("numpy", "torch")
        ]
        for arrays, tensors in itertools.islice(zip(*loaders, strict=True), 3):
            assert list(arrays) == list(tensors)
            for key, value in arrays.items():
                assert_same_values(value, tensors[key])


def test_a_decoder_may_return_arrays_of_any_framework(tmp_path):
    jnp = pytest.importorskip("jax.numpy")
    opened = variable.convert(variable.make_episodes(), tmp_path / "d")

    def lengths(texts):
        return np.array([len(text) for text in texts], np.float32)

    def batch(make):
        decoders = {TEXT: lambda texts: make(lengths(texts))}
        return next(
            iter(SequenceLoader(opened, **grouped(decoders=decoders, columns=[TEXT], framework="numpy", **OPTIONS)))
        )[TEXT]

    expected = batch(lambda values: values)
    assert expected.any() and expected.dtype == np.float32
    for make in (torch.from_numpy, jnp.asarray, lambda values: list(torch.from_numpy(values))):
        assert np.array_equal(batch(make), expected)
    for make in (lambda values: torch.from_numpy(values).bfloat16(), lambda values: jnp.asarray(values, jnp.bfloat16)):
        half = batch(make)
        assert half.dtype == ml_dtypes.bfloat16
        assert np.array_equal(half.astype(np.float32), expected)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_memory_is_used_again_only_after_the_last_view(dataset, prefetch):
    """A view of one array of one batch in ten is kept; other batches come and go."""
    loader = SequenceLoader(
        dataset, **grouped(framework="numpy", prefetch=prefetch, steps=200, passes="repeat", **OPTIONS)
    )
    expected = [batch["observations"].copy() for batch in loader]
    kept, addresses = [], set()
    for step, batch in enumerate(loader):
        addresses.add(batch["observations"].ctypes.data)
        if step % 10 == 0:
            kept.append((step, batch["observations"][1:, ::2]))
        del batch
    # Without reuse every batch would have its own address.
    assert len(addresses) < 100
    for step, view in kept:
        assert np.array_equal(view, expected[step][1:, ::2])


def test_a_transform_gets_numpy_arrays(dataset):
    def transform(batch, rng):
        assert all(type(value) is np.ndarray for value in batch.values())
        return {**batch, "noise": rng.normal(size=3)}

    batch = next(iter(SequenceLoader(dataset, **grouped(framework="numpy", transform=transform, **OPTIONS))))
    assert type(batch["noise"]) is np.ndarray


def test_arguments_of_another_framework_are_refused(dataset):
    with pytest.raises(UnknownNameError, match="'tensorflow'"):
        SequenceLoader(dataset, framework="tensorflow")
    with pytest.raises(InvalidArgumentError, match="device='cuda' is for framework='torch'"):
        SequenceLoader(dataset, framework="numpy", device="cuda")
    with pytest.raises(InvalidArgumentError, match="pin_memory=True is for framework='torch'"):
        SequenceLoader(dataset, framework="numpy", execution=ExecutionOptions(pin_memory=True))
    with pytest.raises(InvalidArgumentError, match="batches are of numpy"):
        SequenceLoader(dataset, framework="numpy").dataloader()


def test_exports_are_the_same_bytes(dataset, tmp_path):
    for name in ("numpy", "torch"):
        loader = SequenceLoader(dataset, **grouped(framework=name, dtype="bfloat16", preset="corl", **OPTIONS))
        gear_data.export_batches(loader, tmp_path / name, batches=2)
    for file in sorted((tmp_path / "torch").iterdir()):
        assert file.read_bytes() == (tmp_path / "numpy" / file.name).read_bytes()
    # The reference is safetensors' own writer of tensors.
    from safetensors.torch import save_file

    tensors = next(
        iter(SequenceLoader(dataset, **grouped(framework="torch", dtype="bfloat16", preset="corl", **OPTIONS)))
    )
    save_file(tensors, tmp_path / "reference.safetensors")
    assert (tmp_path / "numpy" / "batch-000000.safetensors").read_bytes() == (
        tmp_path / "reference.safetensors"
    ).read_bytes()


#: Takes a batch, prints what it imported, and then whether torch takes the loader and a pickled copy for its own.
FIRST_BATCH = """
import pickle
import sys
import gear_data

path, framework, preset = sys.argv[1:]
loader = gear_data.SequenceLoader(gear_data.open(path), batch_size=4, framework=framework, preset=preset)
next(iter(loader))
slow = ("torch", "pandas", "scipy.linalg", "numba.np.linalg", "polars", "datasets", "h5py", "PIL", "fsspec",
        "pyarrow.compute", "gear_data.storage.verify", "gear_data.video.decoding.frame_reader")
print(*[name for name in slow if name in sys.modules])
copy = pickle.loads(pickle.dumps(loader))
from torch.utils.data import Dataset, IterableDataset
again = pickle.loads(pickle.dumps(loader))
print(*[isinstance(each, base) for each in (loader, copy, again) for base in (Dataset, IterableDataset)])
print(type(again) is gear_data.SequenceLoader, again.spec() == loader.spec())
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("framework", "preset", "imported"), [("numpy", "raw", ""), ("numpy", "corl", ""), ("torch", "raw", "torch")]
)
def test_a_first_batch_imports_nothing_slow(framework: str, preset: str, imported: str, rollouts_path: Path) -> None:
    # From now on, Numba's cache has the kernels.
    next(iter(SequenceLoader(gear_data.open(rollouts_path), batch_size=4, framework="numpy", preset=preset)))
    program = [sys.executable, "-c", FIRST_BATCH, str(rollouts_path), framework, preset]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [imported, " ".join(["True"] * 6), "True True"]
