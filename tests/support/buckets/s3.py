"""An S3 server, by moto, whose puts with conditions are atomic or ignored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import pytest

from tests.support.buckets.server import BucketServer, environment

_HEADERS = {"create": "HTTP_IF_NONE_MATCH", "replace": "HTTP_IF_MATCH"}


class S3Server(BucketServer):
    """moto's server. It checks the condition of a put and writes the object in two steps.

    Requests take turns here, as S3 has it.
    """

    scheme = "s3"
    no_version = '"0"'

    def __init__(self) -> None:
        super().__init__()
        werkzeug_app = pytest.importorskip("moto.moto_server.werkzeug_app")
        from werkzeug.serving import make_server

        self._moto = werkzeug_app.DomainDispatcherApplication(werkzeug_app.create_backend_app)
        self._server = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=werkzeug_app.MotoRequestHandler
        )
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @contextmanager
    def connected(self) -> Iterator[None]:
        s3fs = pytest.importorskip("s3fs")
        values = {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": "http://{}:{}".format(*self._server.server_address[:2]),
            "AWS_MAX_ATTEMPTS": "1",  # botocore's own retries wait for seconds
        }
        with environment(values, self.scheme) as patch:
            patch.setattr(s3fs.S3FileSystem, "retries", 1)
            s3fs.S3FileSystem().makedirs("bucket", exist_ok=True)
            yield

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        verb, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        heads: list[tuple[Any, ...]] = []
        bodies: list[bytes] = []

        def take() -> None:
            for condition in self.ignored:
                environ.pop(_HEADERS[condition], None)
            bodies.extend(self._moto(environ, lambda *head: heads.append(head)))

        status = self.turn(verb, path, take)
        if status is None:
            start_response(*heads[-1])
            return bodies
        start_response(f"{status} {HTTPStatus(status).phrase}", [("Content-Type", "application/xml")])
        code = "PreconditionFailed" if status == HTTPStatus.PRECONDITION_FAILED else "InternalError"
        return [f"<Error><Code>{code}</Code><Message>a test</Message></Error>".encode()]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
