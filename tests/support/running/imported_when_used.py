"""Packages that take seconds to import: each process collects all test modules, and runs a part of them."""

from __future__ import annotations

from typing import Any

import pytest


class ImportedWhenUsed:
    """A package that is imported by the first test that uses it; the test is skipped if it is not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # pytest asks every name of a module whether it is a fixture.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(pytest.importorskip(self._name), name)
