"""The CPU collector: one serial `nogil` call fills every output of a batch.

For each output, the kernel first locates the valid rows of all windows (`locate`). Then, window by window, it writes
the valid rows and pads the other rows. The kernel does not use `prange`: a child forked after `prange` dies, and a busy
core stalls `prange` by milliseconds. Prefetch threads run batches in parallel instead.

Why: docs/explanation/decisions/cpu-collection.md
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit

from gear_data.kernels.cpu.convert import writer_of
from gear_data.kernels.cpu.gather import JOIN_PART, TAKE, join, take_steps
from gear_data.kernels.cpu.native import cached_njit, call, int64s, memcpy, pointer, prefetch, read_only
from gear_data.kernels.cpu.padding import fill_rows, pad_window, write_timesteps
from gear_data.kernels.cpu.transitions import find_hops, single_writer_of
from gear_data.kernels.cpu.turns import rows_by_part
from gear_data.kernels.output_plan import (
    COLUMN_KINDS,
    KIND_COPY,
    KIND_DISCOUNTED,
    KIND_TIMESTEP,
    OUTPUT_PLAN,
    OutputPlanArray,
)

#: The valid rows of a window in an output.
SPAN = np.dtype(
    [
        ("first", np.int64),  # first step in the episode
        ("count", np.int64),  # valid rows
        ("head", np.int64),  # padding rows before them
        ("final", np.int64),  # row of the final observation, if that is the last valid row; else -1
    ]
)
#: A dataset of `collect_each`: addresses of the arguments of `collect`, `join` and `take_steps`, and their sizes.
COLLECT_SOURCE = np.dtype(
    [
        (name, np.int64)
        for name in (
            "shards", "bases", "lengths", "episodes",
            "finals", "final_rows",  # 0 final rows: no episode has a final observation
            "addresses", "num_shards", "columns",
            "plan", "offsets", "outputs",  # without common outputs; `offsets`: first byte of each output in the buffer
            "common",  # columns of the common outputs
            "parts", "num_parts",
            "takes", "num_takes", "places", "num_places",
        )
    ]
)  # fmt: skip
#: Cache lines prefetched for a window. The processor's own prefetcher takes over after the first kilobyte.
_MAX_LINES = 16
#: The kernel prefetches the windows ahead that have so many lines together, and at most so many windows.
_LINES_AHEAD, _MOST_AHEAD = 64, 16


@njit(nogil=True)  # type: ignore[untyped-decorator]
def locate(output, episode, start, length, episode_steps, finals, spans):  # type: ignore[no-untyped-def]
    """Fills `spans`, SPAN [B], with the valid rows of each window in an output.

    Args:
        output: a record of OUTPUT_PLAN.
        episode_steps: int64 [B], steps of each window's episode.
        episode, start, length, finals: see `collect`.
    """
    offset, width, pad_left, within = output.first, output.width, output.pad_left, output.within
    shift, has_finals = output.shift, output.finals != 0
    for b in range(len(episode)):
        first = start[b] + offset
        if within:
            low, high = max(first, start[b]), min(first + width, start[b] + length[b])
        else:
            low, high = max(first, np.int64(0)), min(first + width, episode_steps[b])
        final, missing = np.int64(-1), np.int64(0)
        if shift > 0 and high == episode_steps[b] and high > low:
            if has_finals:
                final = finals[episode[b]]
            if final < 0:
                missing = np.int64(1)
        count = max(high - low - missing, np.int64(0))
        if count == 0:
            head = width
        elif pad_left:
            # A missing final observation leaves its row empty, so that the other rows stay with their own steps.
            head = width - count - missing
        else:
            head = low - first
        span = spans[b]
        span.first, span.count, span.head, span.final = low, count, head, final


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _locate_next(output, episode, start, episode_steps, finals, hops, spans):  # type: ignore[no-untyped-def]
    """Fills `spans`, SPAN [B], for steps relative to the next state.

    The whole window is padding if there is no next state.

    Args:
        hops: int64 [B], the hop of each window's first step.
        output, episode, start, episode_steps, finals: see `locate`.
    """
    width = output.width
    for b in range(len(episode)):
        final = finals[episode[b]] if output.finals else np.int64(-1)
        states = episode_steps[b] + (final >= 0)
        state = start[b] + hops[b]
        low, high = max(state + output.first, np.int64(0)), min(state + output.first + width, states)
        count = max(high - low, np.int64(0)) if hops[b] and state < states else np.int64(0)
        span = spans[b]
        span.first, span.count, span.head = low, count, low - state - output.first if count else width
        span.final = final if count and high > episode_steps[b] else np.int64(-1)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _count_rows(output, spans, windows_per_batch, rows):  # type: ignore[no-untyped-def]
    """Fills `rows`, int64 [batches], with the valid rows of each batch in an output.

    Next states are valid whatever the hops are: see `count_valid`.
    """
    for i in range(len(rows)):
        total = np.int64(0)
        for b in range(i * windows_per_batch, min((i + 1) * windows_per_batch, len(spans))):
            total += output.width if output.hops else spans[b].count
        rows[i] = total


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _copy_or_convert(output, source, target, rows):  # type: ignore[no-untyped-def]
    if output.kind == KIND_COPY:
        # A reader of another node may have written the rows to the output already.
        if source != target:
            memcpy(target, source, np.uint64(rows * output.out_bytes))
    else:
        call(output.write, (output, source, target, rows, np.int64(0)))


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _write_column(output, span, source, target, left):  # type: ignore[no-untyped-def]
    """Writes the valid rows of a window from a column.

    Args:
        output, span: records of OUTPUT_PLAN and SPAN.
        source, target: addresses of the first valid row, in the column and in the output.
        left: number of steps from the first valid step to the episode's end.
    """
    if output.kind == KIND_DISCOUNTED:
        call(output.write, (output, source, target, span.count, left))
    elif output.shift < 0 and span.first == 0:
        # An episode's first step has no step before it.
        fill_rows(target, np.int64(1), output.out_bytes, output.fill)
        _copy_or_convert(output, source + output.source_bytes, target + output.out_bytes, span.count - 1)
    elif span.final < 0:
        _copy_or_convert(output, source, target, span.count)
    else:
        _copy_or_convert(output, source, target, span.count - 1)
        final = output.finals + span.final * output.source_bytes
        _copy_or_convert(output, final, target + (span.count - 1) * output.out_bytes, np.int64(1))


def link(plan: OutputPlanArray) -> None:
    """Sets the addresses of the kernels that `collect` calls for some outputs: `write` and `write_single`.

    They are compiled when a plan first has such an output.
    """
    for output in plan:
        output["write"], output["write_single"] = writer_of(output), single_writer_of(output)


@cached_njit
def count_valid(episode, start, length, lengths, finals, plan, windows_per_batch, valid):  # type: ignore[no-untyped-def]
    """Fills `valid` like `collect`, from the same arguments, and writes no output."""
    count = len(episode)
    episode_steps = lengths[episode]
    valid[:] = 0
    spans = np.empty(count, SPAN)
    located = np.int64(-1)
    for k in range(len(plan)):
        output = plan[k]
        if output.hops:
            # Not padding, whatever the hops are: they depend on columns, which may be elsewhere.
            for b in range(count):
                valid[b // windows_per_batch] += output.width * output.out_bytes
            continue
        if output.same_spans_as != located:
            located = output.same_spans_as
            locate(output, episode, start, length, episode_steps, finals, spans)
        for b in range(count):
            valid[b // windows_per_batch] += spans[b].count * output.out_bytes


@cached_njit
def collect(  # type: ignore[no-untyped-def]
    episode, start, length, row_of_window, shards, bases, lengths, finals, addresses, plan, outputs, windows_per_batch,
    valid,
):  # fmt: skip
    """Fills every output of one or more batches.

    The kernel checks nothing. The caller guarantees that all addresses are valid.

    Args:
        episode, start, length: int64 [B], each window's episode, its first step in the episode, and its steps.
        row_of_window: int64 [B], the row that each window fills, or its first step; see `packed` of the plan. Empty:
            window b fills row b.
        shards, bases, lengths: int64 [episodes], each episode's shard, the row of its first step in the shard, and its
            steps.
        finals: int64 [episodes], the row of each episode's final observation, -1 if it has none; empty: no episode has
            one.
        addresses: int64 [shards, columns], the address of each column's first byte. The shard of every window must be
            mapped.
        plan: OUTPUT_PLAN [outputs], linked.
        outputs: int64 [outputs], addresses of arrays [rows, width, out_bytes].
        windows_per_batch: windows of one batch.
        valid: int64 [batches], receives the bytes of valid rows of each batch.
    """
    count = len(episode)
    # Looked up once for each window, not again for each output: a large episode table is not in the cache.
    table = np.empty((6, count), np.int64)
    shard, row, left, number, base, episode_steps = table
    # Not `np.sum`: the compiled kernel would import SciPy when it is loaded.
    total = np.int64(0)
    for b in range(count):
        own, total = episode[b], total + length[b]
        shard[b], base[b], episode_steps[b] = shards[own], bases[own], lengths[own]
        row[b], left[b] = base[b] + start[b], episode_steps[b] - start[b]
        number[b] = row_of_window[b] if len(row_of_window) else b
    valid[:] = 0
    batches = -(-count // windows_per_batch)
    spans, valid_rows = np.empty(count, SPAN), np.empty(batches, np.int64)
    located = np.int64(-1)
    following = np.empty((3, 0), np.int64)
    for k in range(len(plan)):
        output = plan[k]
        if output.hops and following.shape[1] < count:
            # The same for all outputs.
            following = np.empty((3, count), np.int64)
            find_hops(output, episode, start, episode_steps, finals, shard, row, addresses, following)
        if output.write_single:
            windows, columns, states = table.ctypes.data, addresses.ctypes.data, following.ctypes.data
            call(output.write_single, (output, outputs[k], windows, count, columns, addresses.shape[1], states))
            for i in range(batches):
                valid[i] += windows_per_batch * output.out_bytes
            continue
        kind, column, row_bytes, source_bytes = output.kind, output.column, output.out_bytes, output.source_bytes
        width, packed = output.width, output.packed
        # Bytes from one number of `row_of_window` to the next.
        window_bytes = row_bytes if packed == 1 else width * row_bytes
        if output.same_spans_as != located:
            # Most outputs have the same spans as the output before them.
            located = output.same_spans_as
            if output.hops:
                _locate_next(output, episode, start, episode_steps, finals, following[0], spans)
            else:
                locate(output, episode, start, length, episode_steps, finals, spans)
            _count_rows(output, spans, windows_per_batch, valid_rows)
        for i in range(batches):
            valid[i] += valid_rows[i] * row_bytes
        reads_column = kind in COLUMN_KINDS
        # With hops, the spans are already of the next states.
        shift = np.int64(0) if output.hops else output.shift
        # Windows are scattered: without prefetching, each begins with a wait for memory.
        steps = 1 + total // count if packed == 1 and count else width
        lines = min((steps * source_bytes + 63) // 64 + 1, _MAX_LINES) if reads_column else 0
        ahead = min(_LINES_AHEAD // lines, _MOST_AHEAD) if lines else 0
        for place in range(count + ahead):
            if lines and place < count:
                line = addresses[shard[place], column] + row[place] * source_bytes
                for i in range(lines):
                    prefetch(line + 64 * i)
            b = place - ahead
            if b < 0:
                continue
            span = spans[b]
            own, window_width = number[b], width
            if packed == 1:
                window_width = length[b]
            elif packed:
                own //= packed
            out = outputs[k] + own * window_bytes
            target = out + span.head * row_bytes
            if span.count > 0:
                if reads_column:
                    source = addresses[shard[b], column] + (base[b] + span.first + shift) * source_bytes
                    _write_column(output, span, source, target, episode_steps[b] - span.first)
                elif kind == KIND_TIMESTEP:
                    write_timesteps(output.out_type, target, span.count, span.first + output.origin)
                else:
                    memcpy(target, output.valid, np.uint64(span.count * row_bytes))
            if span.count < window_width:
                pad_window(output, span, out, window_width)


@cached_njit
def fill_rest(plan, outputs, rows, ends, steps):  # type: ignore[no-untyped-def]
    """Fills the steps of packed rows that no window holds, of all packed outputs.

    Args:
        plan, outputs: see `collect`.
        rows: int64 [n], the rows.
        ends: int64 [n], the steps of each row that its windows hold.
        steps: steps of a row.
    """
    for k in range(len(plan)):
        output = plan[k]
        if output.packed == 1:
            for i in range(len(rows)):
                first = outputs[k] + (rows[i] * steps + ends[i]) * output.out_bytes
                fill_rows(first, steps - ends[i], output.out_bytes, output.fill)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _prefetch_source(source, episode, start):  # type: ignore[no-untyped-def]
    """Prefetches windows of one dataset of `collect_each`."""
    shards, bases = int64s(source.shards, source.episodes), int64s(source.bases, source.episodes)
    addresses = carray(pointer(source.addresses), (source.num_shards, source.columns), np.int64)
    plan = carray(pointer(source.plan), (source.outputs,), OUTPUT_PLAN)
    for k in range(len(plan)):
        output = plan[k]
        if output.kind not in COLUMN_KINDS:
            continue
        lines = min((output.width * output.source_bytes + 63) // 64 + 1, _MAX_LINES)
        for i in range(len(episode)):
            number = episode[i]
            line = addresses[shards[number], output.column] + (bases[number] + start[i]) * output.source_bytes
            for _ in range(lines):
                prefetch(line)
                line += 64


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _collect_common(sources, chosen, rows, bounds, episode, start, length, plan, outputs, valid):  # type: ignore[no-untyped-def]
    """Fills the common outputs of several datasets by one call of `collect`: see `collect_each`.

    Each window stands for an episode, and for a shard with the addresses of its columns.

    Args:
        rows, bounds: of `rows_by_part`.
        episode, start, length: int64 [B], in the order of `rows`.
        plan, outputs, valid: see `collect`.
    """
    tables, addresses = np.empty((6, len(rows)), np.int64), np.empty((len(rows), len(plan)), np.int64)
    window, base, steps, first_step, taken, row = tables
    count = 0
    for number in range(len(sources)):
        first, last = bounds[number], bounds[number + 1]
        if first == last or not chosen[number]:
            continue
        source = sources[number]
        bases, lengths = int64s(source.bases, source.episodes), int64s(source.lengths, source.episodes)
        shards, columns = int64s(source.shards, source.episodes), int64s(source.common, len(plan))
        for b in range(first, last):
            own = episode[b]
            window[count], base[count], steps[count] = count, bases[own], lengths[own]
            first_step[count], taken[count], row[count] = start[b], length[b], rows[b]
            of_shard = int64s(source.addresses + 8 * source.columns * shards[own], source.columns)
            for k in range(len(plan)):
                addresses[count, k] = of_shard[columns[k]]
            count += 1
    window = window[:count]
    collect(
        window, first_step[:count], taken[:count], row[:count],
        read_only(window), read_only(base[:count]), read_only(steps[:count]),
        np.empty(0, np.int64), addresses, plan, outputs, max(count, 1), valid,
    )  # fmt: skip


@cached_njit
def collect_each(sources, chosen, common, offsets, memory, dataset, episode, start, length):  # type: ignore[no-untyped-def]
    """Fills the rows of several datasets in one batch, with joined parts and listed steps: see `gather`.

    The loops over the few windows of one dataset cost more than one loop over the windows of all.

    Returns the bytes of valid rows.

    Args:
        sources: COLLECT_SOURCE [datasets].
        chosen: bool [datasets]: the datasets whose rows are filled.
        common: OUTPUT_PLAN [outputs], the outputs that are the same for all datasets. They have columns 0, 1, ...
        offsets: int64 [outputs], the first byte of each common output in the buffer.
        memory: the address of the buffer that holds the arrays.
        dataset: int64 [B], the dataset of each window.
        episode, start, length: see `collect`.
    """
    rows, bounds = rows_by_part(dataset, len(sources))
    episode, start, length = episode[rows], start[rows], length[rows]
    valid, outputs = np.zeros(1, np.int64), np.empty(max(max(sources.outputs), len(common)), np.int64)
    if len(common):
        for k in range(len(common)):
            outputs[k] = offsets[k] + memory
        _collect_common(sources, chosen, rows, bounds, episode, start, length, common, outputs, valid)
    total = valid[0]
    for number in range(len(sources)):
        first, last = bounds[number], bounds[number + 1]
        if number + 1 < len(sources) and chosen[number + 1]:
            # A few windows hide no waits for memory. So those of the next dataset are on their way meanwhile.
            behind = bounds[number + 2]
            _prefetch_source(sources[number + 1], episode[last:behind], start[last:behind])
        source = sources[number]
        if first == last or not chosen[number] or not source.outputs:
            continue
        for k in range(source.outputs):
            outputs[k] = int64s(source.offsets, source.outputs)[k] + memory
        collect(
            episode[first:last], start[first:last], length[first:last], rows[first:last],
            read_only(int64s(source.shards, source.episodes)),
            read_only(int64s(source.bases, source.episodes)),
            read_only(int64s(source.lengths, source.episodes)),
            int64s(source.finals, source.final_rows),
            carray(pointer(source.addresses), (source.num_shards, source.columns), np.int64),
            carray(pointer(source.plan), (source.outputs,), OUTPUT_PLAN),
            outputs, last - first, valid,
        )  # fmt: skip
        total += valid[0]
        if source.num_parts:
            parts = carray(pointer(source.parts), (source.num_parts,), JOIN_PART)
            join(memory, parts, rows[first:last], last - first)
        if source.num_takes:
            takes = carray(pointer(source.takes), (source.num_takes,), TAKE)
            take_steps(memory, takes, int64s(source.places, source.num_places), rows[first:last], last - first)
    return total
