"""Section (g): filters by cuDF on the GPU and by Polars on the CPU.

Input and result are rows in host memory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from gear_data.kernels.cuda import cudf
from gpu_sections.report import Row, Section

ROWS = (10**5, 10**6, 10**7, 10**8)
_REPEATS = 5


def filters(quick: bool, left: Callable[[], float]) -> Section:
    """Measures filters of rows of 12 bytes.

    The ratio is CPU time to GPU time. Raises RuntimeError if the selected rows differ.
    """
    missing = [name for name in ("polars", "cudf_polars") if find_spec(name) is None]
    if missing:
        return Section([], notes=[f"not run: {' and '.join(missing)} not installed (see docs/how-to/gpu.md)"])
    import polars as pl

    section = Section([])
    for count in ROWS[:2] if quick else ROWS:
        if left() < 10 + count / 1e7:
            section.left_out.append(f"{count:,} rows")
            continue
        rng = np.random.default_rng(0)
        frame = pl.DataFrame({"length": rng.integers(1, 1001, count), "return": rng.random(count, np.float32)})
        expression = (pl.col("return") > 0.25) & (pl.col("length") != 7)
        # Not through `true_values`, which leaves few rows to the CPU, and hides failures of cuDF.
        on_gpu, (found, _) = _clocked(lambda frame=frame, expr=expression: cudf.evaluate(frame, expr))
        on_cpu, expected = _clocked(lambda frame=frame, expr=expression: frame.select(expr).to_series())
        if not found.equals(expected, check_names=False):
            raise RuntimeError(f"{count:,} rows: the GPU's are not the CPU's")
        values: dict[str, float | str | None] = {"GPU ms": on_gpu * 1e3, "CPU ms": on_cpu * 1e3}
        section.rows.append(Row(f"{count:,} rows", values, on_cpu / on_gpu))
    return section


def _clocked(call: Callable[[], Any]) -> tuple[float, Any]:
    """Returns (median seconds, result).

    The first call, which imports and compiles, is not counted.
    """
    result, seconds = call(), []
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds), result
