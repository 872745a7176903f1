"""Destinations of exports: their names, and files and folders written atomically."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gear_data.common.paths import is_remote, plain_path
from gear_data.errors import DestinationExistsError, InvalidArgumentError
from gear_data.storage.atomic import atomic_file, typed_write_errors
from gear_data.storage.writing.folder_lock import folder_lock

#: Format -> endings of the files that it writes. Every format also writes a folder, and those not listed only a folder.
FILE_SUFFIXES = {"parquet": (".parquet",), "d4rl": (".hdf5", ".h5"), "npz": (".npz",)}

#: The ending of a file name. A version, as in `hopper-v2.1`, does not match.
_ENDING = re.compile(r"\.[A-Za-z]\w*")


def export_target(destination: str | os.PathLike[str], format: str, suffixes: tuple[str, ...]) -> Path:
    """Returns the path to export to.

    Args:
        destination: a path. With a slash at the end, or as an existing folder, it may have any name.
        format: name of the format, for the error.
        suffixes: endings of the files that the format writes. Without one, it writes a folder.

    Raises:
        InvalidArgumentError: the destination is a URL, or has the ending of another kind of file.
    """
    text = plain_path(destination)
    if is_remote(text):
        raise InvalidArgumentError(
            "an export cannot be written to a URL", file=text, hint="export to a local folder, then upload the folder"
        )
    path = Path(text)
    is_named_folder = text.endswith("/") or path.is_dir()
    if _ENDING.fullmatch(path.suffix) and path.suffix not in suffixes and not is_named_folder:
        written = f"a folder or a file that ends in {' or '.join(suffixes)}" if suffixes else "a folder"
        others = [name for name, endings in FILE_SUFFIXES.items() if path.suffix in endings and suffixes]
        hint = f"--format {others[0]} writes {path.suffix}" if others else "use such a name"
        raise InvalidArgumentError(
            f"the name ends in {path.suffix}, but the format {format} writes {written}",
            file=text,
            hint=f"{hint}; for a folder of this name, put a slash at its end",
        )
    return path


def refuse_existing(destination: Path) -> None:
    """Checks that the destination is missing or an empty folder.

    Raises DestinationExistsError otherwise, and for a mount point.
    """
    if destination.is_dir() and not any(destination.iterdir()):
        if os.path.ismount(destination):
            raise DestinationExistsError(
                "the destination is a mount point, and no folder can be renamed to it",
                file=str(destination),
                hint=f"name a folder inside it, such as {destination / 'export'}",
            )
        return
    if destination.exists():
        raise DestinationExistsError(
            "the destination already exists", file=str(destination), hint="choose another one, or remove it"
        )


@contextmanager
def atomic_folder(destination: Path) -> Iterator[Path]:
    """Yields a temporary folder.

    Renames it to the destination on success, and removes it on failure.

    Raises:
        DestinationExistsError: the destination is not empty, or another process is exporting to it.
        StorageFullError: the disk is full.
        UnwritableError: the system refuses the write.
    """
    # If the destination is a link to an empty folder, that folder is filled and the link stays.
    with typed_write_errors(destination):
        destination = destination.resolve()
    with _reserved(destination) as workspace:
        temporary = workspace / "data"
        try:
            with typed_write_errors(destination):
                temporary.mkdir()
                yield temporary
                os.replace(temporary, destination)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextmanager
def atomic_new_file(destination: Path) -> Iterator[Path]:
    """Yields a temporary file.

    Renames it to the destination on success, and removes it on failure.

    Raises the errors of `atomic_folder`.
    """
    with _reserved(destination), atomic_file(destination) as temporary:
        yield temporary


@contextmanager
def atomic_file_or_folder(destination: Path, suffixes: tuple[str, ...], name: str) -> Iterator[Path]:
    """Yields a temporary file, which becomes the destination or a file in it.

    Raises the errors of `atomic_folder`.

    Args:
        destination: a file if it ends in one of `suffixes`, otherwise a folder.
        suffixes: file suffixes of the format.
        name: name of the file if the destination is a folder.
    """
    if destination.suffix in suffixes:
        with atomic_new_file(destination) as file:
            yield file
    else:
        with atomic_folder(destination) as folder:
            yield folder / name


@contextmanager
def _reserved(destination: Path) -> Iterator[Path]:
    """Lets no other export write to the destination, and yields a folder beside it for temporary files."""
    workspace = destination.with_name(f".{destination.name}.gear-export")
    with typed_write_errors(destination):
        if not workspace.exists():  # else an export that was killed may have left it, and the lock removes it
            refuse_existing(destination)
    with folder_lock(workspace, name=str(destination), hint="wait until it has finished, or choose another one"):
        shutil.rmtree(workspace / "data", ignore_errors=True)
        with typed_write_errors(destination):
            refuse_existing(destination)  # another export may have finished before this one had the lock
        yield workspace
