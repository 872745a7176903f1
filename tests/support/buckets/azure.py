"""A server with the blobs of Azure's REST API, as its reference describes them.

https://learn.microsoft.com/rest/api/storageservices/put-blob, and "Specifying conditional headers" there: a put with
`If-None-Match: *` is answered by 409 (BlobAlreadyExists) if there is a blob; a put with `If-Match` by 412 if the blob
has another ETag, or is missing. Each put gives the blob a new ETag. Azurite 3.35 answers the same.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import format_datetime
from http import HTTPStatus
from urllib.parse import unquote
from xml.sax.saxutils import escape

import pytest

from tests.support.buckets.objects import Answer, ObjectServer, Request, StoredObject
from tests.support.buckets.server import environment

ACCOUNT = "account"
KEY = base64.b64encode(b"a key of tests, of no account").decode()
_CODES = {404: "BlobNotFound", 409: "BlobAlreadyExists", 412: "ConditionNotMet"}
_META = "x-ms-meta-"


class AzureServer(ObjectServer):
    """Put Blob, Get Blob, Get Blob Properties, List Blobs and Delete Blob."""

    scheme = "az"
    no_version = '"0x0"'

    @contextmanager
    def connected(self) -> Iterator[None]:
        pytest.importorskip("adlfs")
        with azure_environment(self.endpoint):
            yield

    def operation(self, request: Request) -> tuple[str, str]:
        path = unquote(request.path).removeprefix(f"/{ACCOUNT}")
        if request.query.get("comp") == "list":
            return "LIST", f"{path}/{request.query.get('prefix', '')}"
        return request.method, path

    def perform(self, request: Request, verb: str, key: str) -> Answer:
        if verb == "PUT":
            return self._put(request, key)
        if verb == "LIST":
            return self._list(request)
        found = self.stored.get(key)
        if found is None:
            return self.error(HTTPStatus.NOT_FOUND)
        if verb == "DELETE":
            del self.stored[key]
            return Answer(HTTPStatus.ACCEPTED)
        headers = _headers(found)
        if verb == "HEAD":
            return Answer(HTTPStatus.OK, headers=headers, length=len(found.data))
        span = request.range_of("x-ms-range", len(found.data))
        if span is None:
            return Answer(HTTPStatus.OK, found.data, headers)
        if span[0] >= len(found.data):
            return self.error(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
        headers["Content-Range"] = f"bytes {span[0]}-{span[1] - 1}/{len(found.data)}"
        return Answer(HTTPStatus.PARTIAL_CONTENT, found.data[slice(*span)], headers)

    def _put(self, request: Request, key: str) -> Answer:
        live = self.stored.get(key)
        if request.headers.get("if-none-match") == "*" and "create" not in self.ignored and live is not None:
            return self.error(HTTPStatus.CONFLICT)
        wanted = request.headers.get("if-match")
        matches = wanted is None or (live is not None and wanted == _etag(live))
        if not matches and "replace" not in self.ignored:
            return self.error(HTTPStatus.PRECONDITION_FAILED)
        facts = {name: value for name, value in request.headers.items() if name.startswith(_META)}
        stored = self.put(key, request.body, facts)
        return Answer(HTTPStatus.CREATED, headers={"ETag": _etag(stored), "Last-Modified": _time(stored)})

    def _list(self, request: Request) -> Answer:
        found, folders = self.listed(request.query.get("prefix", ""), request.query.get("delimiter", ""))
        blobs = [
            f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{_time(each)}</Last-Modified>"
            f"<Etag>{_etag(each).strip(chr(34))}</Etag><Content-Length>{len(each.data)}</Content-Length>"
            f"<BlobType>BlockBlob</BlobType></Properties><Metadata>"
            + "".join(
                f"<{name[len(_META) :]}>{escape(value)}</{name[len(_META) :]}>" for name, value in each.facts.items()
            )
            + "</Metadata></Blob>"
            for name, each in found.items()
        ]
        blobs += [f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>" for name in folders]
        text = (
            '<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="bucket">'
            f"<Blobs>{''.join(blobs)}</Blobs><NextMarker/></EnumerationResults>"
        )
        return Answer(HTTPStatus.OK, text.encode(), {"Content-Type": "application/xml"})

    def error(self, status: int) -> Answer:
        code = _CODES.get(status, "InternalError")
        body = f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>a test</Message></Error>'
        return Answer(status, body.encode(), {"x-ms-error-code": code, "Content-Type": "application/xml"})


def _metadata(found: StoredObject) -> str:
    facts = {name.removeprefix(_META): escape(value) for name, value in found.facts.items()}
    return "".join(f"<{name}>{value}</{name}>" for name, value in facts.items())


def _etag(found: StoredObject) -> str:
    return f'"0x{found.number:X}"'


def _time(found: StoredObject) -> str:
    return format_datetime(found.time, usegmt=True)


def _headers(found: StoredObject) -> dict[str, str]:
    headers = {"ETag": _etag(found), "Last-Modified": _time(found), "x-ms-blob-type": "BlockBlob"}
    return {**headers, "Content-Type": "application/octet-stream", "Accept-Ranges": "bytes", **found.facts}


@contextmanager
def azure_environment(endpoint: str) -> Iterator[None]:
    """Lets adlfs connect to a server, without the waits of its client."""
    from azure.storage.blob._shared import policies_async

    async def no_wait(self: object, settings: object, transport: object) -> None:
        return None

    connection = {
        "DefaultEndpointsProtocol": "http",
        "AccountName": ACCOUNT,
        "AccountKey": KEY,
        "BlobEndpoint": f"{endpoint}/{ACCOUNT}",
    }
    text = ";".join(f"{name}={value}" for name, value in connection.items())
    with environment({"AZURE_STORAGE_CONNECTION_STRING": text}, "az") as patch:
        patch.setattr(policies_async.AsyncStorageRetryPolicy, "sleep", no_wait)
        yield
