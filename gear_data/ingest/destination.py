"""The destination of a conversion: checks, the lock, cleanup after a failure."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gear_data.common.paths import is_remote, named
from gear_data.common.progress import pluralize
from gear_data.errors import (
    DestinationExistsError,
    GearError,
    InvalidArgumentError,
    ResumeError,
    UnwritableError,
    refuse_exhausted,
)
from gear_data.ingest.card import CARD_NAME
from gear_data.ingest.location import Location
from gear_data.ingest.videos.placing import VIDEOS
from gear_data.storage.atomic import is_unrenamed
from gear_data.storage.generations.growth import GROWING_FOLDERS
from gear_data.storage.manifest import MANIFEST_NAME, STEP_MASK_FILE, Manifest
from gear_data.storage.remote.object_store import open_file_store
from gear_data.storage.writing.file_store import FileStore, LocalFileStore
from gear_data.storage.writing.folder_lock import LOCK_NAME, FolderLock
from gear_data.storage.writing.progress_files import LOCK, PROGRESS
from gear_data.storage.writing.staging import StagedDataset, conversion_difference
from gear_data.video.index_tables import TABLE_FILES

#: How a user continues a conversion that failed.
CONTINUE = "--resume (resume=True) continues from there"
#: The files that a dataset's folder may hold. The hub adds `.gitattributes`.
_DATASET_FILES = frozenset((
    MANIFEST_NAME, CARD_NAME, PROGRESS, "episodes.arrow", "finals.arrow", STEP_MASK_FILE, *TABLE_FILES.values(),
    "shards", "sidecars", VIDEOS, *GROWING_FOLDERS, ".gitattributes", ".git",
))  # fmt: skip
#: Advice to replace the destination, and advice that works at a URL (see `_check_remote`).
_REMOTE_ADVICE = (
    ("with --overwrite (overwrite=True)", "after you removed the destination"),
    ("use --overwrite (overwrite=True) to convert again", "remove the destination, and convert again"),
)


@dataclass(frozen=True)
class Target:
    """The place of a dataset.

    Attributes:
        folder: the folder or URL of the finished dataset.
        staging: the folder or URL to write to. It differs from `folder` if `folder` holds a dataset to replace.
    """

    folder: str
    staging: str

    @property
    def replaces(self) -> bool:
        """Whether a dataset at `folder` will be replaced."""
        return self.staging != self.folder


@dataclass(frozen=True)
class LockedTarget:
    """A target that no other conversion or repair changes.

    Attributes:
        target: the target, as it was when it was locked.
        locks: the locks of its folders.
    """

    target: Target
    locks: tuple[FolderLock, ...]

    @property
    def descriptors(self) -> tuple[int, ...]:
        """File descriptors that worker processes must inherit. See `FolderLock`."""
        return tuple(descriptor for lock in self.locks for descriptor in lock.descriptors)

    def check(self) -> None:
        """Checks that this process still holds the locks.

        Raises:
            UnwritableError, DestinationExistsError: the folder was removed or replaced, or another process took over.
        """
        for lock in self.locks:
            lock.check()


@contextmanager
def locked_target(target: Target, overwrite: bool, resume: bool) -> Iterator[LockedTarget]:
    """Locks the destination of `choose_target`, and checks it again.

    A conversion that resumes waits for another conversion that holds the lock. A finished dataset that is resumed is
    not locked: nothing is written to it.

    Raises:
        DestinationExistsError: another process is writing there, or the destination holds files that must not be
            replaced or resumed.
        UnwritableError: the destination cannot be used.
    """
    with _possible_advice(target), _locked(target, overwrite, resume) as locked:
        yield locked


@contextmanager
def _locked(target: Target, overwrite: bool, resume: bool) -> Iterator[LockedTarget]:
    store = open_file_store(target.folder)
    if resume and store.size(MANIFEST_NAME) is not None and not store.files(PROGRESS):
        if isinstance(store, LocalFileStore):
            with suppress(OSError):
                (store.folder / PROGRESS).rmdir()  # the last thing to remove, which a killed process leaves
        yield LockedTarget(target, ())
        return
    with _remove_new_folders_on_error(target.folder), store.locked(PROGRESS, wait=resume) as lock:
        # Another process may have changed the destination before this process had the lock.
        target = choose_target(target.folder, overwrite, resume)
        if not target.replaces:
            yield LockedTarget(target, (lock,))
            return
        # The staging folder has a lock of its own, which stays with it when it becomes the destination.
        staging = LocalFileStore(Path(target.staging))
        with staging.locked(PROGRESS) as staging_lock:
            staging.clear("", keep=LOCK)  # left by an earlier overwrite that was killed
            try:
                yield LockedTarget(target, (lock, staging_lock))
            finally:
                remove_dataset(staging)  # the old dataset, or the new one after a failure


def remove_dataset(store: LocalFileStore) -> None:
    """Removes a dataset's folder.

    The manifest is removed first: nobody opens a dataset of which a part is left.
    """
    store.remove(MANIFEST_NAME)
    shutil.rmtree(store.folder, ignore_errors=True)


def finished_manifest(store: FileStore, locked: LockedTarget, identity: Mapping[str, Any]) -> Manifest:
    """Returns the manifest of a dataset that an earlier run finished.

    Args:
        store: the dataset's folder.
        locked: the destination.
        identity: facts of the provenance that a resumed run must share.

    Raises:
        ResumeError: the dataset was removed meanwhile, or has other facts.
    """
    file = f"{store.name}/{MANIFEST_NAME}"
    try:
        text = store.read(MANIFEST_NAME).decode("utf-8", "replace")
    except FileNotFoundError as error:
        raise ResumeError("was removed meanwhile", file=file, hint="run the same command again") from error
    except OSError as error:
        raise ResumeError(
            f"cannot be read: {error}", file=file, hint="use --overwrite (overwrite=True) to convert again"
        ) from error
    manifest = Manifest.from_text(text, file)
    known = {name: manifest.provenance.get(name) for name in identity}
    change = conversion_difference(known, json.loads(json.dumps(identity)))
    if change is not None:
        raise ResumeError(
            f"the finished dataset has another {change}",
            file=store.name,
            hint="use --overwrite (overwrite=True) to convert again",
        )
    if locked.locks:
        store.clear(PROGRESS, keep=LOCK)
    return manifest


@contextmanager
def _possible_advice(target: Target) -> Iterator[None]:
    """Gives errors of the body advice that works: no run replaces a destination at a URL."""
    try:
        yield
    except GearError as error:
        if error.hint and is_remote(target.folder):
            for advice, possible in _REMOTE_ADVICE:
                error.hint = error.hint.replace(advice, possible)
        raise


@contextmanager
def abandoned_on_error(staged: StagedDataset, target: Target, again: str = CONTINUE) -> Iterator[None]:
    """Abandons the staged dataset if the body fails. The error says what is kept, and how to continue: `again`."""
    try:
        yield
    except BaseException as error:
        # Videos were copied, and perhaps downloaded, before the first shard. They are of use only if the same
        # conversion can succeed later: when there is space, or the server is back.
        later = isinstance(error, OSError | KeyboardInterrupt) and not target.replaces
        kept = staged.abandon(keep_videos=later)
        # A failed overwrite keeps the old dataset, and nothing of the new one.
        if (kept.shards or kept.videos) and not target.replaces:
            files = pluralize(kept.shards, "finished shard") if kept.shards else "finished video files"
            text = f"{files} {'is' if kept.shards == 1 else 'are'} kept: {again}"
            if isinstance(error, GearError):
                error.hint = f"{error.hint}\n  {text}" if error.hint else text
            elif isinstance(error, KeyboardInterrupt):
                error.add_note(text)
        raise


def choose_target(destination: str, overwrite: bool, resume: bool) -> Target:
    """Checks the destination and chooses the folder to write to.

    Raises:
        InvalidArgumentError: `overwrite` and `resume` are both set; or a dataset is replaced, and its path has no name.
        DestinationExistsError: the destination holds files that must not be replaced or resumed.
        UnwritableError: the destination cannot be listed, or its name is not valid.
    """
    if overwrite and resume:
        raise InvalidArgumentError("overwrite and resume exclude each other", hint="give only one of them")
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
        refuse_exhausted(error, str(target))
        raise UnwritableError(
            f"cannot be used: {error.strerror}", file=str(target), hint="choose another destination"
        ) from error


def check_disjoint(location: Location, destination: str) -> None:
    """Checks that a local source and a local destination do not contain each other.

    Raises:
        InvalidArgumentError: one contains the other.
    """
    if is_remote(destination):
        return
    for part in location.parts:
        check_disjoint(part, destination)
    target = Path(os.path.realpath(destination))

    @cache
    def is_inside(folder: str) -> bool:
        real = Path(os.path.realpath(folder))
        return target == real or target in real.parents

    for file in location.files:
        path = os.path.realpath(file.path) if file.filesystem is None and os.path.islink(file.path) else file.path
        if file.filesystem is None and is_inside(os.path.dirname(path) or "."):
            raise InvalidArgumentError(
                "the source lies inside the destination", file=file.path, hint="choose another destination"
            )
    if location.folder and os.path.isdir(location.name) and Path(os.path.realpath(location.name)) in target.parents:
        raise InvalidArgumentError(
            "the destination lies inside the source", file=destination, hint="choose another destination"
        )


def _check_remote(store: FileStore, overwrite: bool, resume: bool) -> None:
    files = store.files()
    files = [name for name in files if name != LOCK]
    if not files or (resume and any(name == MANIFEST_NAME or name.startswith(f"{PROGRESS}/") for name in files)):
        return
    hint = "choose another destination, or remove it"
    if overwrite:
        hint = "a remote folder cannot be replaced in one step: remove it yourself"
    elif MANIFEST_NAME not in files and any(name.startswith(f"{PROGRESS}/") for name in files):
        hint = "it is an unfinished conversion: --resume (resume=True) continues it"
    raise DestinationExistsError("the destination exists and is not empty", file=store.name, hint=hint)


def _local_staging(target: Path, overwrite: bool, resume: bool) -> Path:
    """Returns the folder to write to.

    Raises:
        DestinationExistsError: the target holds files that must not be replaced or resumed.
        OSError: the target cannot be listed.
    """
    if not target.exists():
        return target
    if not target.is_dir():
        raise DestinationExistsError(
            "the destination is a file, not a folder",
            file=str(target),
            hint="choose another destination: the source comes first, then the folder to write",
        )
    unfinished = (target / PROGRESS).is_dir() and any(path.name != LOCK_NAME for path in (target / PROGRESS).iterdir())
    if not unfinished and all(path.name == PROGRESS for path in target.iterdir()):
        return target
    is_ours = unfinished or (target / MANIFEST_NAME).exists()
    if resume and is_ours:
        return target
    if overwrite and is_ours and named(target).is_mount():
        raise DestinationExistsError(
            "a mount point cannot be replaced in one step", file=str(target), hint="convert into a folder inside it"
        )
    if overwrite and is_ours:
        foreign = sorted(
            path.name
            for path in target.iterdir()
            if path.name not in _DATASET_FILES and not is_unrenamed(path.name, MANIFEST_NAME, CARD_NAME)
        )
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
    hint = "choose another destination, or --overwrite (overwrite=True)" if is_ours else "choose another destination"
    if unfinished and not (target / MANIFEST_NAME).exists():
        hint = "it is unfinished: --resume (resume=True) continues it, --overwrite (overwrite=True) starts again"
    raise DestinationExistsError("the destination exists and is not empty", file=str(target), hint=hint)


@contextmanager
def _remove_new_folders_on_error(folder: str) -> Iterator[None]:
    """Removes the local folders that a failed body created and left empty."""
    path = Path(folder)
    missing = [] if is_remote(folder) else [each for each in (path, *path.parents) if not each.exists()]
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for each in missing:
                each.rmdir()
        raise
