"""Helper modules here, and those of tests/feed, go by their own names."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "feed")]
