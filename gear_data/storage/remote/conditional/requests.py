"""The requests that each kind of object store has, as a Protocol, and the shared record of a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class VersionedFile:
    """A file, and the text by which a put can ask for it.

    Attributes:
        data: its bytes.
        version: changes with every put: the ETag of S3 and Azure, the generation number of Google Cloud Storage.
    """

    data: bytes
    version: str


class ConditionalRequests(Protocol):
    """One attempt of a read and of a conditional put, for one kind of store.

    The methods run in the event loop of the file system. Errors are those of the package, with the HTTP status:
    `ConditionalStore` reads it. `FileExistsError` is also a condition that does not hold.

    Attributes:
        schemes: kinds of URLs.
        conditions: names of the conditions in the store's protocol, for messages.
        update_hint: for a server that ignores them.
    """

    schemes: tuple[str, ...]
    conditions: str
    update_hint: str

    async def read(self, filesystem: Any, bucket: str, key: str) -> VersionedFile:
        """Returns an object and its version, from one response."""

    async def put(self, filesystem: Any, bucket: str, key: str, data: bytes, version: str | None) -> None:
        """Writes an object if it has this version; if `version` is None, if it does not exist."""
