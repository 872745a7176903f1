"""The error of the checks, the checkout that they belong to, and the Python of a bundle."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The Python of the machines that a bundle is for.
PYTHON_VERSION = "3.12"


class GpuCheckError(Exception):
    """Raised if a bundle cannot be made, or a step cannot run.

    The message says what to do.
    """
