"""ObjectServer: the part of a bucket's server that does not depend on the protocol."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from tests.support.buckets.server import BucketServer

BUCKET = "bucket"


@dataclass(frozen=True)
class StoredObject:
    """An object of the bucket.

    Attributes:
        data: its bytes.
        number: of the put, in the order of all puts.
        time: of the put.
        facts: what a put said about the object.
    """

    data: bytes
    number: int
    time: datetime
    facts: dict[str, str]


@dataclass(frozen=True)
class Request:
    """A request of HTTP. Names of headers are in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def range_of(self, header: str, size: int) -> tuple[int, int] | None:
        """Returns the first byte and the byte after the last one that the request asks for; None: all."""
        text = self.headers.get(header)
        if text is None:
            return None
        first, last = text.removeprefix("bytes=").split("-")
        return int(first), min(size, int(last) + 1) if last else size


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    #: Of the answer to HEAD, which has no body.
    length: int | None = None


class ObjectServer(BucketServer):
    """A server over HTTP that keeps the objects of one bucket in memory. Subclasses speak a protocol.

    Attributes:
        stored: the objects by their keys.
        endpoint: URL of the server.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[str, StoredObject] = {}
        self._puts = 1000
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: object) -> None:
                pass

            def _handle(self) -> None:
                url = urlsplit(self.path)
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = self.rfile.read(int(headers.get("content-length", 0)))
                query = dict(parse_qsl(url.query, keep_blank_values=True))
                request = Request(self.command, url.path, query, headers, body)
                try:
                    answer = server._answer(request)
                except ConnectionAbortedError:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body) if answer.length is None else answer.length))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = "http://{}:{}".format(*self._server.server_address[:2])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def operation(self, request: Request) -> tuple[str, str]:
        """Returns the verb of a request, and the path below the bucket: `/bucket/key`."""
        raise NotImplementedError

    def perform(self, request: Request, verb: str, key: str) -> Answer:
        """Answers a request. No other request is answered at the same time."""
        raise NotImplementedError

    def error(self, status: int) -> Answer:
        raise NotImplementedError

    def _answer(self, request: Request) -> Answer:
        verb, path = self.operation(request)
        bucket, _, key = path.removeprefix("/").partition("/")
        answers: list[Answer] = []

        def take() -> None:
            missing = self.error(HTTPStatus.NOT_FOUND)
            answers.append(self.perform(request, verb, key) if bucket == BUCKET else missing)

        status = self.turn(verb, path, take)
        return answers[-1] if status is None else self.error(status)

    def put(self, key: str, data: bytes, facts: dict[str, str]) -> StoredObject:
        self._puts += 1
        self.stored[key] = StoredObject(data, self._puts, datetime.now(UTC), facts)
        return self.stored[key]

    def listed(self, prefix: str, delimiter: str) -> tuple[dict[str, StoredObject], list[str]]:
        """Returns the objects whose names begin with a prefix, and the folders below the prefix."""
        found, folders = {}, set()
        for key in sorted(self.stored):
            if key.startswith(prefix):
                folder, separator, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
                if separator:
                    folders.add(prefix + folder + separator)
                else:
                    found[key] = self.stored[key]
        return found, sorted(folders)
