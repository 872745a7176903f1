"""JSON and YAML documents, checked against typed records.

A record is a dataclass, a named tuple or a `msgspec.Struct`. `msgspec` checks every field, and its error names the path
of the wrong one, such as `$.shards[0].bytes`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from gear_data.common.paths import printable
from gear_data.errors import GearError

#: An integer that fits int64 and is not negative.
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]

Record = TypeVar("Record")


def resolved(record: type[Record]) -> type[Record]:
    """Decorates a record type: `msgspec` looks up the types of its fields now.

    Else `msgspec` does it when the type is decoded for the first time, and two threads that decode it then crash the
    process (seen with `msgspec` 0.22). Each record type is decorated, after the types of its fields.
    """
    msgspec.json.Decoder(record)
    return record


def parse_json(
    text: str | bytes, record: type[Record], *, error: type[GearError], file: str, hint: str | None = None
) -> Record:
    """Parses a JSON document and checks it against a record type.

    The standard library parses it: `msgspec` refuses lone surrogates and NaN, which source metadata may contain.

    Args:
        text: the document; bytes are UTF-8.
        record: type of the whole document. Its fields without a default are required; unknown fields are ignored.
        error: class of the error to raise.
        file: name of the document, for the error.
        hint: remedy, for the error.

    Raises:
        GearError: of class `error`; the text is not JSON, or a field is missing or has another type.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError, MemoryError) as reason:
        raise error(f"not a JSON document: {type(reason).__name__}: {reason}", file=file, hint=hint) from reason
    return check_json(data, record, error=error, file=file, hint=hint)


def check_json(
    data: Any, record: type[Record], *, error: type[GearError], file: str, hint: str | None = None
) -> Record:
    """Checks a parsed JSON document against a record type.

    Arguments and errors are as for `parse_json`.
    """
    try:
        return msgspec.convert(data, record)
    except (ValueError, ArithmeticError, RecursionError) as reason:
        raise error(f"malformed: {reason}", file=file, hint=hint) from reason


def parse_yaml(text: bytes, *, error: type[GearError], file: str) -> Any:
    """Parses a YAML document of plain values. A key that is given twice is an error.

    Args:
        text: the document, UTF-8.
        error: class of the error to raise.
        file: name of the document, for the error.

    Raises:
        GearError: of class `error`; the text is not YAML.
    """
    import yaml

    try:
        _refuse_repeated_keys(yaml.compose(text, yaml.SafeLoader), set())
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as reason:
        raise error(f"is not YAML: {reason}", file=file, hint="correct the line that the message names") from reason


def _refuse_repeated_keys(node: Any, seen: set[int]) -> None:
    """Raises YAMLError for a key that is given twice.

    `safe_load` keeps only the last value.
    """
    import yaml

    if not isinstance(node, yaml.CollectionNode) or id(node) in seen:
        return
    seen.add(id(node))
    keys: set[str] = set()
    for child in node.value:
        key, value = child if isinstance(node, yaml.MappingNode) else (None, child)
        if isinstance(key, yaml.ScalarNode):
            if key.value in keys:
                raise yaml.YAMLError(f"the key '{key.value}' is given twice, in line {key.start_mark.line + 1}")
            keys.add(key.value)
        _refuse_repeated_keys(value, seen)


def is_json(value: Any) -> bool:
    """Returns whether JSON holds a value."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def to_json_value(value: Any) -> Any:
    """Converts metadata to JSON. NaN, Inf and values of other types become text."""
    if isinstance(value, Mapping):
        return {printable(str(key)): to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return printable(str(value))
