"""The destination of a conversion: checks before, cleanup after a failure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gear_data.common.paths import is_remote
from gear_data.errors import DestinationExistsError, GearError, InvalidArgumentError, UnwritableError
from gear_data.ingest.card import CARD_NAME
from gear_data.ingest.location import Location
from gear_data.storage.manifest import MANIFEST_NAME
from gear_data.storage.remote.object_store import open_file_store
from gear_data.storage.writing.file_store import FileStore
from gear_data.storage.writing.progress_files import PROGRESS

#: The files that a dataset's folder may hold. The hub adds `.gitattributes`.
_DATASET_FILES = frozenset(
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


@dataclass(frozen=True)
class Target:
    """The place of a dataset.

    Attributes:
        folder: The folder or URL of the finished dataset.
        staging: The folder or URL to write to. It differs from `folder` if `folder` holds a dataset to replace.
    """

    folder: str
    staging: str

    @property
    def replaces(self) -> bool:
        """Whether a dataset at `folder` will be replaced."""
        return self.staging != self.folder


def choose_target(destination: str, overwrite: bool, resume: bool) -> Target:
    """Checks the destination and chooses the folder to write to.

    Raises:
        DestinationExistsError: The destination holds files that must not be replaced or resumed.
        UnwritableError: The destination cannot be listed, or its name is not valid.
    """
    if is_remote(destination):
        _check_remote(open_file_store(destination), overwrite, resume)
        return Target(destination, destination)
    target = Path(destination)
    try:
        if target.is_symlink():
            target = target.resolve()
        return Target(str(target), str(_local_staging(target, overwrite, resume)))
    except GearError:
        raise
    except OSError as error:
        raise UnwritableError(
            f"cannot be used: {error.strerror}", file=str(target), hint="choose another destination"
        ) from error


def check_disjoint(location: Location, destination: str) -> None:
    """Checks that a local source and a local destination do not contain each other.

    Raises:
        InvalidArgumentError: One contains the other.
    """
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
        hint = "a remote folder cannot be replaced in one step: remove it yourself"
    elif MANIFEST_NAME not in files and any(name.startswith(f"{PROGRESS}/") for name in files):
        hint = "it is an unfinished conversion: --resume continues it"
    raise DestinationExistsError("the destination exists and is not empty", file=store.name, hint=hint)


def _local_staging(target: Path, overwrite: bool, resume: bool) -> Path:
    """Returns the folder to write to.

    Raises:
        DestinationExistsError: The target holds files that must not be replaced or resumed.
        OSError: The target cannot be listed.
    """
    if not target.exists():
        return target
    if not target.is_dir():
        raise DestinationExistsError(
            "the destination is a file, not a folder", file=str(target), hint="choose another destination"
        )
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
        foreign = sorted(path.name for path in target.iterdir() if path.name not in _DATASET_FILES)
        if foreign:
            raise DestinationExistsError(
                f"holds files that are not part of a dataset and would be lost: {', '.join(foreign[:5])}",
                file=str(target),
                hint="move it elsewhere first",
            )
        return target.with_name(f".{target.name}.gear-new")
    if overwrite:
        raise DestinationExistsError(
            "the destination is not a GEAR dataset, and --overwrite replaces only GEAR datasets",
            file=str(target),
            hint="remove it yourself",
        )
    hint = "choose another destination, or --overwrite" if is_ours else "choose another destination"
    if not (target / MANIFEST_NAME).exists() and is_ours:
        hint = "it is an unfinished conversion: --resume continues it, --overwrite starts again"
    raise DestinationExistsError("the destination exists and is not empty", file=str(target), hint=hint)


@contextmanager
def remove_new_folder_on_error(folder: str) -> Iterator[None]:
    """Removes a local folder if the body created it, failed, and left it empty."""
    existed = os.path.exists(folder)
    try:
        yield
    except BaseException:
        if not existed and not is_remote(folder):
            with suppress(OSError):
                os.rmdir(folder)
        raise
