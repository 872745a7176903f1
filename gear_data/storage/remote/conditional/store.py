"""ConditionalStore: small files of an object store that are written only if nobody else wrote them meanwhile.

A put may have a condition: the file does not exist, or it still has the version that was read. The server refuses the
put if that is not so. So one of several writers succeeds, and the others read the file again.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any

from gear_data.common.paths import join
from gear_data.common.retry import http_statuses, is_refused, with_retries
from gear_data.errors import GearError, InvalidArgumentError, RemoteError, UnwritableError
from gear_data.storage.generations.growth import JOURNALS
from gear_data.storage.remote.conditional.azure import AzureRequests
from gear_data.storage.remote.conditional.gcs import GcsRequests
from gear_data.storage.remote.conditional.requests import ConditionalRequests, VersionedFile
from gear_data.storage.remote.conditional.s3 import S3Requests
from gear_data.storage.remote.range_reader import filesystem_of

#: The stores that have conditional puts, by the kind of URL.
KINDS: dict[str, ConditionalRequests] = {
    scheme: kind for kind in (S3Requests(), GcsRequests(), AzureRequests()) for scheme in kind.schemes
}
#: The start of the names of files that test the server. A killed process leaves one.
PROBE = f"{JOURNALS}/probe-"
_REFUSED_HINT = "record to a folder, then convert it to the URL"
_NOT_FOUND = 404
#: The condition does not hold (412, and 409 of Azure); another put of the same file goes on (409 of S3).
_LOST = frozenset({409, 412})
_NOT_IMPLEMENTED = 501


class ConditionalStore:
    """A folder of an object store that has conditional puts: S3, Google Cloud Storage or Azure.

    Methods retry transient failures. They raise RemoteError after the last attempt.

    Args:
        url: URL of the folder.

    Raises:
        InvalidArgumentError: the kind of URL is another one.
        MissingExtraError: the package for this kind of URL is not installed.
    """

    def __init__(self, url: str) -> None:
        scheme = url.partition("://")[0]
        if scheme not in KINDS:
            raise InvalidArgumentError(
                f"{scheme}:// has no conditional puts that gear-data can use: two Writers could overwrite each other's "
                f"episodes; it can use {', '.join(f'{each}://' for each in KINDS)}",
                file=url,
                hint=_REFUSED_HINT,
            )
        filesystem_of(url)
        self._requests = KINDS[scheme]
        self.name = url.rstrip("/")

    def check(self) -> None:
        """Writes a small file several times, and removes it.

        Some servers, and old versions of botocore, ignore the condition of a put.

        Raises:
            InvalidArgumentError: a put succeeded although its condition did not hold.
            UnwritableError: the bucket does not exist, or the server refuses the write.
        """
        file = f"{PROBE}{uuid.uuid4().hex}"
        try:
            holds = self._honours(file)
        except RemoteError as error:
            if _NOT_IMPLEMENTED not in http_statuses(error):
                raise
            holds = False
        finally:
            with suppress(GearError, FileNotFoundError):  # the first error is the one to report
                self._remove(file)
        if not holds:
            raise InvalidArgumentError(
                f"the server ignores the conditions of puts ({self._requests.conditions}): two Writers would overwrite "
                "each other's episodes",
                file=self.name,
                hint=f"{self._requests.update_hint}, or {_REFUSED_HINT}",
            )

    def _honours(self, file: str) -> bool:
        # The texts differ: a put whose text is there already counts as a success.
        if not self.put(file, b"1", None) or self.put(file, b"2", None):
            return False
        found = self.read(file)
        if found is None or not self.put(file, b"3", found.version):
            return False
        return not self.put(file, b"4", found.version)

    def read(self, file: str) -> VersionedFile | None:
        """Returns a file; None if it does not exist."""

        def read() -> VersionedFile:
            from fsspec.asyn import sync

            filesystem, bucket, key = self._resolve(file)
            try:
                found: VersionedFile = sync(filesystem.loop, self._requests.read, filesystem, bucket, key)
            except Exception as error:
                if _NOT_FOUND in http_statuses(error):
                    raise FileNotFoundError(key) from error
                raise
            return found

        try:
            return with_retries(read, "be read", join(self.name, file))
        except FileNotFoundError:
            return None

    def put(self, file: str, data: bytes, version: str | None) -> bool:
        """Writes a file if nobody else wrote it meanwhile.

        Args:
            file: its name.
            data: its bytes.
            version: of the file that is replaced; None: the file does not exist.

        Returns:
            Whether the file has these bytes now. False: another process wrote it.

        Raises:
            UnwritableError: the bucket does not exist, or the server refuses the write.
        """

        def put() -> bool:
            from fsspec.asyn import sync

            filesystem, bucket, key = self._resolve(file)
            try:
                sync(filesystem.loop, self._requests.put, filesystem, bucket, key, data, version)
            except FileExistsError:
                return False
            except Exception as error:
                statuses = http_statuses(error)
                if isinstance(error, FileNotFoundError) or _NOT_FOUND in statuses:
                    if version is None:
                        raise FileNotFoundError(bucket) from error
                    return False
                if not _LOST & statuses:
                    raise
                return False
            return True

        url = join(self.name, file)
        try:
            if with_retries(put, "be written", url):
                return True
        except FileNotFoundError as error:
            raise UnwritableError(
                "cannot be written: no such bucket", file=url, hint="create the bucket, or check the URL"
            ) from error
        except RemoteError as error:
            if is_refused(error):
                raise UnwritableError(error.message, file=url) from error
            raise
        # An earlier attempt may have succeeded without an answer.
        found = self.read(file)
        return found is not None and found.data == data

    def _remove(self, file: str) -> None:
        def remove() -> None:
            filesystem, bucket, key = self._resolve(file)
            filesystem.rm_file(f"{bucket}/{key}")

        with_retries(remove, "be removed", join(self.name, file))

    def _resolve(self, file: str) -> tuple[Any, str, str]:
        """Returns the file system, the bucket and the key of a file."""
        filesystem, root = filesystem_of(self.name)
        bucket, key, _ = filesystem.split_path(join(root, file))
        filesystem.invalidate_cache()
        return filesystem, bucket, key
