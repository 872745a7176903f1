"""GcsRequests: puts with conditions in Google Cloud Storage, by gcsfs."""

from __future__ import annotations

import json
import uuid
from typing import Any
from urllib.parse import quote

from gear_data.errors import RemoteError
from gear_data.storage.remote.conditional.requests import VersionedFile

#: The generation of an object that does not exist.
_MISSING = "0"
_GENERATION_HEADER = "X-Goog-Generation"


class GcsRequests:
    """Uploads with the parameter `ifGenerationMatch` of the JSON API. Each put gives an object another generation.

    The server answers 412 if the object has another generation, or is missing. gcsfs raises FileExistsError for that.
    """

    schemes: tuple[str, ...] = ("gs", "gcs")
    conditions = "ifGenerationMatch"
    update_hint = "update the server"

    async def read(self, filesystem: Any, bucket: str, key: str) -> VersionedFile:
        headers, data = await filesystem._call("GET", filesystem.url(f"{bucket}/{key}"))
        if _GENERATION_HEADER not in headers:
            raise RemoteError(
                f"the server does not say which generation of the file it sent ({_GENERATION_HEADER})",
                file=f"gs://{bucket}/{key}",
                hint=f"{self.update_hint}; or check that no proxy removes the header",
            )
        return VersionedFile(data, headers[_GENERATION_HEADER])

    async def put(self, filesystem: Any, bucket: str, key: str, data: bytes, version: str | None) -> None:
        # By default, anyone may cache an object of a public bucket for an hour: writers would read an old manifest.
        resource = json.dumps({"name": key, "cacheControl": "no-store"}).encode()
        boundary = uuid.uuid4().hex.encode()
        parts = [
            b"--%b\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n%b\r\n" % (boundary, resource),
            b"--%b\r\nContent-Type: application/octet-stream\r\n\r\n%b\r\n" % (boundary, data),
            b"--%b--" % boundary,
        ]
        await filesystem._call(
            "POST",
            f"{filesystem._location}/upload/storage/v1/b/{quote(bucket, safe='')}/o",
            uploadType="multipart",
            ifGenerationMatch=_MISSING if version is None else version,
            headers={"Content-Type": f"multipart/related; boundary={boundary.decode()}"},
            data=b"".join(parts),
        )
