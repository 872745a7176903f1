"""Progress of a conversion: rows, and bytes of several files."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gear_data.common.progress import ProgressBar, advance_with_text, format_bytes, pluralize
from gear_data.ingest.location import SourceFile


def row_counter(bar: ProgressBar, files: Sequence[SourceFile], num_rows: int | None) -> Callable[[int], object]:
    """Returns a function that advances a bar by rows of a source.

    Of several files, the bar also shows their number, their size, and bytes per second in proportion to the rows.

    Args:
        bar: returned by `progress_bar`.
        files: files of the source.
        num_rows: rows of the source; None if unknown.
    """
    if len(files) < 2 or not num_rows:
        advance: Callable[[int], object] = bar.update
        return advance
    size, began, rows = sum(file.size for file in files), time.monotonic(), 0

    def text() -> str:
        rate = size * min(1.0, rows / num_rows) / max(time.monotonic() - began, 1e-9)
        return f"{pluralize(len(files), 'file')} of {format_bytes(size)}, {format_bytes(rate)}/s"

    show = advance_with_text(bar, text)

    def count(n: int) -> None:
        nonlocal rows
        rows += n
        show(n)

    return count
