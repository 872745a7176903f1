"""Destinations of exports: their names, and files and folders written atomically.

An export can be recognised, so that another one may replace it and nothing else is ever removed: a file has a mark
inside, and a folder has the hidden file `LISTING`, which lists its files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from gear_data.common.extras import h5py
from gear_data.common.paths import is_remote, named, plain_path
from gear_data.errors import DestinationExistsError, InvalidArgumentError
from gear_data.storage.atomic import atomic_file, swap_folders, typed_write_errors
from gear_data.storage.writing.folder_lock import folder_lock

#: Format -> endings of the files that it writes. Every format also writes a folder, and those not listed only a folder.
FILE_SUFFIXES = {"parquet": (".parquet",), "d4rl": (".hdf5", ".h5"), "npz": (".npz",)}

#: File in an exported folder with the name and the size of all other files, as JSON.
LISTING = ".gear-export.json"
#: Key of Parquet's metadata, HDF5 attribute of the rewards, and comment of a zip archive: gear-data exported the file.
MARK = "gear_data_export"

#: The ending of a file name. A version, as in `hopper-v2.1`, does not match.
_ENDING = re.compile(r"\.[A-Za-z]\w*")


def export_target(destination: str | os.PathLike[str], format: str, suffixes: tuple[str, ...]) -> Path:
    """Returns the path to export to.

    Args:
        destination: a path. With a slash at the end, or as an existing folder, it may have any name.
        format: name of the format, for the error.
        suffixes: endings of the files that the format writes. Without one, it writes a folder.

    Raises:
        InvalidArgumentError: the destination is a URL, has no name, or has the ending of another kind of file.
    """
    text = plain_path(destination)
    if is_remote(text):
        raise InvalidArgumentError(
            "an export cannot be written to a URL", file=text, hint="export to a local folder, then upload the folder"
        )
    path = named(Path(text))
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


def refuse_existing(destination: Path, overwrite: bool = False) -> None:
    """Checks that the destination is missing or an empty folder, or with `overwrite` an export.

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
    if not destination.exists():
        return
    foreign = _no_export(destination)
    if foreign is None and overwrite:
        return
    if overwrite:
        raise DestinationExistsError(
            f"overwrite replaces only exports, and {foreign}",
            file=str(destination),
            hint="choose another destination, or remove it",
        )
    raise DestinationExistsError(
        "the destination already exists",
        file=str(destination),
        hint=f"choose another one, or {'remove it' if foreign else 'replace it: overwrite=True (--overwrite)'}",
    )


def _no_export(path: Path) -> str | None:
    """Returns why a file or folder is no export, or has more than the export; None: it is an export."""
    if not path.is_dir():
        return None if _is_marked(path) else "this file is none"
    if path.is_mount():
        return "this is a mount point"
    try:
        listed = dict(json.loads((path / LISTING).read_bytes())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"this folder has no {LISTING}"
    found = folder_files(path)
    changed = sorted(name for name in found if found[name] is None or listed.get(name) != found[name])
    return f"{changed[0]} was added or changed since" if changed else None


def _is_marked(path: Path) -> bool:
    """Returns whether a file has the mark of an export."""
    try:
        if path.suffix == ".parquet":
            return MARK.encode() in (pq.read_metadata(path).metadata or {})
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                return archive.comment == MARK.encode()
        with h5py.File(path, "r") as file:
            return MARK in file["rewards"].attrs
    except Exception:  # a damaged file gives errors of many kinds
        return False


def folder_files(folder: Path) -> dict[str, int | None]:
    """Returns the files of a folder, without `LISTING`: path in the folder -> bytes; None for what is no file."""
    found: dict[str, int | None] = {}
    for place, folders, names in os.walk(folder):
        for name in (*names, *(each for each in folders if os.path.islink(os.path.join(place, each)))):
            path = Path(place, name)
            plain = path.is_file() and not path.is_symlink()
            found[path.relative_to(folder).as_posix()] = path.stat().st_size if plain else None
    found.pop(LISTING, None)
    return dict(sorted(found.items()))


@contextmanager
def atomic_folder(destination: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yields a temporary folder.

    Renames it to the destination on success, and removes it on failure. With `overwrite`, an export at the destination
    changes places with it, and is removed.

    Raises:
        DestinationExistsError: the destination is not empty and, with `overwrite`, no export; or another process is
            exporting to it.
        StorageFullError: the disk is full.
        UnwritableError: the system refuses the write.
    """
    # If the destination is a link to an empty folder, that folder is filled and the link stays.
    with typed_write_errors(destination):
        destination = destination.resolve()
    with _reserved(destination, overwrite) as workspace:
        temporary = workspace / "data"
        try:
            with typed_write_errors(destination):
                temporary.mkdir()
                yield temporary
                (temporary / LISTING).write_text(json.dumps({"files": folder_files(temporary)}), encoding="utf-8")
                _place(temporary, destination, overwrite)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def _place(temporary: Path, destination: Path, overwrite: bool) -> None:
    """Renames a finished folder to the destination, and removes an export that was there."""
    if not overwrite or not destination.exists():
        os.replace(temporary, destination)
        return
    swap_folders(temporary, destination)
    try:
        refuse_existing(temporary, overwrite)  # a file may have been added since the export began
    except DestinationExistsError as error:
        swap_folders(temporary, destination)
        error.file = str(destination)
        raise
    shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def atomic_new_file(destination: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yields a temporary file.

    Renames it to the destination on success, and removes it on failure.

    Raises the errors of `atomic_folder`.
    """
    if overwrite:
        with typed_write_errors(destination):
            destination = destination.resolve()  # a link stays
    if destination.is_dir():
        raise DestinationExistsError(
            f"a name that ends in {destination.suffix} is a file's, and the destination is a folder",
            file=str(destination),
            hint="choose another name, or remove the folder",
        )
    with _reserved(destination, overwrite), atomic_file(destination) as temporary:
        yield temporary
        refuse_existing(destination, overwrite)  # another file may have taken the place since the export began


@contextmanager
def atomic_file_or_folder(
    destination: Path, suffixes: tuple[str, ...], name: str, overwrite: bool = False
) -> Iterator[Path]:
    """Yields a temporary file, which becomes the destination or a file in it.

    Raises the errors of `atomic_folder`.

    Args:
        destination: a file if it ends in one of `suffixes`, otherwise a folder.
        suffixes: file suffixes of the format.
        name: name of the file if the destination is a folder.
        overwrite: replace an export.
    """
    if destination.suffix in suffixes:
        with atomic_new_file(destination, overwrite) as file:
            yield file
    else:
        with atomic_folder(destination, overwrite) as folder:
            yield folder / name


@contextmanager
def _reserved(destination: Path, overwrite: bool) -> Iterator[Path]:
    """Lets no other export write to the destination, and yields a folder beside it for temporary files."""
    workspace = destination.with_name(f".{destination.name}.gear-export")
    with typed_write_errors(destination):
        if not workspace.exists():  # else an export that was killed may have left it, and the lock removes it
            refuse_existing(destination, overwrite)
    with folder_lock(workspace, name=str(destination), hint="wait until it has finished, or choose another one"):
        shutil.rmtree(workspace / "data", ignore_errors=True)
        with typed_write_errors(destination):
            refuse_existing(destination, overwrite)  # another export may have finished before this one had the lock
        yield workspace
