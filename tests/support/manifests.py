"""Changed manifests that are signed again.

Without the signature every changed manifest would end at the check of its checksum.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash


def signed(data: dict[str, Any]) -> str:
    """Returns the text of a manifest with its own checksum.

    The checksum is computed as the docs describe, without gear-data.
    """
    text = json.dumps({"checksum": "", **data} | {"checksum": ""})
    digest = xxhash.xxh3_128(text.encode()).hexdigest()
    return text.replace('"checksum": ""', f'"checksum": "xxh3-128:{digest}"', 1)


@contextmanager
def edited_manifest(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the manifest of a folder, and writes what the block made of it."""
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    yield data
    path.write_text(signed(data))
