"""The claim of a folder in an object store, which has no locks.

A claim is a file that names its holder. Stores that support conditional writes, such as S3, create the file for one of
two writers only. A claim of a killed process stays. `wait=True` takes it over, unless the holder still runs on this
machine. The earlier holder notices that at its next check.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Protocol

from gear_data.errors import DestinationExistsError, GearError
from gear_data.storage.writing.folder_lock import FolderLock, LockHolder, in_use, parse_holder, this_process

_POLL_SECONDS = 0.5

_log = logging.getLogger(__name__)
#: The claims that this process makes or holds.
_own: set[str] = set()


class ClaimStore(Protocol):
    """The methods of an `ObjectStore` that claims need."""

    name: str

    def read(self, file: str) -> bytes:
        """Returns the bytes of a file. Raises FileNotFoundError if it does not exist."""

    def files(self, folder: str = "") -> list[str]:
        """Returns the names of all files in a folder."""

    def create(self, file: str, text: str) -> None:
        """Writes a small file that does not exist. See `ObjectStore.create`."""

    def remove(self, file: str) -> None:
        """Removes a file if it exists."""


@contextmanager
def folder_claim(store: ClaimStore, file: str, *, hint: str, wait: bool = False) -> Iterator[FolderLock]:
    """Holds a claim, and removes it at the end.

    Args:
        store: the store of the file.
        file: name of the claim.
        hint: the remedy if another process holds the claim.
        wait: wait for a holder on this machine, and take over the claim of a holder elsewhere.

    Raises:
        DestinationExistsError: another process holds the claim.
        RemoteError: the server cannot be reached.
    """
    claim = json.dumps({**asdict(this_process()), "token": uuid.uuid4().hex})
    _own.add(claim)
    try:
        _acquire(store, file, claim, hint, wait)
        held = FolderLock((), lambda: _check(store, file, claim))
        try:
            yield held
        finally:
            with suppress(GearError, OSError):  # the error of the block is the one to report
                if os.getpid() == held.pid and _read(store, file) == claim:
                    folder = file.rpartition("/")[0]
                    # Servers with real folders would keep an empty one.
                    store.remove(folder if store.files(folder) == [file] else file)
    finally:
        _own.discard(claim)


def _acquire(store: ClaimStore, file: str, claim: str, hint: str, wait: bool) -> None:
    announced = False
    while True:
        found = _read(store, file)
        if found is not None:
            holder = parse_holder(found)
            ended = holder is not None and holder.has_ended()
            if not wait and not ended:
                raise in_use(
                    store.name, holder, f"{hint}; if that process has ended, --resume (resume=True) takes its place"
                )
            if holder is not None and _may_run_here(holder, found):
                if not announced:
                    _log.warning("%s: waiting for another process that is writing here: %s", store.name, holder)
                    announced = True
                time.sleep(_POLL_SECONDS)
                continue
            store.remove(file)
        failure: GearError | None = None
        try:
            store.create(file, claim)
        except GearError as error:
            failure = error  # another process was faster, or this one was and a retry failed: the file tells
        now = _read(store, file)
        if now == claim:
            return
        if now is None and failure is not None:
            raise failure


def _may_run_here(holder: LockHolder, claim: str) -> bool:
    """Returns whether the holder of a claim may be a running process of this machine."""
    # A restarted container often gives a process the name and the number of the killed one.
    is_earlier = holder.pid == os.getpid() and claim not in _own
    return holder.is_here and not is_earlier and not holder.has_ended()


def _check(store: ClaimStore, file: str, claim: str) -> None:
    found = _read(store, file)
    if found != claim:
        holder = None if found is None else parse_holder(found)
        raise DestinationExistsError(
            f"another process took over: {holder or 'it has finished already'}",
            file=store.name,
            hint="let one process convert, and start the others when it has finished",
        )


def _read(store: ClaimStore, file: str) -> str | None:
    try:
        return store.read(file).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
