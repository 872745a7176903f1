"""The table of faults names functions and limits that exist."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import pytest

from docs.hooks.fault_table import FAULTS, Fault, markdown_table
from gear_data import cluster


def resolve(name: str) -> Any:
    """Returns the object that `module:name` means, below `gear_data.cluster`."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(f"gear_data.cluster.{module}")
    for part in path.split("."):
        found = getattr(found, part)
    return found


def environment_variables() -> set[str]:
    """Returns the environment variables that modules of the cluster read.

    They are the values of constants named `..._VARIABLE`.
    """
    found = set()
    for module in pkgutil.walk_packages(cluster.__path__, "gear_data.cluster."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if name.endswith("_VARIABLE"):
                found.add(value)
    return found


def number_of_seconds(limit: Any) -> float:
    value = limit() if callable(limit) else limit
    return float(sum(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.event)
def test_detectors_and_limits_exist(fault: Fault) -> None:
    detector = resolve(fault.detector)
    assert inspect.isfunction(detector) or inspect.isclass(detector)
    assert fault.event and fault.outcome.endswith(".")
    if fault.limit is None:
        return
    if fault.limit.startswith("$"):
        assert fault.limit.removeprefix("$") in environment_variables()
    else:
        assert number_of_seconds(resolve(fault.limit)) > 0


def test_events_are_unique() -> None:
    events = [fault.event for fault in FAULTS]
    assert len(set(events)) == len(events)
    assert any("rank dies" in event for event in events)


def test_markdown_has_a_row_for_each_fault() -> None:
    rows = markdown_table().splitlines()
    assert len(rows) == 2 + len(FAULTS)
    assert {row.count("|") for row in rows} == {5}
