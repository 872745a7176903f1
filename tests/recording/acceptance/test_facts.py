"""Facts are accepted exactly if an episode table can have them all."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gear_data.errors import InvalidArgumentError
from gear_data.recording.acceptance.facts import FactTypes

_VALUES = st.one_of(
    st.integers(-(2**64), 2**64), st.integers(2**53 - 2, 2**53 + 2), st.floats(), st.booleans(),
    st.text(st.characters(), max_size=2),
)  # fmt: skip


def is_storable(values: list[Any]) -> bool:
    """Returns whether Arrow has one type for the values of a column that come in any two tables."""
    try:
        for cut in range(len(values)):
            tables = [pa.table({"a": part}) for part in (values[:cut], values[cut:]) if part]
            pa.concat_tables(tables, promote_options="permissive")
            pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return False
    return True


@given(st.lists(_VALUES, min_size=1, max_size=4))
def test_accepted_facts_can_be_stored(values: list[Any]) -> None:
    types, taken = FactTypes(), list[Any]()
    for value in values:
        if types.problem({"a": value}) is None:
            types.add({"a": value})
            taken.append(value)
            assert is_storable(taken), taken
    whole = [value for value in values if type(value) is int and abs(value) < 2**53]
    assert len(whole) < len(values) or taken == values


@given(st.lists(st.one_of(st.integers(-(2**54), 2**54), st.floats(-9, 9)), min_size=1, max_size=4), st.data())
def test_the_types_of_a_table_are_those_of_its_facts(values: list[Any], data: st.DataObject) -> None:
    kept = FactTypes()
    known = [value for value in values if kept.problem({"a": value}) is None and not kept.add({"a": value})]
    read = FactTypes()
    read.add_table(pa.table({"a": known}))
    value = data.draw(_VALUES)
    assert (kept.problem({"a": value}) is None) == (read.problem({"a": value}) is None)


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({"a": None}, "facts are text"),
        ({"a": [1]}, "facts are text"),
        ({"a": float("nan")}, "facts are text"),
        ({"a": 2**63}, "64 bits"),
        ({"a": "\ud800"}, "not UTF-8"),
        ({"": 1}, "cannot have this name"),
        ({"a\0b": 1}, "cannot have this name"),
        ({"\ud800": 1}, "cannot have this name"),
        ({"length": 1, "metadata.length": 2}, "another fact"),
    ],
)
def test_facts_that_no_dataset_can_have(facts: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        FactTypes().check(facts)


def test_tasks_are_text_whatever_they_are() -> None:
    types = FactTypes()
    for value in ("lift", 3, True):
        types.check({"task": value})
        types.add({"task": value})
    assert "task" in types
