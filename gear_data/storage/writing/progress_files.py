"""Files in `.progress/`, from which an interrupted conversion resumes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import xxhash

from gear_data.common.signed_text import sign, text_checksum
from gear_data.common.typed_json import parse_json
from gear_data.errors import ResumeError, refuse_exhausted
from gear_data.storage.arrow_files import parse_table
from gear_data.storage.writing.file_store import FileStore, put_text
from gear_data.storage.writing.folder_lock import LOCK_NAME

#: Folder of the progress files inside a dataset's folder. It is removed when the conversion has finished.
PROGRESS = ".progress"

#: The file that a process locks while it writes the dataset.
LOCK = f"{PROGRESS}/{LOCK_NAME}"

#: Size limit of a finished shard's rows of a table. 10^8 episodes have 10 GB.
_TABLE_BYTES = 1 << 34

#: Remedy for progress files that cannot be used.
START_OVER = "start again with --overwrite (overwrite=True)"


def write_progress_file(store: FileStore, file: str, data: Mapping[str, Any]) -> None:
    """Writes a progress file with a checksum of itself."""
    put_text(store, file, sign(json.dumps({"checksum": "", **data})))


def read_progress_file(store: FileStore, file: str) -> dict[str, Any] | None:
    """Returns the data of a progress file; None if the file does not exist.

    Raises:
        ResumeError: the file cannot be read, or was changed.
    """
    name = f"{store.name}/{file}"
    try:
        text = store.read(file).decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, MemoryError) as error:
        refuse_exhausted(error, name)
        raise ResumeError(f"cannot be read: {error}", file=name, hint=START_OVER) from error
    data = parse_json(text, dict[str, Any], error=ResumeError, file=name, hint=START_OVER)
    checksum = data.pop("checksum", None)
    if not isinstance(checksum, str) or text_checksum(text, checksum) != checksum:
        raise ResumeError("its bytes were changed: they differ from its checksum", file=name, hint=START_OVER)
    return data


def read_progress_table(store: FileStore, file: str, kind: str) -> pa.Table:
    """Reads a finished shard's rows of a table.

    Args:
        store: the dataset's folder.
        file: the shard's progress file, which has the checksum of the rows.
        kind: `episodes` or `finals`.

    Raises:
        ResumeError: the rows cannot be read, or were changed.
        CorruptShardError: they are not a valid Arrow IPC file.
    """
    rows = f"{file.removesuffix('.json')}.{kind}"
    name = f"{store.name}/{rows}"
    progress = read_progress_file(store, file)
    if progress is None:
        raise ResumeError("is missing", file=f"{store.name}/{file}", hint=START_OVER)
    try:
        data = store.read(rows, _TABLE_BYTES)
    except (OSError, MemoryError) as error:
        refuse_exhausted(error, name)
        raise ResumeError(f"cannot be read: {error}", file=name, hint=START_OVER) from error
    if progress.get("tables", {}).get(kind) != f"xxh3-128:{xxhash.xxh3_128_hexdigest(data)}":
        raise ResumeError("its bytes were changed: they differ from their checksum", file=name, hint=START_OVER)
    return parse_table(data, name)
