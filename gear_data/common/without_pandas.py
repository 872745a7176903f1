"""pyarrow without pandas."""

from __future__ import annotations

import sys

import pyarrow as pa


class _NoPandas:
    """A finder of modules that finds no pandas."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


def leave_out_pandas() -> None:
    """Makes pyarrow do without pandas in this process, whose import takes half as long as all others.

    pyarrow looks for it once: when it first converts Python objects. This is for processes without objects of pandas. A
    module that needs pandas can still import it.
    """
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)
