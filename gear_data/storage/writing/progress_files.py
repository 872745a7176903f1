"""Files in `.progress/`, from which an interrupted conversion resumes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gear_data.common.signed_text import sign, text_checksum
from gear_data.common.typed_json import parse_json
from gear_data.errors import ResumeError
from gear_data.storage.writing.file_store import FileStore, put_text
from gear_data.storage.writing.folder_lock import LOCK_NAME

#: Folder of the progress files inside a dataset's folder. It is removed when the conversion has finished.
PROGRESS = ".progress"

#: The file that a process locks while it writes the dataset.
LOCK = f"{PROGRESS}/{LOCK_NAME}"

#: Remedy for progress files that cannot be used.
START_OVER = "start again with --overwrite"


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
        raise ResumeError(f"cannot be read: {error}", file=name, hint=START_OVER) from error
    data = parse_json(text, dict[str, Any], error=ResumeError, file=name, hint=START_OVER)
    checksum = data.pop("checksum", None)
    if not isinstance(checksum, str) or text_checksum(text, checksum) != checksum:
        raise ResumeError("its bytes were changed: they differ from its checksum", file=name, hint=START_OVER)
    return data
