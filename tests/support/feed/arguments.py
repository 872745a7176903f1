"""Arguments of a SequenceLoader as a flat mapping, which tests can vary and merge."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gear_data.loaders.arguments.options import GROUPS

#: Field -> its group. `backend` is the processor's, not the decoder's.
_GROUP = {each.name: name for name, kind in reversed(GROUPS.items()) for each in fields(kind) if name != "video"}
_GROUP |= {"threads": "video", "cache_bytes": "video"}


def grouped(**arguments: Any) -> dict[str, Any]:
    """Returns arguments with the fields of groups put into their groups."""
    groups: dict[str, dict[str, Any]] = {}
    plain = {}
    for name, value in arguments.items():
        if name in _GROUP:
            groups.setdefault(_GROUP[name], {})[name] = value
        else:
            plain[name] = value
    return {**plain, **{name: GROUPS[name](**values) for name, values in groups.items()}}
