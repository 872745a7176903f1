"""Checks of arguments: unknown keywords, counts, groups of arguments."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from gear_data.errors import InvalidArgumentError, UnknownArgumentError, closest_name

Value = TypeVar("Value")
#: The least similarity, by difflib, of a misspelled keyword.
_NEARLY = 0.85


def refuse_keywords(
    function: str, unknown: Iterable[str], known: Iterable[str], moved: Mapping[str, str] | None = None
) -> None:
    """Raises UnknownArgumentError for the first unknown keyword, if there is one.

    A function with `**unknown: Never` passes them here. Type checkers then refuse them too.

    Args:
        function: the name of the function or class.
        unknown: the keywords that were given and are not its arguments.
        known: the names of its arguments.
        moved: name that may be given for an argument -> what to give.
    """
    for name in unknown:
        if moved is not None and name in moved:
            raise UnknownArgumentError(f"{function} has no argument '{name}'", hint=f"give {moved[name]}")
        raise UnknownArgumentError(f"{function} has no argument '{name}'", hint=closest_name(name, known))


def refuse_keywords_of(
    function: Callable[..., object], unknown: Iterable[str], moved: Mapping[str, str] | None = None
) -> None:
    """Raises UnknownArgumentError for the first unknown keyword of a function or class, if there is one.

    The known names are the parameters in its signature. See `refuse_keywords`.
    """
    if unknown:
        parameters = inspect.signature(function).parameters.values()
        known = [each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        refuse_keywords(function.__name__, unknown, known, moved)


def refuse_misspelled(function: str, names: Iterable[str], known: Sequence[str], more: str = "") -> None:
    """Raises UnknownArgumentError for the first name that is nearly a keyword of a function.

    Args:
        function: the name of a function that takes further names, such as `end_episode`.
        names: the further names.
        known: its own keywords.
        more: what else the hint says.
    """
    for name in names:
        if close := difflib.get_close_matches(name, known, n=1, cutoff=_NEARLY):
            raise UnknownArgumentError(
                f"{function} has no argument '{name}'", hint=f"did you mean '{close[0]}'?{more and f' {more}'}"
            )


def suggest_fields(kind: type[Value]) -> type[Value]:
    """Makes a dataclass refuse unknown keywords as functions do, with the closest name. A class decorator."""
    create = kind.__init__
    known = [each.name for each in dataclasses.fields(kind) if each.init]  # type: ignore[arg-type]

    @functools.wraps(create)
    def checked(self: Any, *arguments: Any, **values: Any) -> None:
        refuse_keywords(kind.__name__, [name for name in values if name not in known], known)
        create(self, *arguments, **values)

    kind.__init__ = checked  # type: ignore[method-assign]
    return kind


def suggest_keywords(kind: type[Value]) -> type[Value]:
    """Makes a class and its public methods refuse unknown keywords as functions do. A class decorator.

    Methods without defaults, those that take any keyword, class methods and static methods stay as they are.
    """
    for name, method in [*vars(kind).items()]:
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            parameters = [*inspect.signature(method).parameters.values()][1:]
            free = any(each.kind is each.VAR_KEYWORD for each in parameters)
            if not free and any(each.default is not each.empty for each in parameters):
                setattr(kind, name, _checked_method(method, [each.name for each in parameters]))
    return kind


def _checked_method(method: Callable[..., Any], known: Sequence[str]) -> Callable[..., Any]:
    title = method.__qualname__.removesuffix(".__init__")

    @functools.wraps(method)
    def checked(self: Any, *arguments: Any, **values: Any) -> Any:
        if values:
            refuse_keywords(title, [name for name in values if name not in known], known)
        return method(self, *arguments, **values)

    return checked


def check_range(name: str, value: Any, low: int, high: int | None = None) -> None:
    """Raises InvalidArgumentError unless `value` is an integer from `low` to `high`."""
    integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not integer or value < low or (high is not None and value > high):
        limit = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise InvalidArgumentError(f"{name} must be an integer {limit}, not {value!r}")


def check_group(name: str, value: Any, kind: type) -> None:
    """Raises InvalidArgumentError unless a value is a group of arguments of this type."""
    if not isinstance(value, kind):
        raise InvalidArgumentError(
            f"{name} must be {kind.__name__}, not {value!r}", hint=f"such as {name}=gear_data.{kind.__name__}(...)"
        )
