"""Checks that `gear_collect` writes the CPU kernel's bytes, on any runner.

Both kernels read the same plan.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gear_data.collection.collector import Collector
from gear_data.collection.output import MASK, TIMESTEPS, NextState, Output, Padding
from gear_data.collection.plan import CollectSource
from gear_data.collection.reader import OutputBuffers
from gear_data.kernels import cpu
from gear_data.kernels.cuda.launch_arguments import (
    EpisodeTables,
    PlanTables,
    WindowRows,
    collect,
    piece_counts,
    plan_buffers,
)
from gear_data.kernels.output_plan import TIMESTEP_TYPES
from gear_data.residency.reader import read_only
from gear_data.schema import DTYPES, ColumnSpec, Schema
from gear_data.selection.windows import Windows
from tests.support.cuda.runner import Runner

#: Bytes of a row by dtype and shape: 1, 3, 11, 44, 68, 1500 and others.
LAYOUTS = [
    ("uint8", ()), ("uint8", (3,)), ("uint8", (11,)), ("float32", (11,)), ("float32", (17,)), ("uint8", (1500,)),
    ("float32", (375,)), ("float64", (2, 3)), ("int16", (5,)), ("float16", (7,)), ("float32", (256,)), ("bool", (2,)),
]  # fmt: skip
NUMBERS = [dtype for dtype in DTYPES if dtype != "bool"]


@dataclass(frozen=True)
class Launch:
    blocks: int = 3
    #: Bytes from a multiple of `align` to each column's first byte. Columns of a mapped Arrow file may be at 8.
    offset: int = 0
    align: int = 256
    row_of_window: tuple[int, ...] | None = None
    #: Whether the kernel reads the windows in another order.
    ordered: bool = False


@dataclass
class Columns:
    """Episodes in shards, and a `ColumnReader` that reads them on both processors.

    The device's batch is kept in `got`.
    """

    runner: Runner
    specs: dict[str, tuple[str, tuple[int, ...]]]
    lengths: list[int]
    shard_of: list[int]
    launch: Launch = Launch()
    seed: int = 0
    finals_of: tuple[int, ...] = ()
    outputs: tuple[Output, ...] = ()
    got: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.schema = Schema(tuple(ColumnSpec(name, dtype, shape) for name, (dtype, shape) in self.specs.items()))
        self.shards = np.array(self.shard_of, np.int64)
        self.bases = np.zeros(len(self.lengths), np.int64)
        steps = [0] * (max(self.shard_of, default=0) + 1)
        for episode, shard in enumerate(self.shard_of):
            self.bases[episode] = steps[shard]
            steps[shard] += self.lengths[episode]
        self.columns = [
            [values(rng, spec.numpy_dtype, (count, *spec.shape)) for spec in self.schema.columns] for count in steps
        ]
        self.addresses = np.array([[array.ctypes.data for array in shard] for shard in self.columns], np.int64)
        self.final_columns = {
            spec.name: values(rng, spec.numpy_dtype, (len(self.finals_of), *spec.shape)) for spec in self.schema.columns
        }
        self.finals = np.full(len(self.lengths), -1, np.int64)
        self.finals[list(self.finals_of)] = np.arange(len(self.finals_of))

    def final_address(self, column: str) -> int:
        return self.final_columns[column].ctypes.data if self.finals_of else 0

    def values(self, column: int, windows: Windows) -> Any:
        raise NotImplementedError

    def read(self, windows: Windows, buffers: OutputBuffers) -> None:
        cpu.collect.collect(
            windows.episode_id, windows.start, windows.length, buffers.row_of_window, read_only(self.shards),
            read_only(self.bases), read_only(np.array(self.lengths, np.int64)), self.finals, self.addresses,
            buffers.plan, buffers.addresses, buffers.windows_per_batch, buffers.valid,
        )  # fmt: skip
        self._read_on_device(windows, buffers)

    def _put(self, array: np.ndarray) -> int:
        return self.runner.put(array)

    def _put_bytes(self, address: int, nbytes: int) -> int:
        return self._put(np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * nbytes).from_address(address)))

    def _put_column(self, array: np.ndarray) -> int:
        raw = np.zeros(self.launch.offset + array.nbytes, np.uint8)
        raw[self.launch.offset :] = array.reshape(-1).view(np.uint8)
        return self.runner.put(raw, align=self.launch.align) + self.launch.offset

    def _read_on_device(self, windows: Windows, buffers: OutputBuffers) -> None:
        plan = buffers.plan.copy()
        for buffer in plan_buffers(buffers.plan):
            plan[buffer.field][buffer.output] = self._put_bytes(buffer.address, buffer.nbytes)
        for number, output in enumerate(self.outputs):
            if buffers.plan["finals"][number]:
                column = self.final_columns[output.source if output.column else str(output.mask_column)]
                plan["finals"][number] = self._put_column(column)
        addresses = np.array([[self._put_column(array) for array in shard] for shard in self.columns], np.int64)
        rows = len(windows) if self.launch.row_of_window is None else max(self.launch.row_of_window, default=-1) + 1
        # Bytes that the kernel does not write stay 0xA5.
        targets = [
            self._put(np.full(rows * output.width * output.step_bytes, 0xA5, np.uint8)) for output in self.outputs
        ]
        row_of_window = (
            0 if self.launch.row_of_window is None else self._put(np.array(self.launch.row_of_window, np.int64))
        )
        pieces = piece_counts(plan)
        self.runner.blocks = self.launch.blocks
        collect(
            self.runner,
            EpisodeTables(
                *map(self._put, (self.shards, self.bases, np.array(self.lengths, np.int64), self.finals, addresses)),
                addresses.shape[1],
            ),
            PlanTables(
                self._put(plan), len(plan), self._put(np.array(targets, np.int64)), self._put(pieces), int(pieces[-1])
            ),
            WindowRows(
                *map(self._put, (windows.episode_id, windows.start, windows.length)),
                len(windows),
                self._put(np.random.default_rng(0).permutation(len(windows))) if self.launch.ordered else 0,
            ),
            # The plan holds the arrays' addresses, as if their memory began at 0.
            0,
            row_of_window,
        )
        for output, address in zip(self.outputs, targets, strict=True):
            shape = (rows, *output.shape) if output.squeeze_time else (rows, output.width, *output.shape)
            self.got[output.key] = self.runner.get(address, shape, output.array_dtype)


def values(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Draws values of any bits: NaNs, infinities, subnormals and extremes."""
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(np.bool_)
    count = int(np.prod(shape, dtype=np.int64))
    raw = rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)
    if dtype.kind == "f":
        usual = rng.normal(0, 3, count).astype(dtype)
        special = rng.choice(np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], dtype), count)
        which = rng.integers(0, 10, count)
        raw = np.where(which < 7, usual, np.where(which < 9, raw, special))
    return raw.reshape(shape)


