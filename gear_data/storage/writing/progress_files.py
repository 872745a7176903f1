"""Files in `.progress/`, from which an interrupted conversion resumes."""

from __future__ import annotations

from gear_data.errors import ResumeError
from gear_data.storage.writing.file_store import FileStore
from gear_data.storage.writing.folder_lock import LOCK_NAME

#: Folder of the progress files inside a dataset's folder. It is removed when the conversion has finished.
PROGRESS = ".progress"

#: The file that a process locks while it writes the dataset.
LOCK = f"{PROGRESS}/{LOCK_NAME}"

#: Remedy for progress files that cannot be used.
START_OVER = "start again with --overwrite"


def read_progress_file(store: FileStore, file: str) -> str | None:
    """Returns the text of a progress file; None if it does not exist.

    Raises:
        ResumeError: the file cannot be read.
    """
    try:
        return store.read(file).decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, MemoryError) as error:
        raise ResumeError(f"cannot be read: {error}", file=f"{store.name}/{file}", hint=START_OVER) from error
