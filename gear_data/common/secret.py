"""Secret: a token or a private key that is never printed, and its way through JSON."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

import msgspec

T = TypeVar("T")


class Secret:
    """Bytes that `repr`, `str`, `format`, logs and tracebacks with local variables do not show.

    Call `reveal` only inside the expression that needs the bytes: a local variable would be shown. A secret cannot be
    pickled. `encode_json` and `decode_json` carry it between processes.
    """

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        return self._value

    def __repr__(self) -> str:
        return "<secret>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __deepcopy__(self, memo: Any) -> Secret:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a secret cannot be pickled")


def encode_json(value: Any) -> Secret:
    """Returns a value that may hold secrets as JSON."""
    return Secret(msgspec.json.encode(value, enc_hook=_encode))


def decode_json(data: Secret, kind: type[T]) -> T:
    """Decodes the output of `encode_json`.

    Raises:
        ValueError: the data is not JSON of this type. The message shows none of the data.
    """
    return msgspec.json.decode(data.reveal(), type=kind, dec_hook=_decode)


def _encode(value: Any) -> str:
    if isinstance(value, Secret):
        return value.reveal().decode("ascii")
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


def _decode(kind: type, value: Any) -> Secret:
    is_text = isinstance(value, str) and value.isascii()
    secret = Secret(value.encode() if is_text else b"")
    del value
    if kind is not Secret or not is_text:
        raise ValueError(f"expected ASCII text for a {kind.__name__}")
    return secret
