"""JSON texts with a checksum of themselves.

A changed byte may leave valid JSON of another meaning, such as another mean of a column.
"""

from __future__ import annotations

import xxhash

#: Place of the checksum in a text that is not signed yet.
_UNSIGNED = '"checksum": ""'


def text_checksum(text: str, checksum: str = "") -> str:
    """Returns the checksum of a text, `xxh3-128:HEX`.

    It covers the text in UTF-8 whose key `checksum` has the value "".

    Args:
        text: a JSON object.
        checksum: value of the key `checksum` in the text.
    """
    return f"xxh3-128:{xxhash.xxh3_128_hexdigest(text.replace(checksum, '', 1).encode())}"


def sign(text: str) -> str:
    """Returns a text with its checksum.

    Args:
        text: a JSON object, whose first key `checksum` has the value "".
    """
    return text.replace(_UNSIGNED, f'"checksum": "{text_checksum(text)}"', 1)
