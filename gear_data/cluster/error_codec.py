"""JSON encoding of errors, to raise them again in another process."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from gear_data import errors
from gear_data.common.typed_json import resolved
from gear_data.errors import EpisodeRefusedError, GearError

#: Most characters of each text of a peer's error.
_MAX_CHARACTERS = 10_000

T = TypeVar("T", str, str | None)


@resolved
class _EncodedError(msgspec.Struct, omit_defaults=True):
    """A `GearError` in JSON. `error` is the name of its class. `sequence` is of an `EpisodeRefusedError`."""

    error: str
    message: str
    column: str | None = None
    hint: str | None = None
    sequence: int | None = None


def error_to_bytes(error: GearError) -> bytes:
    """Encodes an error as one line of JSON.

    The file and the row are left out, because they mean nothing on another machine.
    """
    sequence = error.sequence if isinstance(error, EpisodeRefusedError) else None
    return msgspec.json.encode(_EncodedError(type(error).__name__, error.message, error.column, error.hint, sequence))


def error_from_bytes(data: bytes, file: str | None = None) -> GearError | None:
    """Decodes an error. Returns None if the data does not hold an error of gear-data.

    Args:
        data: the output of `error_to_bytes`, or anything that a peer sent.
        file: `file` of the decoded error, such as the name of the peer.
    """
    try:
        encoded = msgspec.json.decode(data, type=_EncodedError)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    kind = getattr(errors, encoded.error, None)
    if not (isinstance(kind, type) and issubclass(kind, GearError)):
        return None
    error = kind(
        _printable(encoded.message), file=file, column=_printable(encoded.column), hint=_printable(encoded.hint)
    )
    if isinstance(error, EpisodeRefusedError):
        error.sequence = encoded.sequence
    return error


def _printable(text: T) -> T:
    """Returns a peer's text without control characters, and of limited length."""
    if text is None:
        return text
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in text[:_MAX_CHARACTERS])
