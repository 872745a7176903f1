"""JSON encoding of errors, to raise them again in another process."""

from __future__ import annotations

import msgspec

from gear_data import errors
from gear_data.errors import GearError


class _EncodedError(msgspec.Struct, omit_defaults=True):
    error: str
    message: str
    file: str | None = None
    column: str | None = None
    row: int | None = None
    hint: str | None = None


def error_to_bytes(error: GearError, *, with_place: bool = False) -> bytes:
    """Encodes an error as one line of JSON.

    Args:
        error: the error.
        with_place: whether to encode the file and the row. Peers leave both out: they mean nothing on another machine.
    """
    encoded = _EncodedError(type(error).__name__, error.message, column=error.column, hint=error.hint)
    if with_place:
        encoded.file, encoded.row = error.file, error.row
    return msgspec.json.encode(encoded)


def error_from_bytes(data: bytes, file: str | None = None) -> GearError | None:
    """Decodes an error. Returns None if the data does not hold an error of gear-data.

    Args:
        data: the output of `error_to_bytes`, or anything that a peer sent.
        file: replaces the encoded file, unless None. For an error of a peer: the peer's name.
    """
    try:
        encoded = msgspec.json.decode(data, type=_EncodedError)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    kind = getattr(errors, encoded.error, None)
    if not (isinstance(kind, type) and issubclass(kind, GearError)):
        return None
    place = encoded.file if file is None else file
    return kind(encoded.message, file=place, column=encoded.column, row=encoded.row, hint=encoded.hint)
