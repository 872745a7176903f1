"""Batches of JAX: equal to NumPy's, never overwritten, sharded over devices."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess

import ml_dtypes
import numpy as np
import pytest

import gear_data
from gear_data import SequenceLoader
from gear_data.errors import InvalidArgumentError
from tests.support.feed import data as feed_data
from tests.support.feed import variable
from tests.support.running.imported_when_used import ImportedWhenUsed
from tests.support.running.warm_python import python

jax = ImportedWhenUsed("jax")
OPTIONS = {"batch_size": 12, "context": 6, "seed": 3}
#: JAX's dtype of a NumPy dtype, without 64-bit types.
NARROWER = {"int64": "int32", "float64": "float32"}


def assert_same_values(value, array):
    """Asserts that a value of JAX's batch equals NumPy's."""
    if isinstance(array, list):
        for each, other in zip(value, array, strict=True):
            assert_same_values(each, other)
    else:
        assert isinstance(value, jax.Array)
        narrow = NARROWER.get(array.dtype.name, array.dtype.name)
        assert value.dtype.name == narrow
        assert np.asarray(value).tobytes() == array.astype(narrow).tobytes()


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "decision_transformer", "batch": gear_data.BatchOptions(dtype=ml_dtypes.bfloat16)},
        {"preset": "gato", "prefetch": 0},
        {"columns": ["rewards", "length", "return", "facts.terminated"]},
        {"sampler": gear_data.Weighted("length"), "rank": 1, "world_size": 3},
    ],
)
def test_jax_and_numpy_have_equal_batches(dataset, options):
    loaders = [SequenceLoader(dataset, framework=name, **OPTIONS, **options) for name in ("jax", "numpy")]
    for batch, arrays in itertools.islice(zip(*loaders, strict=True), 8):
        assert list(batch) == list(arrays)
        for key, value in batch.items():
            assert_same_values(value, arrays[key])


@pytest.mark.parametrize("framework", ["jax", "numpy"])
def test_computations_never_see_memory_that_is_used_again(tmp_path, framework):
    """Batches are dropped after the dispatch; some are kept, and some donated."""
    opened = feed_data.convert_episodes(feed_data.locomotion([50] * 20, 1, observations=16), tmp_path / "d")
    # Arrays of several sizes: large ones begin at multiples of 64 bytes, and JAX does not copy those.
    loader = SequenceLoader(opened, 64, context=20, framework=framework, steps=60, prefetch=3)
    reference = SequenceLoader(opened, 64, context=20, framework="numpy", steps=60)
    expected = [batch["observations"].copy() for batch in reference]

    @jax.jit
    def slow(x):  # long enough that the loader runs ahead
        square = x.reshape(-1, 16).T @ x.reshape(-1, 16)
        for _ in range(20):
            square = jax.numpy.tanh(square @ square)
        return x.sum(axis=(1, 2)) + 0 * square.sum()

    donated = jax.jit(lambda x: x + 1, donate_argnums=0)
    sums, kept, plus_one = [], {}, {}
    for step, batch in enumerate(loader):
        x = batch["observations"]
        sums.append(slow(x))
        if step % 7 == 0:
            kept[step] = jax.numpy.asarray(x) if step % 2 else jax.device_put(x)
        if step % 7 == 1:
            plus_one[step] = donated(jax.device_put(x))
        del batch, x
    for step, array in enumerate(expected):
        np.testing.assert_allclose(sums[step], array.sum(axis=(1, 2)), rtol=1e-3, atol=1e-3)
    for step, array in kept.items():
        assert np.array_equal(array, expected[step])
    for step, array in plus_one.items():
        assert np.array_equal(array, expected[step] + 1)


def test_an_array_on_the_cpu_shares_the_memory_of_the_batch(tmp_path):
    opened = feed_data.convert_episodes(feed_data.locomotion([50], 1), tmp_path / "d")
    collected = []

    def transform(batch, rng):
        collected.append(batch["observations"].ctypes.data)
        return batch

    batch = next(iter(SequenceLoader(opened, 64, context=20, framework="jax", prefetch=0, transform=transform)))
    assert collected == [batch["observations"].unsafe_buffer_pointer()]


def test_arrays_of_a_transform_are_copied(dataset):
    """A transform may return one array again and again; a `jax.Array` never changes."""
    counter = np.zeros(12 * 64)

    def transform(batch, rng):
        assert type(batch["observations"]) is np.ndarray
        counter[:] += 1
        return {**batch, "counter": counter}

    loader = SequenceLoader(dataset, framework="jax", transform=transform, prefetch=0, steps=5, **OPTIONS)
    found = [batch["counter"] for batch in loader]
    assert [int(each[0]) for each in found] == [1, 2, 3, 4, 5]


def test_integers_that_do_not_fit_are_refused(tmp_path):
    episodes = feed_data.locomotion([9, 5], 1)
    for episode in episodes:
        episode["infos.stamp"] = np.arange(len(episode["rewards"])) + (1 << 40)
    opened = feed_data.convert_episodes(episodes, tmp_path / "d")
    with pytest.raises(InvalidArgumentError, match="do not fit into int32") as error:
        next(iter(SequenceLoader(opened, framework="jax", **OPTIONS)))
    assert "infos.stamp" in str(error.value) and "jax_enable_x64" in str(error.value)
    with jax.enable_x64(True):
        batch = next(iter(SequenceLoader(opened, framework="jax", prefetch=0, **OPTIONS)))
    assert batch["infos.stamp"].dtype == np.int64 and np.asarray(batch["infos.stamp"]).max() > 1 << 40


def test_arguments_that_do_not_go_with_jax_are_refused(dataset):
    mesh = jax.make_mesh((1,), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    for options, words in (
        ({"device": "cuda"}, "device= takes a jax.sharding.Sharding"),
        ({"device": mesh}, "NamedSharding"),
        ({"device": sharding, "rank": 0, "world_size": 2}, "leave one of them out"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            SequenceLoader(dataset, framework="jax", **options, **OPTIONS)
    with pytest.raises(InvalidArgumentError, match="framework='jax'"):
        SequenceLoader(dataset, framework="numpy", device=sharding)
    with pytest.raises(InvalidArgumentError, match="batches are of jax"):
        SequenceLoader(dataset, framework="jax", **OPTIONS).dataloader()
    with pytest.raises(InvalidArgumentError, match="framework='numpy'"):
        SequenceLoader(dataset, framework="jax", **OPTIONS).as_grain_source()


@pytest.fixture
def over_two_processes(monkeypatch):
    """A sharding over two processes, of which this one has the first half of the rows."""
    monkeypatch.setattr("gear_data.loaders.frameworks.jax_arrays._rows_of_process", lambda *_: ((0, 2), 2))
    return jax.sharding.NamedSharding(jax.make_mesh((1,), ("data",)), jax.sharding.PartitionSpec("data"))


def test_tokens_whose_number_depends_on_the_rows_are_not_sharded(dataset, tmp_path, over_two_processes):
    """The processes would make one array of parts with unlike shapes."""
    texts = variable.convert(variable.make_episodes(), tmp_path / "d", names=(variable.TEXT,))

    def load(opened, tokens, **options):
        batch = gear_data.BatchOptions(preset_options={"tokens": {"ragged": False, **tokens}})
        options |= {"framework": "jax", "device": over_two_processes, "preset": "gato", "batch": batch}
        return SequenceLoader(opened, **OPTIONS, **options)

    with pytest.raises(InvalidArgumentError, match="depends on the rows of a process"):
        load(dataset, {"patch": 4})
    with pytest.raises(InvalidArgumentError, match="depends on the rows of a process"):
        load(texts, {"text": True}, decoders={variable.TEXT: variable.words})
    load(dataset, {})
    # It may give them one shape.
    load(dataset, {"patch": 4}, transform=lambda batch, rng: batch)


def test_decoded_values_of_unlike_lengths_are_not_sharded(tmp_path, over_two_processes):
    texts = variable.convert(variable.make_episodes(), tmp_path / "d", names=(variable.TEXT,))
    options = {"framework": "jax", "device": over_two_processes, "prefetch": 0, **OPTIONS}
    for decoder in (variable.words, variable.word_mapping):
        with pytest.raises(InvalidArgumentError, match="values of unlike shapes") as error:
            next(iter(SequenceLoader(texts, decoders={variable.TEXT: decoder}, **options)))
        assert variable.TEXT in str(error.value)


def run(path, count):
    """Runs the program in `count` processes; returns the last line of each."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={4 // count}"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    command = [python(), "-m", "tests.support.running.jax_devices", str(path), address, str(count)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    programs = [subprocess.Popen([*command, str(rank)], env=environment, **pipes) for rank in range(count)]
    try:
        outputs = [program.communicate(timeout=120) for program in programs]
    finally:
        for program in programs:
            program.kill()
    for program, (_, errors) in zip(programs, outputs, strict=True):
        assert program.returncode == 0, errors
    # Gloo prints lines before it.
    return [printed.splitlines()[-1] for printed, _ in outputs]


@pytest.mark.processes
@pytest.mark.processes
@pytest.mark.parametrize("processes", [1, 2])
def test_arrays_are_sharded_over_devices_and_processes(dataset, processes):
    assert run(dataset.path, processes) == ["ok"] * processes
