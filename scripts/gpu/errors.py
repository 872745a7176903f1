"""The error of the checks, and the checkout that they belong to."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class GpuCheckError(Exception):
    """Raised if a bundle cannot be made or unpacked, or a step cannot run.

    The message says what to do.
    """
