"""Changed manifests and tables that are signed again.

Without the signature every change would end at the check of a checksum.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
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


def sign_file(folder: Path, file: str) -> None:
    """Writes the size and checksum of a changed file to the manifest."""
    content = (folder / file).read_bytes()
    with edited_manifest(folder) as data:
        for entry in (*data["shards"], *data["tables"].values()):
            if entry["file"] == file:
                entry.update(bytes=len(content), checksum=f"xxh3-128:{xxhash.xxh3_128_hexdigest(content)}")


def read_ipc(path: Path) -> pa.Table:
    """Reads an Arrow IPC file, which may be overwritten then."""
    return pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all()


def replace_table(folder: Path, file: str, table: pa.Table, **options: Any) -> None:
    """Writes and signs a table of a dataset. `options` are of `pyarrow.ipc.IpcWriteOptions`."""
    (folder / file).unlink(missing_ok=True)  # an opened dataset keeps the old file
    write = pa.ipc.IpcWriteOptions(**options)
    with pa.OSFile(str(folder / file), "wb") as sink, pa.ipc.new_file(sink, table.schema, options=write) as writer:
        writer.write_table(table)
    sign_file(folder, file)
