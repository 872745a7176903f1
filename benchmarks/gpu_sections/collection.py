"""Sections (b) and (c): collection, compared with the machine's ceilings.

Columns lie in pinned and in device memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.buffers import ALIGNMENT
from gear_data.collection.collector import Collector
from gear_data.collection.output import MASK, TIMESTEPS, Output
from gear_data.collection.plan import CollectSource
from gear_data.collection.reader import OutputBuffers
from gear_data.kernels import cpu
from gear_data.kernels.cuda import launch_arguments as launches
from gear_data.kernels.output_plan import OUTPUT_PLAN, OutputPlanArray
from gear_data.schema import ColumnSpec, Schema
from gear_data.selection.windows import Windows
from gpu_sections.device import Bytes, Gpu, fill_raw
from gpu_sections.report import Row, Section

ROW_BYTES = (44, 256, 1024, 4096, 16384, 65536)
CONTEXTS = (20, 100, 1000)
BATCHES = (32, 256, 1024, 4096)
#: Ratios count for batches of at least this many bytes. In smaller batches the time of a launch dominates.
LARGE = {"pinned": 16 << 20, "device": 64 << 20}
#: The number of windows of a batch that are compared with the CPU's.
CHECKED_WINDOWS = 64
#: Sets of windows, each with its own outputs, that launches use in turn. Together they are four times the L2, or more,
#: so that no launch finds its rows or its outputs in the cache.
LEAST_SETS, MOST_SETS, CACHES = 4, 10_000, 4
STEPS_AN_EPISODE = 2000
#: Bytes of the columns, many times the size of any cache. A batch has at most a quarter of them.
SOURCE_BYTES, QUICK_SOURCE_BYTES = 2 << 30, 1 << 30


@dataclass(frozen=True)
class CollectCase:
    """A batch of one column.

    row_bytes 0 stands for the batch of a Decision Transformer, which reads 60 bytes for each step.
    """

    row_bytes: int
    context: int
    batch: int

    @property
    def name(self) -> str:
        rows = f"{self.row_bytes} B" if self.row_bytes else "DT columns"
        return f"{rows} x {self.context} x {self.batch}"

    @property
    def nbytes(self) -> int:
        """The bytes of the batch."""
        return self.batch * self.context * (self.row_bytes or sum(output.step_bytes for output in dt_outputs(1)))

    def schema(self) -> Schema:
        if self.row_bytes:
            return Schema((ColumnSpec("rows", "uint8", (self.row_bytes,)),))
        return Schema(
            (
                ColumnSpec("observations", "float32", (11,)),
                ColumnSpec("actions", "float32", (3,)),
                ColumnSpec("rewards", "float32", ()),
            )
        )

    def outputs(self) -> tuple[Output, ...]:
        if self.row_bytes:
            return (Output("rows", "rows", "uint8", (self.row_bytes,), 0, self.context),)
        return dt_outputs(self.context)


def dt_outputs(context: int) -> tuple[Output, ...]:
    """Returns the outputs of a Decision Transformer: normalised states, left padding."""
    mean, scale = np.linspace(-1, 1, 11), np.linspace(0.5, 2, 11)
    left: dict[str, Any] = {"first": 0, "width": context, "pad_left": True}
    return (
        Output("states", "observations", "float32", (11,), mean=mean, scale=scale, **left),
        Output("actions", "actions", "float32", (3,), fill=-10.0, **left),
        Output("rewards", "rewards", "float32", (1,), **left),
        Output("timesteps", TIMESTEPS, "int64", (), column=False, **left),
        Output("attention_mask", MASK, "float32", (), column=False, **left),
    )


def all_cases(most_bytes: int, quick: bool) -> list[CollectCase]:
    """Returns the cases with at most this many bytes in a batch, small rows first."""
    rows = (44, 1024, 65536) if quick else ROW_BYTES
    contexts, batches = ((100,), (32, 1024)) if quick else (CONTEXTS, BATCHES)
    grid = [CollectCase(row, context, batch) for row in (0, *rows) for context in contexts for batch in batches]
    return [case for case in grid if case.nbytes <= most_bytes]


def target(where: str, case: CollectCase) -> float | None:
    """Returns the target share of the ceiling, or None without a target."""
    if case.nbytes < LARGE[where] or not case.row_bytes:
        return None
    if where == "device":
        return 0.75 if case.row_bytes >= 1024 else None
    if case.row_bytes >= 1024:
        return 0.9
    return 0.8 if (case.row_bytes, case.context) == (44, 100) else None


class HostSteps:
    """Columns of equally long episodes, end to end in one host buffer.

    This is a `ColumnReader` on the CPU. It keeps the plan of the last read.
    """

    def __init__(self, raw: Bytes, schema: Schema) -> None:
        step_bytes = sum(column.row_bytes for column in schema.columns)
        self.episodes = max(1, (len(raw) - 256 * len(schema.columns)) // (step_bytes * STEPS_AN_EPISODE))
        steps = min(self.episodes * STEPS_AN_EPISODE, (len(raw) - 256 * len(schema.columns)) // step_bytes)
        self.lengths = np.full(self.episodes, steps // self.episodes, np.int64)
        self.bases = np.cumsum(self.lengths) - self.lengths
        self.shards = np.zeros(self.episodes, np.int64)
        sizes = [-(-column.row_bytes * steps // 256) * 256 for column in schema.columns]
        #: int64 [1, columns], offset of each column in the buffer.
        self.places = np.array([np.cumsum([0, *sizes[:-1]])], np.int64)
        self.raw = raw
        self.plan: OutputPlanArray = np.zeros(0, OUTPUT_PLAN)

    def final_address(self, column: str) -> int:
        return 0

    def values(self, column: int, windows: Windows) -> Any:
        raise NotImplementedError

    def read(self, windows: Windows, places: OutputBuffers) -> None:
        self.plan = places.plan
        self.collect(windows, places.addresses)

    def collect(self, windows: Windows, outputs: npt.NDArray[np.int64]) -> None:
        """Fills arrays at these addresses on the CPU."""
        none = np.empty(0, np.int64)
        cpu.collect.collect(
            windows.episode_id, windows.start, windows.length, none, self.shards, self.bases, self.lengths, none,
            self.places + self.raw.ctypes.data, self.plan, outputs, max(1, len(windows)), np.zeros(1, np.int64),
        )  # fmt: skip

    def draw(self, rng: np.random.Generator, count: int, context: int) -> Windows:
        """Draws whole windows anywhere."""
        length = int(self.lengths[0])
        context = min(context, length)
        return Windows(
            rng.integers(0, self.episodes, count),
            rng.integers(0, length - context + 1, count),
            np.full(count, context, np.int64),
        )


class GpuCollection:
    """A batch that the GPU collects repeatedly, of changing sets of windows.

    Args:
        raw: host memory.
        base: address of the same bytes for the GPU: of `raw`, or of a copy in GPU memory.
        pinned: whether `base` is in pinned memory.
        least_sets: the fewest sets of windows.
        in_order: whether the windows of a set are in the order of their addresses.
    """

    def __init__(
        self,
        gpu: Gpu,
        raw: Bytes,
        base: int,
        case: CollectCase,
        *,
        pinned: bool,
        least_sets: int = LEAST_SETS,
        in_order: bool = False,
    ) -> None:
        self.gpu, self.case, self.outputs = gpu, case, case.outputs()
        schema = case.schema()
        self.steps = HostSteps(raw, schema)
        rng = np.random.default_rng(case.row_bytes)
        count = min(MOST_SETS, max(least_sets, -(-CACHES * gpu.l2_bytes // case.nbytes)))
        self.sets = [self.steps.draw(rng, case.batch, case.context) for _ in range(count)]
        if in_order:
            self.sets = [windows[np.lexsort((windows.start, windows.episode_id))] for windows in self.sets]
        # The CPU's batch. The read also records the plan, whose templates live as long as the collector.
        self._collector = Collector([CollectSource(self.steps, schema, self.outputs)], CHECKED_WINDOWS, reuse=True)
        first = self.sets[0][np.arange(min(CHECKED_WINDOWS, case.batch))]
        self._expected = self._collector(first).arrays
        plan = self.steps.plan.copy()
        for buffer in launches.plan_buffers(self.steps.plan):
            template = (np.ctypeslib.ctypes.c_uint8 * buffer.nbytes).from_address(buffer.address)
            plan[buffer.field][buffer.output] = gpu.put(np.frombuffer(template, np.uint8))
        pieces = launches.piece_counts(plan, gpu.tuning)
        sizes = [-(-self._output_bytes(output) // ALIGNMENT) * ALIGNMENT for output in self.outputs]
        places, self._stride = np.cumsum([0, *sizes[:-1]]), sum(sizes)
        self._memory = gpu.device(self._stride * count)
        #: Addresses of the outputs, int64 [sets, outputs].
        self.targets = self._memory + self._stride * np.arange(count)[:, None] + places
        self._plan = launches.PlanTables(gpu.put(plan), len(plan), gpu.put(places), gpu.put(pieces), int(pieces[-1]))
        self._tables = launches.EpisodeTables(
            gpu.put(self.steps.shards), gpu.put(self.steps.bases), gpu.put(self.steps.lengths), 0,
            gpu.put(self.steps.places + base), len(schema.columns), pinned,
        )  # fmt: skip
        windows = gpu.put(np.stack([rows_of(windows) for windows in self.sets]))
        #: Addresses of int64 [3, batch] each.
        self.windows = [windows + 24 * case.batch * number for number in range(count)]

    def _output_bytes(self, output: Output) -> int:
        return self.case.batch * output.width * output.step_bytes

    def launch(self, number: int) -> None:
        rows = launches.WindowRows.drawn(self.windows[number], self.case.batch)
        launches.collect(self.gpu, self._tables, self._plan, rows, self._memory + self._stride * number)

    def calls(self) -> list[Callable[[], None]]:
        return [partial(self.launch, number) for number in range(len(self.sets))]

    def check(self) -> None:
        """Raises RuntimeError if the first windows' rows differ from the CPU's."""
        for output, address in zip(self.outputs, self.targets[0].tolist(), strict=True):
            self.gpu.fill(address, 0xA5, self._output_bytes(output))
        self.launch(0)
        for output, address in zip(self.outputs, self.targets[0].tolist(), strict=True):
            expected = self._expected[output.key]
            got = self.gpu.get(address, expected.shape, expected.dtype)
            if got.tobytes() != expected.tobytes():
                raise RuntimeError(f"{self.case.name}: {output.key} differs from the CPU's batch")


def rows_of(windows: Windows) -> npt.NDArray[np.int64]:
    return np.stack([windows.episode_id, windows.start, windows.length])


def collection(gpu: Gpu, where: str, ceiling: float, empty: float, quick: bool, left: Callable[[], float]) -> Section:
    """Runs (b) for `pinned`, (c) for `device`.

    Args:
        ceiling: bytes per second of kernels that read pinned memory, or of copies within the device.
        empty: seconds of an empty launch.
        left: returns the seconds that are left for the section.
    """
    size = QUICK_SOURCE_BYTES if quick else SOURCE_BYTES
    section = Section([], facts={"source_bytes": size})
    with gpu.scope():
        host = gpu.host(size)
        raw, base = host.data, host.address
        if where == "device":
            base = gpu.device(size)
            gpu.copy(base, host.address, size)
        for case in all_cases(size // 4, quick):
            if left() < 5:
                section.left_out.append(case.name)
                continue
            section.rows.append(measure(gpu, raw, base, case, where, ceiling, empty))
    if where == "pinned":
        section.rows += _allocated(gpu, size, ceiling, empty, quick, left, section)
    return section


def measure(gpu: Gpu, raw: Bytes, base: int, case: CollectCase, where: str, ceiling: float, empty: float) -> Row:
    large = case.nbytes >= LARGE[where]
    with gpu.scope():
        made = GpuCollection(gpu, raw, base, case, pinned=where == "pinned")
        made.check()
        seconds = gpu.seconds(made.calls())
        in_graph = None if large else gpu.graph_seconds(made.calls())
    values = {
        "MiB": case.nbytes / 2**20,
        "us": seconds * 1e6,
        "us in a graph": None if in_graph is None else in_graph * 1e6,
        "empty launches": seconds / empty,
        "GB/s": case.nbytes / (in_graph or seconds) / 1e9,
    }
    return Row(case.name, values, case.nbytes / seconds / ceiling if large else None, target(where, case))


def _allocated(
    gpu: Gpu, size: int, ceiling: float, empty: float, quick: bool, left: Callable[[], float], section: Section
) -> Sequence[Row]:
    """Measures a few cases with memory that CUDA allocated.

    The comparison shows whether registered pages cost time.
    """
    rows = []
    with gpu.scope():
        raw = gpu.pinned(size)
        fill_raw(raw)
        for case in (CollectCase(44, 100, 4096), CollectCase(1024, 100, 1024), CollectCase(65536, 20, 256)):
            if case.nbytes > size // 4 or left() < 5:
                section.left_out.append(f"{case.name}, allocated")
                continue
            row = measure(gpu, raw, raw.ctypes.data, case, "pinned", ceiling, empty)
            rows.append(Row(f"{row.name}, allocated", row.values, row.ratio))
    return rows
