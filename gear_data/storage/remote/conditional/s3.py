"""S3Requests: puts with conditions in S3, by s3fs."""

from __future__ import annotations

from typing import Any

from gear_data.storage.remote.conditional.requests import VersionedFile


class S3Requests:
    """Puts with the headers If-Match and If-None-Match (RFC 9110), which S3 and servers like it have.

    S3 answers 412 if the condition does not hold, 409 if another put of the same object goes on, and 404 if an object
    with this ETag should be replaced and there is none.
    """

    schemes: tuple[str, ...] = ("s3", "s3a")
    conditions = "If-Match, If-None-Match"
    update_hint = "update the server and botocore (1.36 or newer)"

    async def read(self, filesystem: Any, bucket: str, key: str) -> VersionedFile:
        response = await filesystem._call_s3("get_object", Bucket=bucket, Key=key)
        async with response["Body"] as body:
            return VersionedFile(await body.read(), response["ETag"])

    async def put(self, filesystem: Any, bucket: str, key: str, data: bytes, version: str | None) -> None:
        condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
        await filesystem._call_s3("put_object", Bucket=bucket, Key=key, Body=data, **condition)
