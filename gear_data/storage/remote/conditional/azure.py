"""AzureRequests: puts with conditions in Azure Blob Storage, by adlfs."""

from __future__ import annotations

from typing import Any

from gear_data.storage.remote.conditional.requests import VersionedFile


class AzureRequests:
    """Put Blob with the headers If-Match and If-None-Match (RFC 9110), by adlfs's client of the storage account.

    The server answers 412 if the blob has another ETag, and 409 if there is one although there should be none.
    """

    schemes: tuple[str, ...] = ("az", "abfs", "abfss")
    conditions = "If-Match, If-None-Match"
    update_hint = "update the server"

    async def read(self, filesystem: Any, bucket: str, key: str) -> VersionedFile:
        async with filesystem.service_client.get_blob_client(bucket, key) as client:
            # Of a blob larger than one response, later ranges are of the same ETag, or an error.
            stream = await client.download_blob()
            return VersionedFile(await stream.readall(), stream.properties.etag)

    async def put(self, filesystem: Any, bucket: str, key: str, data: bytes, version: str | None) -> None:
        from azure.core import MatchConditions

        condition: dict[str, Any] = {"overwrite": False}
        if version is not None:
            condition = {"overwrite": True, "etag": version, "match_condition": MatchConditions.IfNotModified}
        async with filesystem.service_client.get_blob_client(bucket, key) as client:
            # adlfs marks its files so, too.
            await client.upload_blob(data, metadata={"is_directory": "false"}, **condition)
