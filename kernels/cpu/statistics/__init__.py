"""Kernels of exact statistics: sums that do not depend on the order, and counts of digits for quantiles."""

from __future__ import annotations

from gear_data.kernels.cpu.statistics.chunks import count_chunk_digits, sum_chunks
from gear_data.kernels.cpu.statistics.digits import DIGIT_BITS, count_digits
from gear_data.kernels.cpu.statistics.sums import LIMBS

__all__ = ["DIGIT_BITS", "LIMBS", "count_chunk_digits", "count_digits", "sum_chunks"]
