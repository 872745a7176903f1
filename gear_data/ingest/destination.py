"""Where a conversion writes: what may be there already, and what is left of a failed one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gear_data.errors import DestinationExistsError, GearError, InvalidArgumentError, UnwritableError
from gear_data.ingest.card import CARD_NAME
from gear_data.ingest.location import Location
from gear_data.storage.manifest import MANIFEST_NAME
from gear_data.storage.remote.files import is_remote
from gear_data.storage.remote.object_store import open_file_store
from gear_data.storage.writing.file_store import FileStore
from gear_data.storage.writing.progress_files import PROGRESS

#: What a dataset's folder may hold; `.gitattributes` is the hub's.
_OWN = frozenset(
    (
        MANIFEST_NAME,
        CARD_NAME,
        PROGRESS,
        "episodes.arrow",
        "finals.arrow",
        "shards",
        "sidecars",
        ".gitattributes",
        ".git",
    )
)


def prepare(destination: str, overwrite: bool, resume: bool) -> tuple[str, str]:
    """Where the dataset is to be, and where to write it: there, or beside it while it holds what is to be replaced.

    Raises:
        DestinationExistsError: there is something that is not to be replaced, or not to be gone on with.
        UnwritableError: what is there cannot be seen, or its name cannot be one.
    """
    if is_remote(destination):
        _check_remote(open_file_store(destination), overwrite, resume)
        return destination, destination
    target = Path(destination)
    try:
        if target.is_symlink():
            target = target.resolve()
        return str(target), str(_local_folder(target, overwrite, resume))
    except GearError:
        raise
    except OSError as error:
        raise UnwritableError(
            f"cannot be used: {error.strerror}", file=str(target), hint="choose another destination"
        ) from error


def check_disjoint(location: Location, destination: str) -> None:
    """Raises InvalidArgumentError where a source on this machine and the destination are one in the other."""
    if is_remote(destination):
        return
    target = Path(os.path.realpath(destination))
    for file in location.files:
        if file.filesystem is None and target in Path(os.path.realpath(file.path)).parents:
            raise InvalidArgumentError(
                "the source lies inside the destination", file=file.path, hint="choose another destination"
            )
    if location.folder and os.path.isdir(location.name) and Path(os.path.realpath(location.name)) in target.parents:
        raise InvalidArgumentError(
            "the destination lies inside the source", file=destination, hint="choose another destination"
        )


def _check_remote(store: FileStore, overwrite: bool, resume: bool) -> None:
    files = store.files()
    if not files or (resume and any(name == MANIFEST_NAME or name.startswith(f"{PROGRESS}/") for name in files)):
        return
    hint = "choose another destination, or remove it"
    if overwrite:
        hint = "remote folders cannot be replaced in one step: remove it yourself"
    elif MANIFEST_NAME not in files and any(name.startswith(f"{PROGRESS}/") for name in files):
        hint = "it is a half-done conversion: --resume goes on with it"
    raise DestinationExistsError("the destination exists and is not empty", file=store.name, hint=hint)


def _local_folder(target: Path, overwrite: bool, resume: bool) -> Path:
    if not target.exists():
        return target
    if not target.is_dir():
        raise DestinationExistsError("the destination is a file", file=str(target))
    if not any(target.iterdir()):
        return target
    is_ours = (target / MANIFEST_NAME).exists() or (target / PROGRESS).exists()
    if resume and is_ours:
        return target
    if overwrite and is_ours and target.is_mount():
        raise DestinationExistsError(
            "a mount point cannot be replaced in one step", file=str(target), hint="convert into a folder inside it"
        )
    if overwrite and is_ours:
        foreign = sorted(path.name for path in target.iterdir() if path.name not in _OWN)
        if foreign:
            raise DestinationExistsError(
                f"holds what is no part of a dataset, and would be lost: {', '.join(foreign[:5])}",
                file=str(target),
                hint="move it elsewhere first",
            )
        return target.with_name(f".{target.name}.gear-new")
    if overwrite:
        raise DestinationExistsError(
            "the destination is not a gear dataset; only those are overwritten",
            file=str(target),
            hint="remove it yourself",
        )
    hint = "choose another destination, or --overwrite" if is_ours else "choose another destination"
    if not (target / MANIFEST_NAME).exists() and is_ours:
        hint = "it is a half-done conversion: --resume goes on with it, --overwrite starts again"
    raise DestinationExistsError("the destination exists and is not empty", file=str(target), hint=hint)


@contextmanager
def removed_if_failed(folder: str) -> Iterator[None]:
    """Removes a local folder that the body made and left empty when it failed."""
    existed = os.path.exists(folder)
    try:
        yield
    except BaseException:
        if not existed and not is_remote(folder):
            with suppress(OSError):
                os.rmdir(folder)
        raise
