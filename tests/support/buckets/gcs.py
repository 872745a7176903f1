"""A server with the objects of Google Cloud Storage's JSON API, as its reference describes them.

https://cloud.google.com/storage/docs/json_api/v1/objects and /docs/request-preconditions: a put whose
`ifGenerationMatch` is not the generation of the live object (0: there is none) is answered by 412. Each put gives the
object a new generation. A download has it in the header `X-Goog-Generation`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import types
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import fsspec
import pytest

from tests.support.buckets.objects import Answer, ObjectServer, Request, StoredObject
from tests.support.buckets.server import environment

_VERBS = {"GET": "HEAD", "DELETE": "DELETE"}


class GcsServer(ObjectServer):
    """Uploads of one request, downloads, listings and deletes."""

    scheme = "gs"
    no_version = "1"

    @contextmanager
    def connected(self) -> Iterator[None]:
        with gcs_environment(self.endpoint):
            yield

    def operation(self, request: Request) -> tuple[str, str]:
        path = request.path.removeprefix("/upload").removeprefix("/download").removeprefix("/storage/v1/b/")
        bucket, _, rest = path.partition("/o")
        key = unquote(rest.removeprefix("/"))
        if request.path.startswith("/upload"):
            return "PUT", f"/{bucket}/{_multipart(request)[0]['name']}"
        if not key:
            return "LIST", f"/{bucket}/{request.query.get('prefix', '')}"
        return "GET" if request.query.get("alt") == "media" else _VERBS[request.method], f"/{bucket}/{key}"

    def perform(self, request: Request, verb: str, key: str) -> Answer:
        if verb == "PUT":
            return self._put(request, key)
        if verb == "LIST":
            found, folders = self.listed(request.query.get("prefix", ""), request.query.get("delimiter", ""))
            items = [_resource(name, each) for name, each in found.items()]
            return _json({"kind": "storage#objects", "items": items, "prefixes": folders})
        found_object = self.stored.get(key)
        if found_object is None:
            return self.error(HTTPStatus.NOT_FOUND)
        if verb == "DELETE":
            del self.stored[key]
            return Answer(HTTPStatus.NO_CONTENT)
        if verb == "HEAD":
            return _json(_resource(key, found_object))
        span = request.range_of("range", len(found_object.data))
        headers = {"X-Goog-Generation": str(found_object.number), "Content-Type": "application/octet-stream"}
        if span is None:
            return Answer(HTTPStatus.OK, found_object.data, headers)
        return Answer(HTTPStatus.PARTIAL_CONTENT, found_object.data[slice(*span)], headers)

    def _put(self, request: Request, key: str) -> Answer:
        wanted = request.query.get("ifGenerationMatch")
        if wanted is not None and ("create" if wanted == "0" else "replace") not in self.ignored:
            live = self.stored.get(key)
            if int(wanted) != (0 if live is None else live.number):
                return self.error(HTTPStatus.PRECONDITION_FAILED)
        resource, data = _multipart(request)
        facts = {name: value for name, value in resource.items() if name != "name"}
        return _json(_resource(key, self.put(key, data, facts)))

    def error(self, status: int) -> Answer:
        return _json({"error": {"code": status, "message": HTTPStatus(status).phrase}}, status)


def _multipart(request: Request) -> tuple[dict[str, Any], bytes]:
    """Returns the resource and the data of an upload: a message of two parts (RFC 2387)."""
    found = re.search(r'boundary="?([^"]+)', request.headers["content-type"])
    assert found is not None
    boundary = b"--" + found[1].encode()
    line = b"\r\n" if request.body.startswith(boundary + b"\r\n") else b"\n"
    first, second = request.body.removeprefix(boundary + line).split(line + boundary + line, 1)
    data = second.partition(line + line)[2]
    assert data.endswith(line + boundary + b"--")
    return json.loads(first.partition(line + line)[2]), data.removesuffix(line + boundary + b"--")


def _resource(key: str, found: StoredObject) -> dict[str, Any]:
    return {
        **found.facts,
        "kind": "storage#object",
        "name": key,
        "bucket": "bucket",
        "size": str(len(found.data)),
        "generation": str(found.number),
        "metageneration": "1",
        "etag": base64.b64encode(str(found.number).encode()).decode(),
        "md5Hash": base64.b64encode(hashlib.md5(found.data, usedforsecurity=False).digest()).decode(),
        "timeCreated": _time(found.time),
        "updated": _time(found.time),
    }


def _time(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _json(value: object, status: int = HTTPStatus.OK) -> Answer:
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


@contextmanager
def gcs_environment(endpoint: str) -> Iterator[None]:
    """Lets gcsfs connect to a server, without its own waits."""
    values = {
        "STORAGE_EMULATOR_HOST": endpoint,
        "FSSPEC_GS_TOKEN": "anon",  # of processes that are started
        # Without a look at the kind of the bucket by gRPC, which only Google's servers have.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        retry = pytest.importorskip("gcsfs.retry")  # after the variable, which it reads
        patch.setitem(fsspec.config.conf, "gs", {"token": "anon"})

        async def no_wait(seconds: float) -> None:
            await asyncio.sleep(0)

        patch.setattr(retry, "asyncio", types.SimpleNamespace(sleep=no_wait))
        with environment(values, "gs"):
            yield
