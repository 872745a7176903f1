"""Kernels of relative columns: a column minus another column's value at the first step of a window."""

from __future__ import annotations

from gear_data.kernels.cpu.relative.rows import RELATIVE, RELATIVE_PART, relate

__all__ = ["RELATIVE", "RELATIVE_PART", "relate"]
