"""Relative: a column minus another one, such as actions minus the state in which they were chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias

from gear_data.common.keywords import suggest_fields
from gear_data.error_text import shown
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.schema import ColumnSpec, Schema
from gear_data.stacking import ALONE


@suggest_fields
@dataclass(frozen=True)
class Relative:
    """A column whose values become relative to another column.

    A step of a window becomes its value minus the value that the other column has at the window's first step, element
    by element. An element is subtracted from the element of its name, if the columns share a name, else of its number.

    Attributes:
        to: the column that is subtracted.
        mask: the elements that become relative: one boolean for each element; or their numbers or names. None: all.
        absolute: numbers or names of elements that stay as they are.
        delta: whether only the first step of a window is relative to the column, and each later step to the step before
            it.
        per_step: whether each step of a window has statistics of its own; else all steps share those of an element.

    Raises:
        InvalidArgumentError: a field of another form.
    """

    to: str
    mask: Sequence[bool] | Sequence[int | str] | None = None
    absolute: Sequence[int | str] = ()
    delta: bool = False
    per_step: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.to, str):
            raise InvalidArgumentError(f"to must be the name of a column, not {shown(self.to)}")
        for name in ("delta", "per_step"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidArgumentError(f"{name} is True or False, not {getattr(self, name)!r}")
        for name in ("mask", "absolute"):
            value = getattr(self, name)
            if value is None and name == "mask":
                continue
            plain = value.tolist() if hasattr(value, "tolist") else value
            if not isinstance(plain, list | tuple) or not all(isinstance(each, int | str) for each in plain):
                raise InvalidArgumentError(
                    f"{name} must be a list of elements' numbers or names, not {shown(value)}",
                    hint="such as absolute=['gripper'], or mask=[True, True, False]",
                )
            booleans = [isinstance(each, bool) for each in plain]
            if any(booleans) and (name == "absolute" or not all(booleans)):
                raise InvalidArgumentError(
                    f"{name} is {shown(value)}: booleans are only for mask, one for each element",
                    hint="give numbers or names",
                )
            object.__setattr__(self, name, tuple(plain))

    def to_json(self) -> dict[str, Any]:
        """Returns the fields that are not the default, JSON-able."""
        default = Relative(self.to)
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {name: value for name, value in plain.items() if name == "to" or value != _plain(default, name)}

    def elements(self, column: str, schema: Schema, known: frozenset[str] | None = None) -> tuple[int, ...]:
        """Returns the element of `to` that is subtracted from each element of a column; -1: none.

        Args:
            column: the column.
            schema: the columns of its dataset.
            known: names of elements that other datasets have, and that this one may lack.

        Raises:
            UnknownNameError: no such column, or no such element.
            InvalidArgumentError: the columns are no vectors of numbers, the mask has another width, or an element has
                no counterpart.
        """
        own, other = (_vector(schema, name) for name in (column, self.to))
        if self.to == column:
            raise InvalidArgumentError(
                "a column cannot be relative to itself", column=column, hint="give another column, such as the state"
            )
        width, names = math.prod(own.shape), own.element_names
        if self.mask and isinstance(self.mask[0], bool):
            if len(self.mask) != width:
                raise InvalidArgumentError(
                    f"the mask has {len(self.mask)} booleans, and the column {width} elements", column=column,
                    hint="give one for each element, or the numbers or names of elements",
                )  # fmt: skip
            chosen = {number for number, each in enumerate(self.mask) if each}
        else:
            chosen = set(range(width)) if self.mask is None else _numbers(self.mask, own, width, known)
        chosen -= _numbers(self.absolute, own, width, known)
        size, by_name = math.prod(other.shape), not set(names).isdisjoint(other.element_names)
        # Of names that repeat, as those of two arms, the first is relative to the first, the second to the second.
        places = {
            number: _places(other.element_names, names[number])[names[:number].count(names[number]) :][:1]
            if by_name
            else [number] * (number < size)
            for number in chosen
        }
        absolute = sorted(set(range(width)) - chosen | {number for number, found in places.items() if not found})
        for number in sorted(chosen):
            if not places[number]:
                lacks = f"no element '{names[number]}'" if by_name else f"{size} elements, and the column {width}"
                raise InvalidArgumentError(
                    f"element {number} cannot be relative: {self.to} has {lacks}",
                    column=column,
                    hint=f"leave it absolute: Relative('{self.to}', absolute={absolute})",
                )
        return tuple(places[number][0] if number in places else -1 for number in range(width))


#: The argument `relative` of a loader: column -> the column that is subtracted.
Relatives: TypeAlias = "Mapping[str, str | Relative | Mapping[str, Any]]"


def check_relative(relative: Any) -> dict[str, Relative]:
    """Returns the argument `relative`: column -> what its values become relative to.

    Raises:
        InvalidArgumentError: the argument is of another form.
    """
    found = {}
    for column, value in relative.items() if isinstance(relative, Mapping) else [(None, relative)]:
        if isinstance(value, Mapping) and "to" in value and value.keys() <= {each.name for each in fields(Relative)}:
            value = Relative(**value)
        elif isinstance(value, str):
            value = Relative(value)
        if not isinstance(column, str) or not isinstance(value, Relative):
            raise InvalidArgumentError(
                f"relative maps columns to a column, or to gear_data.Relative, and is {shown(relative)}",
                hint='for example relative={"actions": "observations.state"}',
            )
        found[column] = value
    return found


def _plain(value: Relative, name: str) -> Any:
    default = getattr(value, name)
    return list(default) if isinstance(default, tuple) else default


def _vector(schema: Schema, name: str) -> ColumnSpec:
    """Returns a column of vectors of numbers."""
    spec = schema[name]
    if spec.variable_length or spec.video is not None or spec.dtype == "bool" or len(spec.shape) != 1:
        raise InvalidArgumentError(
            f"relative= needs vectors of numbers, and a step has {spec.dtype} {list(spec.shape)}", column=name,
            hint=f"make a vector of it with BatchOptions(stack={{'{name}': ['{name}']}})"
            if not spec.shape and spec.numpy_dtype.kind in "iuf" and name not in ALONE
            else "give other columns",
        )  # fmt: skip
    return spec


def _places(names: Sequence[str], name: str) -> list[int]:
    return [number for number, each in enumerate(names) if each == name]


def _numbers(given: Sequence[int | str], spec: ColumnSpec, width: int, known: frozenset[str] | None) -> set[int]:
    """Returns the numbers of elements that are given by number or name."""
    numbers = set()
    for each in given:
        if isinstance(each, int):
            if not 0 <= each < width:
                raise InvalidArgumentError(
                    f"there is no element {each}: the column has {width}", column=spec.name,
                    hint=f"elements are numbered from 0 to {width - 1}",
                )  # fmt: skip
            numbers.add(each)
        elif each in spec.element_names:
            numbers |= {*_places(spec.element_names, each)}
        elif not spec.element_names:
            raise InvalidArgumentError(
                f"relative= names the element '{each}', and the elements of this column have no names",
                column=spec.name,
                hint=f"give numbers from 0 to {width - 1}",
            )
        elif each not in (known or ()):
            raise unknown_name(f"element of {spec.name}", each, spec.element_names)
    return numbers
