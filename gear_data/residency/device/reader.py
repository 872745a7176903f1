"""DeviceReader: reads the windows of one dataset into device memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.buffers import ALIGNMENT
from gear_data.kernels import cpu
from gear_data.kernels.cuda import launch_arguments as launches
from gear_data.kernels.cuda.launcher import CudaLauncher
from gear_data.kernels.output_plan import OutputPlanArray
from gear_data.residency.device.buffers import UploadBuffer
from gear_data.residency.device.columns import DeviceColumns, find_extents
from gear_data.residency.device.memory import PIECE_BYTES, DeviceBuffer, Uploader
from gear_data.residency.device.staging import StagedRows, StagingBuffer, StagingReader
from gear_data.residency.row_ranges import column_reads, row_sizes
from gear_data.selection.windows import Int64Array, Windows


@dataclass(slots=True)  # not frozen: see Windows
class LaunchArguments:
    """The arguments of a launch that depend on the windows; addresses on the device.

    Attributes:
        tables: the episode table's columns.
        windows: the windows.
        row_of_window: int64 [B], the row that each window fills; 0: window b fills row b.
        order: memory for the order of the windows; 0: they are read as they are.
    """

    tables: launches.EpisodeTables
    windows: launches.WindowRows
    row_of_window: int
    order: int = 0


class DeviceReader:
    """Reads windows of one dataset into device memory.

    Safe to call from several threads.

    Rows that a kernel cannot read in place are copied to a `StagingBuffer`. The kernel then treats each window as an
    episode: see `gear_data.residency.row_ranges`.

    Args:
        reader: reads the same columns on the CPU.
        columns: the columns that kernels read.
        plan: OUTPUT_PLAN [outputs] of a `BatchPlan`, which must live as long as this.
        offsets: int64 [outputs], the first byte of each output's array in the memory of batches.
        launcher: launches kernels on the device.

    Attributes:
        reads_in_place: whether kernels read all columns in place.
        staged_bytes: the most bytes of a `StagingBuffer` that one window needs; 0: kernels read everything in place.
        staged_parts: the most parts of a `StagingBuffer` that a batch needs.
        words: the most numbers of an `UploadBuffer` that one window needs.
    """

    def __init__(
        self,
        reader: StagingReader,
        columns: DeviceColumns,
        plan: OutputPlanArray,
        offsets: Int64Array,
        launcher: CudaLauncher,
    ) -> None:
        columns.check_process()
        self._reader, self._columns, self._plan, self._offsets = reader, columns, plan, offsets
        self._tuning = launcher.tuning
        # Some columns of a placed dataset may be pinned, but blocks for all multiprocessors also read them.
        self._pinned = columns.device is None
        extents = columns.shard, columns.first, columns.last
        self._extent = find_extents(extents, reader.shard, reader.start, reader.length)
        self._base = reader.start - columns.first[self._extent]
        self._column_reads = column_reads(plan)
        self._row_bytes = row_sizes(plan)
        self._read_columns = sorted(self._row_bytes)
        self.reads_in_place = bool(columns.addresses[:, self._read_columns].all())
        staged = [reads for reads in self._column_reads if not columns.addresses[:, reads.columns].all()]
        longest = int(reader.length.max())
        self.staged_bytes = sum(
            min(reads.max_rows, longest) * self._row_bytes[column] for reads in staged for column in reads.columns
        )
        self.staged_parts = len(self._read_columns)
        self.words = 8 + columns.addresses.shape[1]
        total, longest_output = int(reader.length.sum()), int((plan["width"] * plan["out_bytes"]).max())
        self._ordered = (
            self._pinned
            and total * sum(self._row_bytes.values()) > self._tuning.ordered_bytes
            and longest_output <= self._tuning.ordered_window
        )
        self._upload_tables()

    def _upload_tables(self) -> None:
        """Uploads everything that stays the same for all launches.

        This is the plan, the memory that it points to, the places of the arrays, and the episode table.
        """
        plan, pieces = self._plan.copy(), launches.piece_counts(self._plan, self._tuning)
        groups = launches.row_groups(self._plan)
        finals = self._reader.final_rows
        arrays: list[npt.NDArray[Any]] = [
            plan, self._offsets, pieces, groups, self._extent, self._base, self._reader.length,
            self._columns.addresses, finals, self._steps_before(),
        ]  # fmt: skip
        tables = len(arrays)
        # Arrays to which the plan points: (output, field, array).
        pointed = [(b.output, b.field, _bytes_at(b.address, b.nbytes)) for b in launches.plan_buffers(self._plan)]
        for output, address in enumerate(self._plan["finals"].tolist()):
            if address:
                pointed.append((output, "finals", self._reader.final_values(address)))
        arrays += [array for _, _, array in pointed]
        sizes = np.array([-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays], np.int64)
        self._memory = DeviceBuffer(int(sizes.sum()))
        addresses = (self._memory.address + np.cumsum(sizes) - sizes).tolist()
        for (output, field, _), address in zip(pointed, addresses[tables:], strict=True):
            plan[field][output] = address
        uploader = Uploader(min(PIECE_BYTES, int(sizes.max())))
        for array, address in zip(arrays, addresses, strict=True):
            uploader.send(array, address)
        uploader.finish()
        at_plan, at_offsets, at_pieces, at_groups, extent, base, length, columns, at_finals, places = addresses[:tables]
        self._places = launches.EpisodePlaces(places, int(self._reader.length.sum()))
        self._tables = launches.EpisodeTables(
            extent, base, length, at_finals if len(finals) else 0, columns, self._columns.addresses.shape[1],
            self._pinned,
        )  # fmt: skip
        self._plan_tables = launches.PlanTables(at_plan, len(plan), at_offsets, at_pieces, int(pieces[-1]))
        self._row_groups = at_groups, len(groups)

    def _steps_before(self) -> Int64Array:
        """Returns the steps before each episode in the order of addresses; empty if windows are not ordered."""
        if not self._ordered:
            return np.empty(0, np.int64)
        order = np.lexsort((self._base, self._extent))
        length, steps = self._reader.length[order], np.empty(len(order), np.int64)
        steps[order] = np.cumsum(length) - length
        return steps

    def count_valid(self, windows: Windows, windows_per_batch: int, valid: Int64Array) -> None:
        """Counts the bytes of valid rows.

        Args:
            windows: the windows of all batches, one batch after another.
            windows_per_batch: windows of one batch.
            valid: int64 [batches], receives the bytes of each batch.
        """
        reader = self._reader
        cpu.collect.count_valid(
            windows.episode_id,
            windows.start,
            windows.length,
            reader.length,
            reader.final_rows,
            self._plan,
            windows_per_batch,
            valid,
        )

    def prepare(
        self,
        windows: Windows,
        row_of_window: Int64Array | None,
        upload: UploadBuffer,
        staging: StagingBuffer,
    ) -> LaunchArguments:
        """Prepares a launch for windows.

        Windows go to `upload`, and rows that no kernel can read in place go to `staging`.

        Args:
            windows: of this dataset.
            row_of_window: int64 [B], the row that each window fills; None: window b fills row b.
            upload, staging: the buffers of the batch.
        """
        at_rows = 0 if row_of_window is None else upload.put(row_of_window)
        start, length = upload.put(windows.start), upload.put(windows.length)
        count = len(windows)
        if not self.reads_in_place:
            addresses = self._columns.addresses[self._extent[windows.episode_id]]
            if not addresses[:, self._read_columns].all():
                self._stage_rows(windows, addresses, staging)
                finals = self._reader.final_rows
                # Window b is episode b, whose address is the address of its shard.
                episode = upload.put(np.arange(count))
                tables = launches.EpisodeTables(
                    episode, upload.put(np.zeros(count, np.int64)),
                    upload.put(self._reader.length[windows.episode_id]),
                    upload.put(finals[windows.episode_id]) if len(finals) else 0,
                    upload.put(addresses), addresses.shape[1], self._pinned,
                )  # fmt: skip
                return LaunchArguments(tables, launches.WindowRows(episode, start, length, count), at_rows)
        rows = launches.WindowRows(upload.put(windows.episode_id), start, length, count)
        return LaunchArguments(self._tables, rows, at_rows, self._order(count, upload))

    def prepare_drawn(self, windows: launches.WindowRows, upload: UploadBuffer) -> LaunchArguments:
        """Prepares a launch for windows that are on the device.

        Kernels must read all columns in place. The numbers in `upload` must have been sent: the kernels write after
        them.
        """
        return LaunchArguments(self._tables, windows, 0, self._order(windows.count, upload))

    def _order(self, count: int, upload: UploadBuffer) -> int:
        return upload.reserve(count) if self._ordered else 0

    def _stage_rows(self, windows: Windows, addresses: Int64Array, staging: StagingBuffer) -> None:
        """Stages rows, and sets the addresses of the windows' episodes.

        Addresses of extents' columns become addresses of the first rows of the windows' episodes.

        Args:
            windows: the windows.
            addresses: int64 [B, columns], 0 for a column that no kernel can read; changed in place.
            staging: receives the rows.
        """
        episode = windows.episode_id
        shard, start, total = self._reader.shard[episode], self._reader.start[episode], self._reader.length[episode]
        base, rows = self._base[episode], []
        for reads in self._column_reads:
            low, count = reads.rows(windows, total)
            for column in reads.columns:
                size = self._row_bytes[column]
                in_place = addresses[:, column] != 0
                addresses[in_place, column] += base[in_place] * size
                staged_count = np.where(in_place, 0, count)
                staged = np.flatnonzero(staged_count)
                if not len(staged):
                    continue
                address = staging.take(int(staged_count.sum()) * size)
                rows.append(StagedRows(column, size, shard, start + low, staged_count, address))
                addresses[staged, column] = rows[-1].addresses[staged] - low[staged] * size
        if rows:
            self._reader.stage(rows, staging)

    def launch(self, launcher: CudaLauncher, arguments: LaunchArguments, memory: int) -> None:
        """Launches the collecting kernel.

        Args:
            launcher: launches kernels.
            arguments: the result of `prepare` or `prepare_drawn`.
            memory: address of the memory of the batches.
        """
        windows = arguments.windows
        if arguments.order:
            windows = launches.order_windows(launcher, windows, self._places, arguments.order)
        launches.collect(launcher, arguments.tables, self._plan_tables, windows, memory, arguments.row_of_window)

    def counting(self, sums: int) -> launches.Counting:
        """Returns what a kernel that draws windows of this dataset counts.

        sums: address of memory for the sums.
        """
        return launches.Counting(*self._row_groups, self._tables.lengths, self._tables.finals, sums)


def _bytes_at(address: int, nbytes: int) -> npt.NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
