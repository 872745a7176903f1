"""Values in error messages, shortened for people."""

from __future__ import annotations

import re

#: The characters of one value that a message shows.
MAX_SHOWN = 200
#: The characters of a message that are kept. Only text that contains a whole file or array is longer.
_MAX_MESSAGE = 10_000
#: The beginning of a value in a message: a quote or a bracket, but no apostrophe inside a word.
_OPENING = re.compile(r"(?:(?<!\w)|(?<=\bb))['\"]|[\[({]")
_CLOSING = {"[": "]", "(": ")", "{": "}"}


def shown(value: object) -> str:
    """Returns the `repr` of a value, shortened to 200 characters."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def shorten_values(message: str) -> str:
    """Returns a message whose values have at most 200 characters.

    A value is a text in quotes or brackets, such as the `repr` of a list or an array.
    """
    message = message[:_MAX_MESSAGE]
    done, parts = 0, []
    while len(message) - done > MAX_SHOWN and (opening := _OPENING.search(message, done)) is not None:
        start, end = opening.start(), _end_of_value(message, opening.start())
        if end - start > MAX_SHOWN:
            parts.append(f"{message[done : start + MAX_SHOWN - 4]}...{_CLOSING.get(message[start], message[start])}")
        else:
            parts.append(message[done:end])
        done = end
    return "".join(parts) + message[done:]


def _end_of_value(message: str, start: int) -> int:
    """Returns the index after the quote or bracket that closes the one at `start`.

    Without a closing one: the index after `start`, or the end if the message itself was cut.
    """
    opening, depth = message[start], 0
    closing = _CLOSING.get(opening, opening)
    for index in range(start + 1, len(message)):
        if message[index] == closing:
            if opening != closing and depth:
                depth -= 1
            elif opening != closing or not message[index + 1 : index + 2].isalnum():
                return index + 1
        elif message[index] == opening:
            depth += 1
    return len(message) if len(message) == _MAX_MESSAGE else start + 1
