"""Collector against plain loops: dtypes, odd row sizes, window positions."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gear_data
from gear_data.collection.buffers import BufferPool
from gear_data.collection.collector import Collector
from gear_data.collection.output import MASK, TIMESTEPS, Output
from gear_data.collection.plan import CollectSource
from gear_data.errors import InvalidArgumentError, UnsupportedColumnError
from gear_data.schema import DTYPES
from gear_data.selection.windows import Windows
from tests.support.feed import data as feed_data
from tests.support.feed import reference as ref

# uint8 rows of 1, 3, 6 and 11 bytes; every other size follows from the dtypes.
SHAPES = [(), (3,), (2, 3), (11,)]
LENGTHS = [1, 2, 3, 17, 1, 40, 9, 5, 33, 2, 1]
COLUMNS = {f"x.{dtype}.{'-'.join(map(str, shape)) or 'one'}": (dtype, shape) for dtype in DTYPES for shape in SHAPES}


def values(dtype, shape, rng):
    """Returns numbers over the dtype's whole range."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if kind.kind == "f":
        return (rng.normal(0, 1, shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(kind)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    return rng.integers(low, high, shape, dtype=kind, endpoint=True)


def make_episodes(lengths, columns, seed):
    rng = np.random.default_rng(seed)
    return [
        {name: values(dtype, (length, *shape), rng) for name, (dtype, shape) in columns.items()} for length in lengths
    ]


@pytest.fixture(scope="module")
def wide_episodes():
    return make_episodes(LENGTHS, COLUMNS, 1)


@pytest.fixture(scope="module")
def wide(wide_episodes, tmp_path_factory):
    """A dataset with every dtype in every shape, and a few episodes in each shard."""
    dataset = feed_data.convert_episodes(wide_episodes, tmp_path_factory.mktemp("wide") / "dataset", shard_bytes=1024)
    assert dataset.episodes["shard"].n_unique() > 5
    assert {dataset.schema[name].dtype for name in COLUMNS} == set(DTYPES)
    return dataset


def windows_of(rows):
    columns = np.array(rows, np.int64).reshape(-1, 3).T.copy()
    return Windows(*columns)


def all_windows(lengths, context):
    return [(e, s, min(context, length - s)) for e, length in enumerate(lengths) for s in range(length)]


def collect(dataset, outputs, windows):
    collector = Collector(
        [CollectSource(dataset.store.reader(), dataset.schema, tuple(outputs))], len(windows), reuse=True
    )
    collected = collector(windows_of(windows))
    assert list(collected.arrays) == [output.key for output in outputs]
    return collected


def expected_rows(column, windows, output):
    """The output as a loop over windows and steps, in the column's own dtype."""
    shape = column[0].shape[1:]
    out = np.empty((len(windows), output.width, *shape), column[0].dtype)
    out[:] = np.asarray(output.fill).astype(out.dtype)
    for row, (episode, start, length) in enumerate(windows):
        steps = list(range(start + output.first, start + output.first + output.width))
        low, high = (start, start + length) if output.within_window else (0, len(column[episode]))
        inside = [s for s in steps if low <= s < high]
        for s in inside:
            place = output.width - len(inside) + s - inside[0] if output.pad_left else s - steps[0]
            out[row, place] = column[episode][s]
    return out


def same_bits(got, expected):
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", COLUMNS)
def test_every_dtype_and_shape_is_copied_bit_for_bit(wide, wide_episodes, name):
    dtype, shape = COLUMNS[name]
    windows = all_windows(LENGTHS, 6)
    column = [episode[name] for episode in wide_episodes]
    outputs = [
        Output("right", name, dtype, shape, 0, 6),
        Output("left", name, dtype, shape, 0, 6, pad_left=True, fill=1),
        Output("history", name, dtype, shape, -3, 4, fill=1, within_window=False),
        Output("before", name, dtype, shape, -50, 3, within_window=False),
    ]
    collected = collect(wide, outputs, windows)
    for output in outputs:
        same_bits(collected.arrays[output.key], expected_rows(column, windows, output))
    assert not collected.arrays["before"].view(np.uint8).any()


FLOATS = ("float32", "float64")
CONVERTIBLE = [name for name in COLUMNS if COLUMNS[name][1] in ((), (3,))]


@pytest.mark.parametrize("out", FLOATS)
@pytest.mark.parametrize("name", CONVERTIBLE)
def test_cast_and_normalisation_equal_numpy_in_float64(wide, wide_episodes, name, out):
    shape = COLUMNS[name][1]
    rng = np.random.default_rng(3)
    mean, scale = rng.normal(0, 100, shape or (1,)), rng.normal(0, 3, shape or (1,))
    windows = all_windows(LENGTHS, 5)
    column = [episode[name] for episode in wide_episodes]
    outputs = [
        Output("cast", name, out, shape, 0, 5),
        Output("shared", name, out, shape, 0, 5, mean=mean[:1], scale=scale[:1]),
        Output("own", name, out, shape, 0, 5, pad_left=True, fill=-7.25, mean=mean, scale=scale),
    ]
    arrays = collect(wide, outputs, windows).arrays
    for output in outputs:
        center, factor = (0.0, 1.0) if output.mean is None else (output.mean, output.scale)
        rows = [
            ((episode.astype(np.float64) - center) * factor).astype(out).reshape(episode.shape) for episode in column
        ]
        same_bits(arrays[output.key], expected_rows(rows, windows, output))


@pytest.mark.parametrize("name", ["x.float32.2-3", "x.uint8.2-3"])
def test_a_matrix_is_normalised_by_one_number_or_by_one_an_element(wide, wide_episodes, name):
    mean = np.arange(6.0).reshape(2, 3)
    outputs = [
        Output("own", name, "float32", (2, 3), 0, 4, mean=mean, scale=mean + 1),
        Output("flat", name, "float32", (2, 3), 0, 4, mean=mean.ravel(), scale=mean.ravel() + 1),
        Output("shared", name, "float32", (2, 3), 0, 4, mean=np.array([2.0]), scale=np.array([0.5])),
    ]
    windows = all_windows(LENGTHS, 4)
    arrays = collect(wide, outputs, windows).arrays
    raw = [episode[name].astype(np.float64) for episode in wide_episodes]
    own = [((episode - mean) * (mean + 1)).astype(np.float32) for episode in raw]
    shared = [((episode - 2.0) * 0.5).astype(np.float32) for episode in raw]
    same_bits(arrays["own"], expected_rows(own, windows, outputs[0]))
    same_bits(arrays["flat"], expected_rows(own, windows, outputs[1]))
    same_bits(arrays["shared"], expected_rows(shared, windows, outputs[2]))


def test_half_precision_keeps_zeros_subnormals_infinities_and_nan(make_dataset):
    """Checks all 65,536 values of float16."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(-1, 16)
    dataset = make_dataset([{"x": every, "rewards": np.zeros(len(every), np.float32)}])
    windows = [(0, start, 64) for start in range(0, len(every), 64)]
    for out in FLOATS:
        got = collect(dataset, [Output("x", "x", out, (16,), 0, 64)], windows).arrays["x"]
        expected = every.astype(out)
        np.testing.assert_array_equal(got.reshape(expected.shape), expected)
        known = ~np.isnan(expected)
        assert np.array_equal(np.signbit(got.reshape(expected.shape))[known], np.signbit(expected)[known])


def test_outputs_that_cannot_be_computed_are_refused(wide):
    for name, out in (("x.float32.3", "int32"), ("x.int8.one", "uint8"), ("x.float64.one", "int16")):
        with pytest.raises(UnsupportedColumnError) as error:
            Collector(
                [CollectSource(wide.store.reader(), wide.schema, (Output("x", name, out, COLUMNS[name][1], 0, 2),))],
                4,
                reuse=True,
            )
        assert error.value.column == name


@given(data=st.data())
@settings(max_examples=60)
def test_random_datasets_windows_and_outputs(data):
    lengths = data.draw(st.lists(st.integers(1, 14), min_size=1, max_size=15), label="lengths")
    names = data.draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3, unique=True), label="columns")
    columns = {name: COLUMNS[name] for name in names}
    episodes = make_episodes(lengths, columns, data.draw(st.integers(0, 99), label="seed"))
    ends = [(e, s) for e, length in enumerate(lengths) for s in {0, length - 1}]
    inside = [(e, s) for e, length in enumerate(lengths) for s in range(length)]
    # Starts and ends of episodes are where windows go wrong: draw them as often as all the rest.
    drawn = data.draw(st.lists(st.sampled_from(ends) | st.sampled_from(inside), min_size=1, max_size=12), label="w")
    context = data.draw(st.integers(1, 10), label="context")
    windows = [(e, s, min(context, lengths[e] - s)) for e, s in drawn]
    outputs = []
    for i, name in enumerate(names):
        dtype, shape = columns[name]
        first, pad_left = data.draw(st.integers(-6, 6), label="first"), data.draw(st.booleans(), label="left")
        fill = data.draw(st.integers(0, 1))
        outputs.append(Output(f"{i}", name, dtype, shape, first, context, pad_left, fill, within_window=False))
    outputs.append(Output("t", TIMESTEPS, "int64", (), 0, context, data.draw(st.booleans()), column=False))
    outputs.append(Output("m", MASK, "float32", (), 0, context, data.draw(st.booleans()), column=False))
    with tempfile.TemporaryDirectory() as folder:
        dataset = feed_data.convert_episodes(episodes, Path(folder) / "dataset", shard_bytes=1024)
        collected = collect(dataset, outputs, windows)
        timeline = [np.arange(length) for length in lengths]
        ones = [np.ones(length, np.float32) for length in lengths]
        sources = [[episode[name] for episode in episodes] for name in names] + [timeline, ones]
        valid = 0
        for output, column in zip(outputs, sources, strict=True):
            same_bits(collected.arrays[output.key], expected_rows(column, windows, output))
            places = ref.valid_places(lengths, windows, output.first, output.first + output.width)
            valid += int(places.sum()) * output.step_bytes
        assert collected.padded_bytes == sum(array.nbytes for array in collected.arrays.values())
        assert collected.valid_bytes == valid


def test_masks_of_either_side():
    episodes = make_episodes([3, 5], {"x": ("float32", ())}, 0)
    windows = [(0, 0, 3), (0, 2, 1), (1, 1, 4)]
    outputs = [
        Output("valid", MASK, "bool", (), 0, 4, column=False),
        Output("valid_left", MASK, "float64", (), 0, 4, True, column=False),
    ]
    with tempfile.TemporaryDirectory() as folder:
        dataset = feed_data.convert_episodes(episodes, Path(folder) / "dataset")
        arrays = collect(dataset, outputs, windows).arrays
        assert arrays["valid"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
        assert arrays["valid_left"].tolist() == [[0, 1, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1]]


def test_fewer_rows_than_the_collector_was_made_for(wide, wide_episodes):
    name = "x.int16.3"
    output = Output("x", name, "int16", (3,), 0, 4)
    collector = Collector([CollectSource(wide.store.reader(), wide.schema, (output,))], 10, reuse=True)
    column = [episode[name] for episode in wide_episodes]
    for windows in ([(5, 0, 4)] * 10, [(3, 15, 2)], [], [(8, 30, 3)] * 7):
        got = collector(windows_of(windows))
        same_bits(got.arrays["x"], expected_rows(column, windows, output))


def test_outputs_are_aligned_and_do_not_overlap(wide):
    outputs = [Output(str(i), name, *COLUMNS[name], 0, 3) for i, name in enumerate(COLUMNS)]
    arrays = collect(wide, outputs, all_windows(LENGTHS, 3)).arrays
    spans = sorted((array.__array_interface__["data"][0], array.nbytes) for array in arrays.values())
    assert all(address % 256 == 0 for address, _ in spans)
    assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(spans))


def address_of(memory):
    return memory.ctypes.data


class TestBufferPool:
    def test_a_lease_is_aligned_writable_and_of_the_given_size(self):
        for reuse in (True, False):
            buffer, address = BufferPool(1000, address_of, reuse=reuse).lease()
            assert (buffer.dtype, buffer.shape, buffer.flags.writeable) == (np.uint8, (1000,), True)
            assert buffer.ctypes.data % 256 == 0
            assert address == buffer.ctypes.data

    def test_a_buffer_comes_back_when_its_last_view_dies_and_not_before(self):
        pool = BufferPool(1000, address_of, reuse=True)
        buffer, address = pool.lease()
        view = buffer[10:20].view(np.int16)
        del buffer
        second, other = pool.lease()
        assert second.ctypes.data == other != address
        del view
        assert pool.lease()[0].ctypes.data == address

    @pytest.mark.parametrize("leased", [lambda lease: lease, lambda lease: lease.base], ids=["array", "base"])
    def test_arrays_and_tensors_of_any_form_keep_the_lease(self, leased):
        pool = BufferPool(1024, address_of, reuse=True)
        for keep in (
            lambda array: array,
            lambda array: array[1:, ::2],
            torch.from_numpy,
            lambda array: torch.from_numpy(array)[2:].numpy(),
            lambda array: torch.from_numpy(array).untyped_storage(),
            memoryview,
        ):
            buffer, address = pool.lease()
            kept = keep(np.ndarray((4, 8), np.float32, leased(buffer), 256))
            del buffer
            assert pool.lease()[1] != address
            del kept
            both = [pool.lease(), pool.lease()]
            assert address in [each for _, each in both]
            del both

    def test_the_buffer_used_last_is_the_next_one(self):
        pool = BufferPool(64, address_of, reuse=True)
        leases = [pool.lease()[0] for _ in range(3)]
        addresses = [lease.ctypes.data for lease in leases]
        while leases:
            leases.pop(0)
        assert [lease.ctypes.data for lease, _ in [pool.lease(), pool.lease()]] == addresses[:0:-1]

    def test_without_reuse_nothing_is_kept(self):
        pool = BufferPool(64, address_of, reuse=False)
        first, _ = pool.lease()
        assert first.base is not None
        assert not np.shares_memory(first, pool.lease()[0])


def test_the_reader_maps_only_the_shards_it_needs(wide):
    dataset = gear_data.open(wide.path)
    reader = dataset.store.reader()
    shard = int(dataset.episodes["shard"][5])
    output = Output("x", "x.int8.3", "int8", (3,), 0, 4)
    Collector([CollectSource(reader, dataset.schema, (output,))], 1, reuse=True)(windows_of([(5, 0, 4)]))
    mapped = np.flatnonzero(dataset.store.shards.addresses[:, 0])
    assert mapped.tolist() == [shard]


def test_sizes_that_overflow_are_refused(wide):
    """2^60 steps of 8 bytes in 4 rows are 2^65 bytes: 0 in int64."""
    output = Output("timesteps", TIMESTEPS, "int64", (), 0, 1 << 60, column=False)
    with pytest.raises(InvalidArgumentError, match="34,359,738,368 GiB"):
        Collector([CollectSource(wide.store.reader(), wide.schema, (output,))], 4, reuse=True)
