"""ConditionalStore: small files of an object store that are written only if nobody else wrote them meanwhile.

A put may have a condition: the file does not exist, or it still has the etag that was read. The server answers 412 if
that is not so (RFC 9110). So one of several writers succeeds, and the others read the file again.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gear_data.common.paths import join
from gear_data.common.regular_files import JSON_BYTES
from gear_data.common.retry import http_statuses, requests_of, with_retries
from gear_data.errors import GearError, InvalidArgumentError, RemoteError, UnwritableError
from gear_data.storage.generations.growth import JOURNALS
from gear_data.storage.remote.range_reader import filesystem_of

#: Kinds of URLs whose stores have conditional puts that gear-data can use.
SCHEMES = ("s3", "s3a")
#: The start of the names of files that test the server. A killed process leaves one.
PROBE = f"{JOURNALS}/probe-"
_REFUSED_HINT = "record to a folder, then convert it to the URL"
#: The condition does not hold; the file of an etag does not exist.
_LOST = frozenset({404, 412})
#: Another put of the file goes on, perhaps an earlier attempt. Nobody knows so far whether it succeeds.
_CONFLICT = 409
_NOT_IMPLEMENTED = 501


@dataclass(frozen=True)
class VersionedFile:
    """A file, and the text by which a put can ask for it.

    Attributes:
        data: its bytes.
        etag: changes with the contents.
    """

    data: bytes
    etag: str


class ConditionalStore:
    """A folder of an object store that speaks the protocol of S3.

    Methods retry transient failures. They raise RemoteError after the last attempt.

    Args:
        url: URL of the folder.

    Raises:
        InvalidArgumentError: the kind of URL is another one.
        MissingExtraError: the package for this kind of URL is not installed.
    """

    def __init__(self, url: str) -> None:
        scheme = url.partition("://")[0]
        if scheme not in SCHEMES:
            raise InvalidArgumentError(
                f"{scheme}:// has no conditional puts that gear-data can use: two Writers could overwrite each other's "
                f"episodes; it can use {', '.join(f'{each}://' for each in SCHEMES)}",
                file=url,
                hint=_REFUSED_HINT,
            )
        filesystem_of(url)
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
                "the server ignores the conditions of puts (If-Match, If-None-Match): two Writers would overwrite each "
                "other's episodes",
                file=self.name,
                hint=f"update the server and botocore (1.36 or newer), or {_REFUSED_HINT}",
            )

    def _honours(self, file: str) -> bool:
        # The texts differ: a put whose text is there already counts as a success.
        if not self.put(file, b"1", None) or self.put(file, b"2", None):
            return False
        found = self.read(file)
        if found is None or self.put(file, b"3", f'"{uuid.uuid4().hex}"'):
            return False
        return self.put(file, b"4", found.etag) and not self.put(file, b"5", found.etag)

    def read(self, file: str) -> VersionedFile | None:
        """Returns a file; None if it does not exist."""

        from fsspec.asyn import sync

        filesystem, bucket, key = self._resolve(file)

        def read() -> VersionedFile:
            data, etag = sync(filesystem.loop, _get, filesystem, bucket, key)
            return VersionedFile(data, etag)

        try:
            return with_retries(read, "be read", join(self.name, file))
        except FileNotFoundError:
            return None

    def put(self, file: str, data: bytes, etag: str | None) -> bool:
        """Writes a file if nobody else wrote it meanwhile.

        Args:
            file: its name.
            data: its bytes.
            etag: of the file that is replaced; None: the file does not exist.

        Returns:
            Whether the file has these bytes now. False: another process wrote it, perhaps after an attempt of this call
            succeeded without an answer.

        Raises:
            UnwritableError: the bucket does not exist, or the server refuses the write.
        """
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        filesystem, bucket, key = self._resolve(file)

        def put() -> bool:
            try:
                filesystem.call_s3("put_object", Bucket=bucket, Key=key, Body=data, **condition)
            except FileExistsError:
                return False
            except OSError as error:
                statuses = http_statuses(error)
                if _CONFLICT in statuses:
                    raise ConnectionError("another put of the file goes on") from error
                if not _LOST & statuses or (etag is None and isinstance(error, FileNotFoundError)):
                    raise
                return False
            return True

        url = join(self.name, file)
        try:
            if with_retries(put, "be written", url, requests_of(len(data))):
                return True
        except FileNotFoundError as error:
            raise UnwritableError(
                "cannot be written: no such bucket", file=url, hint="create the bucket, or check the URL"
            ) from error
        except RemoteError as error:
            if isinstance(error.__cause__, PermissionError):
                raise UnwritableError(error.message, file=url) from error
            raise
        # An earlier attempt may have succeeded without an answer.
        found = self.read(file)
        return found is not None and found.data == data

    def _remove(self, file: str) -> None:
        filesystem, bucket, key = self._resolve(file)
        with_retries(
            lambda: filesystem.call_s3("delete_object", Bucket=bucket, Key=key), "be removed", join(self.name, file)
        )

    def _resolve(self, file: str) -> tuple[Any, str, str]:
        """Returns the file system, the bucket and the key of a file."""
        filesystem, root = filesystem_of(self.name)
        bucket, key, _ = filesystem.split_path(join(root, file))
        filesystem.invalidate_cache()
        return filesystem, bucket, key


async def _get(filesystem: Any, bucket: str, key: str) -> tuple[bytes, str]:
    """Returns the bytes and the etag of an object, from one response."""
    response = await filesystem._call_s3("get_object", Bucket=bucket, Key=key)
    async with response["Body"] as body:
        if (size := response["ContentLength"]) > JSON_BYTES:
            raise OSError(f"it has {size} bytes, more than the limit of {JSON_BYTES}")
        return await body.read(), response["ETag"]
