"""Windows read by a kernel: columns of all windows of a batch, wherever they are, in one launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.buffers import ALIGNMENT
from gear_data.kernels import cpu
from gear_data.kernels.cuda import launches
from gear_data.kernels.output_plan import OutputPlanArray
from gear_data.residency.device.columns import DeviceColumns, find_extents
from gear_data.residency.device.memory import PIECE_BYTES, TO_DEVICE, DeviceBuffer, PinnedBuffer, Uploader
from gear_data.residency.device.staging import StagedRows, StagingBuffer, StagingReader
from gear_data.residency.row_ranges import column_reads, row_sizes
from gear_data.selection.windows import Int64Array, Windows


class UploadBuffer:
    """Arrays of eight-byte numbers that a launch reads: written here, and sent in one copy.

    Args:
        words: how many numbers, at most.
        address: where they go on the device.

    Attributes:
        answer: int64 [1], pinned as well, for what the device gives back.
    """

    def __init__(self, words: int, address: int) -> None:
        self._memory = PinnedBuffer(8 * words + 8)
        self._words = self._memory.array().view(np.int64)
        self.answer = self._words[-1:]
        self._address = address
        self._used = 0

    def clear(self) -> None:
        """Once the copy before has ended."""
        self._used = 0

    def put(self, values: npt.NDArray[Any]) -> int:
        """Where a contiguous array will be on the device."""
        first, self._used = self._used, self._used + values.size
        self._words[first : self._used] = values.reshape(-1).view(np.int64)
        return self._address + 8 * first

    def send(self, runtime: Any, stream: Any) -> None:
        """Args: of CuPy."""
        runtime.memcpyAsync(self._address, self._memory.address, 8 * self._used, TO_DEVICE, stream.ptr)


@dataclass(slots=True)  # made for every batch: see Windows
class LaunchArguments:
    """What a launch is told."""

    tables: launches.EpisodeTables
    windows: launches.WindowRows
    rows_of: int


class DeviceReader:
    """Reads windows of one dataset into device memory. Safe to call from several threads.

    Rows that a kernel cannot read in place are copied to a `StagingBuffer`. To the kernel each window is then an
    episode of its own: see `gear_data.residency.row_ranges`.

    Args:
        reader: reads the same columns on the CPU.
        columns: where kernels read them.
        plan: OUTPUT_PLAN [outputs], see `gear_data.collection.plan.BatchPlan`, which is kept.

    Attributes:
        all_placed: whether kernels read all in place.
        stage_bytes: bytes that one window needs of a `StagingBuffer`, at most; 0: kernels read all in place.
        words: numbers that one window needs of an `UploadBuffer`, at most.
    """

    def __init__(self, reader: StagingReader, columns: DeviceColumns, plan: OutputPlanArray) -> None:
        columns.check_process()
        self._reader, self._columns, self._plan = reader, columns, plan
        extents = columns.shard, columns.first, columns.last
        self._extent = find_extents(extents, reader.shard, reader.start, reader.length)
        self._base = reader.start - columns.first[self._extent]
        self._wanted = column_reads(plan)
        self._row_bytes = row_sizes(plan)
        self._read = sorted(self._row_bytes)
        self.all_placed = bool(columns.addresses[:, self._read].all())
        away = [each for each in self._wanted if not columns.addresses[:, each.columns].all()]
        longest = int(reader.length.max())
        self.stage_bytes = sum(min(each.most_rows, longest) * self._row_bytes[c] for each in away for c in each.columns)
        self.stage_parts = len(self._read)
        self.words = 7 + columns.addresses.shape[1]
        self._upload_tables()

    def _upload_tables(self) -> None:
        """What launches read that stays the same, in device memory."""
        plan, pieces = self._plan.copy(), launches.piece_counts(self._plan)
        finals = self._reader.final_rows
        arrays: list[npt.NDArray[Any]] = [
            plan, pieces, self._extent, self._base, self._reader.length, self._columns.addresses, finals,
        ]  # fmt: skip
        pointed = [(b.output, b.field, _bytes_at(b.address, b.nbytes)) for b in launches.plan_buffers(self._plan)]
        for output, address in enumerate(self._plan["finals"].tolist()):
            if address:
                pointed.append((output, "finals", self._reader.final_values(address)))
        arrays += [array for _, _, array in pointed]
        sizes = np.array([-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays], np.int64)
        self._memory = DeviceBuffer(int(sizes.sum()))
        places = (self._memory.address + np.cumsum(sizes) - sizes).tolist()
        for (output, field, _), place in zip(pointed, places[7:], strict=True):
            plan[field][output] = place
        sender = Uploader(min(PIECE_BYTES, int(sizes.max())))
        for array, place in zip(arrays, places, strict=True):
            sender.send(array, place)
        sender.finish()
        at_plan, at_pieces, *tables = places[:7]
        extent, base, length, addresses, at_finals = tables
        self._tables = launches.EpisodeTables(
            extent, base, length, at_finals if len(finals) else 0, addresses, self._columns.addresses.shape[1]
        )
        self._output_plan = launches.PlanTables(at_plan, len(plan), at_pieces, int(pieces[-1]))

    def valid_bytes(self, windows: Windows, per: int, valid: Int64Array) -> None:
        """Fills int64 [batches]: the bytes of valid rows, of every `per` windows on their own."""
        reader = self._reader
        cpu.collect.count_valid(
            windows.episode_id, windows.start, windows.length, reader.length, reader.final_rows, self._plan, per, valid
        )

    def prepare(
        self, windows: Windows, rows_of: Int64Array | None, upload: UploadBuffer, stage: StagingBuffer
    ) -> LaunchArguments:
        """Writes what a launch needs to know of these windows to `upload`, and rows that no kernel can read to `stage`.

        Args:
            rows_of: int64 [B], the row of the batch each window goes to; None: window b to row b.
        """
        at_rows = 0 if rows_of is None else upload.put(rows_of)
        start, length = upload.put(windows.start), upload.put(windows.length)
        count = len(windows)
        if not self.all_placed:
            addresses = self._columns.addresses[self._extent[windows.episode_id]]
            if not addresses[:, self._read].all():
                self._stage_rows(windows, addresses, stage)
                finals = self._reader.final_rows
                numbers = upload.put(np.arange(count))
                tables = launches.EpisodeTables(
                    numbers, upload.put(np.zeros(count, np.int64)),
                    upload.put(self._reader.length[windows.episode_id]),
                    upload.put(finals[windows.episode_id]) if len(finals) else 0,
                    upload.put(addresses), addresses.shape[1],
                )  # fmt: skip
                return LaunchArguments(tables, launches.WindowRows(numbers, start, length, count), at_rows)
        return LaunchArguments(
            self._tables, launches.WindowRows(upload.put(windows.episode_id), start, length, count), at_rows
        )

    def _stage_rows(self, windows: Windows, addresses: Int64Array, stage: StagingBuffer) -> None:
        """Brings what is away, and turns addresses of extents' columns, int64 [B, columns], into those of windows'
        episodes."""
        episode = windows.episode_id
        shard, start, total = self._reader.shard[episode], self._reader.start[episode], self._reader.length[episode]
        base, rows = self._base[episode], []
        for each in self._wanted:
            low, count = each.rows(windows, total)
            for column in each.columns:
                size = self._row_bytes[column]
                here = addresses[:, column] != 0
                addresses[here, column] += base[here] * size
                left = np.where(here, 0, count)
                away = np.flatnonzero(left)
                if not len(away):
                    continue
                rows.append(StagedRows(column, size, shard, start + low, left, stage.take(int(left.sum()) * size)))
                addresses[away, column] = rows[-1].places[away] - low[away] * size
        if rows:
            self._reader.stage(rows, stage)

    def prepared(self, windows: launches.WindowRows) -> LaunchArguments:
        """Of windows that the device knows, where it reads all in place."""
        return LaunchArguments(self._tables, windows, 0)

    def launch(self, launcher: launches.Launcher, prepared: LaunchArguments, outputs: int, valid: int = 0) -> None:
        """Args: outputs: address of the addresses of a batch's arrays; valid: of a number, zero, to which the bytes of
        valid rows are added, or 0."""
        launches.collect(
            launcher, prepared.tables, self._output_plan, prepared.windows, outputs, rows_of=prepared.rows_of,
            per=max(1, prepared.windows.count), valid=valid,
        )  # fmt: skip


def _bytes_at(address: int, nbytes: int) -> npt.NDArray[np.uint8]:
    import ctypes

    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