def check(columns: Columns, outputs: list[Output], rows: list[tuple[int, int, int]], batches: int = 1) -> None:
    columns.outputs = tuple(outputs)
    episode, start, length = np.array(rows, np.int64).reshape(-1, 3).T.copy()
    windows = Windows(episode, start, length)
    collector = Collector(
        [CollectSource(columns, columns.schema, columns.outputs)], len(rows), batches=batches, reuse=True
    )
    try:
        with np.errstate(all="ignore"):
            collected = collector.collect_together(windows, batches)
    finally:
        columns.runner.clear()
    windows_per_batch = len(rows) // batches
    for number, batch in enumerate(collected):
        for key, expected in batch.arrays.items():
            got = columns.got[key]
            if columns.launch.row_of_window is not None:
                got = got[list(columns.launch.row_of_window)]
            got = got[number * windows_per_batch : (number + 1) * windows_per_batch]
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
            same = got.tobytes() == expected.tobytes()
            assert same, f"{key}\n{np.argwhere(got != expected)[:5]}\n{got}\n{expected}"


def windows_of(lengths: list[int], context: int) -> list[tuple[int, int, int]]:
    """Returns windows at the beginning and the end of episodes, and some between."""
    return [
        (episode, start, min(context, length - start))
        for episode, length in enumerate(lengths)
        for start in sorted({0, 1, length // 2, length - context, length - 1} & set(range(length)))
    ]


CONVERSIONS = list(itertools.product(NUMBERS, ("float32", "float64", "float16", "bfloat16")))


def converted(key: str, name: str, shape: tuple[int, ...], out: str, first: int, width: int, **options: Any) -> Output:
    half = out if out in ("float16", "bfloat16") else None
    return Output(key, name, "float32" if half else out, shape, first, width, half=half, **options)


@st.composite
def outputs_of(draw: Any, key: str, name: str, dtype: str, shape: tuple[int, ...]) -> Output:
    options: dict[str, Any] = {
        "pad_left": draw(st.booleans()),
        "fill": draw(st.sampled_from([0, 1])),
        "within_window": draw(st.booleans()),
        "padding": draw(st.sampled_from([Padding.FILL, Padding.EDGE, Padding.FIRST])),
        "shift": draw(st.sampled_from([0, 1, -1])),
    }
    first, width = draw(st.integers(-9, 9)), draw(st.integers(1, 12))
    kind = draw(st.sampled_from(["copy", "convert", "normalise", "discount"]))
    out = draw(st.sampled_from(["float32", "float64", "float16", "bfloat16"]))
    size = int(np.prod(shape, dtype=np.int64))
    if kind == "copy" or dtype == "bool":
        return Output(key, name, dtype, shape, first, width, **options)
    if kind == "normalise":
        rng = np.random.default_rng(draw(st.integers(0, 9)))
        options["mean"] = rng.normal(0, 9, draw(st.sampled_from([1, size])))
        options["scale"] = np.array([np.inf]) if draw(st.integers(0, 9)) == 0 else rng.normal(0, 9, size)
    if kind == "discount":
        options["shift"] = 0
        options["discounts"] = tuple(0.9**j for j in range(draw(st.integers(1, 5))))
    return converted(key, name, shape, out, first, width, **options)


@st.composite
def batches(draw: Any) -> tuple[dict[str, Any], list[Output], list[tuple[int, int, int]]]:
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    layouts = [("float32", (11,)), *draw(st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=3))]
    specs = {f"x{number}": layout for number, layout in enumerate(layouts)}
    outputs = [
        draw(outputs_of(f"{name} {again}", name, *layout)) for name, layout in specs.items() for again in range(2)
    ]
    outputs.append(
        Output(
            "steps", TIMESTEPS, draw(st.sampled_from(TIMESTEP_TYPES)), (), draw(st.integers(-3, 3)), 7,
            draw(st.booleans()), column=False, within_window=draw(st.booleans()), origin=draw(st.integers(0, 1)),
            padding=draw(st.sampled_from(list(Padding))), fill=draw(st.sampled_from([0, 9])),
        )
    )  # fmt: skip
    outputs.append(
        Output(
            "mask", MASK, draw(st.sampled_from(["bool", "float32", "int64"])), draw(st.sampled_from([(), (3,)])),
            draw(st.integers(-3, 3)), draw(st.integers(1, 9)), draw(st.booleans()), column=False,
            padding=draw(st.sampled_from([Padding.FILL, Padding.EDGE])), shift=draw(st.sampled_from([0, 1])),
            mask_column=draw(st.sampled_from([None, "x0"])), fill=draw(st.sampled_from([0, 1])),
        )
    )  # fmt: skip
    buffers = [(e, s) for e, length in enumerate(lengths) for s in range(length)]
    drawn = draw(st.lists(st.sampled_from(buffers), min_size=2, max_size=8))
    context = draw(st.integers(1, 20))
    columns = {
        "specs": specs,
        "lengths": lengths,
        "shard_of": [draw(st.integers(0, 2)) for _ in lengths],
        "seed": draw(st.integers(0, 999)),
        "finals_of": tuple(e for e in range(len(lengths)) if draw(st.booleans())),
        "launch": Launch(
            draw(st.integers(1, 9)),
            draw(st.sampled_from([0, 8])),
            draw(st.sampled_from([16, 256])),
            ordered=draw(st.booleans()),
        ),
    }
    return columns, outputs, [(e, s, min(context, lengths[e] - s)) for e, s in drawn]


class CollectChecks:
    """Checks for any fixture `runner`."""

    @pytest.mark.parametrize(("dtype", "shape"), LAYOUTS, ids=str)
    def test_rows_of_any_size_from_odd_starts(self, runner: Runner, dtype: str, shape: tuple[int, ...]) -> None:
        lengths = [1, 7, 40, 2, 33]
        columns = Columns(runner, {"x": (dtype, shape)}, lengths, [0, 0, 1, 1, 0])
        outputs = [
            Output("right", "x", dtype, shape, 0, 9),
            Output("left", "x", dtype, shape, 0, 9, pad_left=True, fill=1),
            Output("around", "x", dtype, shape, -4, 9, within_window=False, padding=Padding.EDGE),
            Output("one", "x", dtype, shape, 0, 1, squeeze_time=True),
        ]
        check(columns, outputs, windows_of(lengths, 9))

    @pytest.mark.parametrize(("source", "out"), CONVERSIONS, ids=str)
    def test_casts_and_normalisation_give_the_same_bits(self, runner: Runner, source: str, out: str) -> None:
        lengths = [3, 30, 1, 90]
        columns = Columns(runner, {"x": (source, (3,))}, lengths, [0, 0, 1, 0], seed=len(source + out))
        rng = np.random.default_rng(1)
        mean, scale = rng.normal(0, 100, 3), rng.normal(0, 3, 3)
        outputs = [
            converted("cast", "x", (3,), out, 0, 20, fill=1),
            converted("one", "x", (3,), out, 0, 20, mean=mean[:1], scale=scale[:1]),
            converted("own", "x", (3,), out, 0, 20, pad_left=True, fill=-7.25, mean=mean, scale=scale),
            converted("edge", "x", (3,), out, 0, 20, padding=Padding.EDGE, mean=mean, scale=scale),
            converted("nan", "x", (3,), out, 0, 20, mean=np.array([np.nan]), scale=np.array([np.inf])),
            converted("made", "x", (3,), out, 0, 20, mean=np.array([np.inf]), scale=np.array([0.0])),
        ]
        if source == out:
            outputs.pop(0)
        check(columns, outputs, windows_of(lengths, 20))

    @pytest.mark.parametrize("most", [1, 2, 5, 40])
    @pytest.mark.parametrize("final_counts", [False, True])
    def test_next_states(self, runner: Runner, most: int, final_counts: bool) -> None:
        lengths = [1, 7, 40, 2, 33, 1]
        specs = {"x": ("float32", (11,)), "r": ("int16", ()), "ends": ("bool", ())}
        columns = Columns(runner, specs, lengths, [0, 0, 1, 1, 0, 1], finals_of=(0, 2, 3))
        for shard, flags in enumerate(columns.columns):
            flags[2][:] = np.random.default_rng(shard).integers(0, 6, len(flags[2])) == 0
        state = NextState(most, "ends", "x" if final_counts else None)
        hop = {"next_state": state, "squeeze_time": True}
        outputs = [
            Output("copy", "x", "float32", (11,), 0, 1, shift=1, within_window=False, **hop),
            Output("stack", "x", "float32", (11,), -3, 4, shift=1, within_window=False, next_state=state,
                   padding=Padding.EDGE),
            converted("half", "x", (11,), "bfloat16", 0, 2, shift=1, within_window=False, next_state=state),
            converted("sum", "r", (), "float32", 0, 1, discounts=tuple(0.9**j for j in range(most)), **hop),
            Output("table", "ends", "float64", (), 0, 1, table=np.arange(2 * most + 2).reshape(2, -1), **hop),
            Output("flag", "ends", "bool", (), 0, 1, table=[[0], [1]] * np.ones(most + 1), **hop),
            Output("mask", MASK, "bool", (), -1, 3, column=False, shift=1, mask_column="x", next_state=state),
            Output("now", "x", "float32", (11,), 0, 1, squeeze_time=True),
        ]  # fmt: skip
        check(columns, outputs, [(e, s, 1) for e, length in enumerate(lengths) for s in range(length)], batches=4)

    def test_subnormal_numbers_are_no_zeros(self, runner: Runner) -> None:
        columns = Columns(runner, {"x": ("float32", (256,)), "y": ("float64", (256,))}, [32], [0], Launch(2))
        rng = np.random.default_rng(7)
        small = rng.integers(0, 1 << 24, (32, 256), np.uint32)  # around the smallest normal value
        small[0, :4] = 0, 1, 0x7FFFFF, 0x800000
        columns.columns[0][0][:] = (small | (rng.integers(0, 2, small.shape, np.uint32) << 31)).view(np.float32)
        # Halves of the smallest float32, and values close to them.
        halves = rng.integers(-(1 << 25), 1 << 25, (32, 256)) + rng.choice([-1e-9, 0.0, 1e-9], (32, 256))
        columns.columns[0][1][:] = halves * 2.0**-150
        outputs = [converted(f"x {out}", "x", (256,), out, 0, 32) for out in ("float64", "bfloat16")]
        outputs += [converted(f"y {out}", "y", (256,), out, 0, 32) for out in ("float32", "bfloat16", "float16")]
        outputs.append(converted("same", "x", (256,), "float32", 0, 32, mean=np.zeros(1), scale=np.ones(1)))
        check(columns, outputs, [(0, 0, 32)])

    def test_every_float16_value(self, runner: Runner) -> None:
        columns = Columns(runner, {"x": ("float16", (64,))}, [1024], [0], Launch(3))
        columns.columns[0][0][:] = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(-1, 64)
        outputs = [converted(out, "x", (64,), out, 0, 1024) for out in ("float32", "float64", "bfloat16")]
        # The values stay the same through float32.
        outputs.append(converted("back", "x", (64,), "float16", 0, 1024))
        check(columns, outputs, [(0, 0, 1024)])

    def test_float32_rounds_to_halves_as_on_the_cpu(self, runner: Runner) -> None:
        columns = Columns(runner, {"x": ("float32", (128,))}, [256], [0], Launch(2))
        rng = np.random.default_rng(5)
        bits = rng.integers(0, 1 << 32, (256, 128), np.uint32)
        # Exponents around the limits of float16 and bfloat16, and ties.
        bits[128:] = (bits[128:] & 0x807FFFFF) | (rng.integers(96, 145, (128, 128), np.uint32) << 23)
        bits[192:] &= 0xFFFFF000
        columns.columns[0][0][:] = bits.view(np.float32)
        check(columns, [converted(out, "x", (128,), out, 0, 256) for out in ("float16", "bfloat16")], [(0, 0, 256)])

    @pytest.mark.parametrize("row", [1, 3, 11, 44, 68, 1500])
    def test_windows_of_several_pieces(self, runner: Runner, row: int) -> None:
        context = 40_000 // row
        lengths = [5, context + 3, context // 2]
        columns = Columns(
            runner, {"x": ("uint8", (row,)), "y": ("float64", (row,))}, lengths, [0, 0, 0], Launch(2, align=16)
        )
        outputs = [
            Output("right", "x", "uint8", (row,), 0, context),
            Output("left", "x", "uint8", (row,), 1, context, pad_left=True, fill=3),
            converted("own", "x", (row,), "float32", 0, context, mean=np.arange(row), scale=np.arange(row) + 0.25),
            converted("wide", "y", (row,), "float32", 0, 9, mean=np.arange(row), scale=np.arange(row) + 0.25),
            Output("steps", TIMESTEPS, "int64", (), -2, context, column=False, padding=Padding.EXTRAPOLATE),
        ]
        check(columns, outputs, [(1, 1, context), (1, 3, context), (2, 0, context // 2), (0, 2, 3)])

    def test_edges_are_read_and_stored_by_whole_words_of_the_window_only(self, runner: Runner) -> None:
        """Windows begin and end at every byte of a word, at both ends of a column's memory."""
        columns = Columns(runner, {"x": ("uint8", ())}, [4096], [0], Launch(align=16))
        sizes = range(33, 75)
        outputs = [Output(str(size), "x", "uint8", (), 0, size) for size in sizes]
        outputs += [Output(f"{size} as float", "x", "float32", (), 0, size) for size in (1, 7, 33)]
        check(columns, outputs, [(0, start, 75) for start in (*range(17), *range(4096 - 75 - 16, 4096 - 74))])

    @pytest.mark.parametrize("apart", range(16))
    def test_source_and_target_apart_by_any_number_of_bytes(self, runner: Runner, apart: int) -> None:
        lengths = [max(1, apart), 5000]
        columns = Columns(runner, {"x": ("uint8", ())}, lengths, [0, 0], Launch(align=16))
        sizes = [33, 129, 300, 4099]
        outputs = [Output(str(size), "x", "uint8", (), 0, size) for size in sizes]
        check(columns, outputs, [(0, 0, max(1, apart)), (1, 4998, 2)] + [(1, start, 4500) for start in (0, 1, 111)])

    @pytest.mark.parametrize("padding", [Padding.FILL, Padding.EDGE, Padding.FIRST])
    @pytest.mark.parametrize("out", ["uint8", "float32"])
    def test_rows_of_the_step_after_and_the_step_before(self, runner: Runner, out: str, padding: Padding) -> None:
        lengths = [3, 8, 1, 20, 1]
        columns = Columns(runner, {"x": ("uint8", (3,))}, lengths, [0, 1, 1, 0, 0], finals_of=(0, 3, 4))
        outputs = [
            Output(
                f"{shift} {left} {within}", "x", out, (3,), first, 6, left, 7, padding=padding, within_window=within,
                shift=shift,
            )
            for shift in (1, -1)
            for left in (False, True)
            for first, within in ((0, True), (-2, False))
        ]  # fmt: skip
        check(columns, outputs, windows_of(lengths, 6))

    @pytest.mark.parametrize("padding", [Padding.FILL, Padding.EDGE, Padding.FIRST])
    def test_discounted_sums_end_with_the_episode(self, runner: Runner, padding: Padding) -> None:
        lengths = [3, 8, 1, 20, 1]
        columns = Columns(runner, {"x": ("float32", (2,))}, lengths, [0, 1, 1, 0, 0])
        outputs = [
            converted(
                f"{out} {left} {within}", "x", (2,), out, first, 6, pad_left=left, fill=7, padding=padding,
                within_window=within, discounts=(1.0, 0.5, 0.3, 0.1),
            )
            for out in ("float32", "float64", "bfloat16")
            for left in (False, True)
            for first, within in ((0, True), (-2, False))
        ]  # fmt: skip
        check(columns, outputs, windows_of(lengths, 6))

    def test_windows_fill_the_given_rows(self, runner: Runner) -> None:
        lengths = [4, 9]
        launch = Launch(row_of_window=(3, 0, 2))
        columns = Columns(runner, {"x": ("float32", (11,))}, lengths, [0, 1], launch)
        columns.outputs = (Output("x", "x", "float32", (11,), 0, 6),)
        windows = Windows(*np.array([[0, 1, 1], [1, 0, 5], [3, 6, 4]], np.int64))
        expected = Columns(runner, {"x": ("float32", (11,))}, lengths, [0, 1])
        collector = Collector([CollectSource(expected, expected.schema, columns.outputs)], 3, reuse=True)
        expected.outputs = columns.outputs
        batch = collector(windows)
        plan = collector._plan.plans[0]
        memory = np.zeros((4, 6, 11), np.float32)
        buffers = OutputBuffers(
            plan, np.array([memory.ctypes.data]), np.array(launch.row_of_window, np.int64), 3, np.zeros(1, np.int64)
        )
        columns.read(windows, buffers)
        runner.clear()
        assert columns.got["x"][[3, 0, 2]].tobytes() == batch.arrays["x"].tobytes() == memory[[3, 0, 2]].tobytes()
        assert (columns.got["x"][1].view(np.uint8) == 0xA5).all()

    def test_several_batches_and_none(self, runner: Runner) -> None:
        lengths = [4, 9, 1]
        specs = {"x": ("float32", (11,)), "y": ("uint8", (3,))}
        outputs = [Output(name, name, *spec, 0, 6) for name, spec in specs.items()]
        check(Columns(runner, specs, lengths, [0, 1, 0]), outputs, windows_of(lengths, 6)[:6], batches=3)
        check(Columns(runner, specs, lengths, [0, 1, 0]), outputs, [])

    def test_more_blocks_than_work_and_less(self, runner: Runner) -> None:
        lengths = [50, 60]
        for blocks in (1, 7, 40):
            columns = Columns(runner, {"x": ("float32", (17,))}, lengths, [0, 0], Launch(blocks))
            check(columns, [Output("x", "x", "float32", (17,), 0, 30)], windows_of(lengths, 30))

    @given(batches())
    @settings(max_examples=120, deadline=None, derandomize=True)
    def test_any_batch(self, runner: Runner, drawn: Any) -> None:
        columns, outputs, windows = drawn
        check(Columns(runner, **columns), outputs, windows)
