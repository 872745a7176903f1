"""Writing a folder, or a file, so that it is there whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gear_data.errors import DestinationExistsError
from gear_data.storage.atomic import atomic_file, typed_write_errors


def refuse_existing(destination: Path) -> None:
    """Raises DestinationExistsError unless there is nothing, or an empty folder."""
    if destination.is_dir() and not any(destination.iterdir()):
        if os.path.ismount(destination):
            raise DestinationExistsError(
                "the destination is a mount point, which nothing can be renamed to",
                file=str(destination),
                hint=f"name a folder inside it, such as {destination / 'export'}",
            )
        return
    if destination.exists():
        raise DestinationExistsError(
            "the destination exists", file=str(destination), hint="choose another one, or remove it"
        )


@contextmanager
def atomic_folder(destination: Path) -> Iterator[Path]:
    """Yields a folder to fill, beside the destination; renames it there when the body succeeds, else removes it.

    Raises:
        DestinationExistsError: there is something at the destination.
        StorageFullError: the disk is full.
    """
    # A link to an empty folder stays, and the folder it leads to is filled.
    with typed_write_errors(destination):
        destination = destination.resolve()
        refuse_existing(destination)
    temporary = destination.with_name(f".{destination.name}.tmp")
    try:
        with typed_write_errors(destination):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            yield temporary
            os.replace(temporary, destination)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextmanager
def atomic_file_or_folder(destination: Path, suffixes: tuple[str, ...], name: str) -> Iterator[Path]:
    """Yields a file to write, which becomes the destination where that ends in one of `suffixes`, else the file `name`
    of a folder there. Raises as `atomic_folder` does."""
    if destination.suffix not in suffixes:
        with atomic_folder(destination) as folder:
            yield folder / name
        return
    with typed_write_errors(destination):
        refuse_existing(destination)
    with atomic_file(destination) as temporary:
        yield temporary
