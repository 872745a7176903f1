"""Refusal of keywords that a function does not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gear_data.errors import UnknownArgumentError, closest_name


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
