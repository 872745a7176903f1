"""An S3 server, by moto, whose puts with conditions are atomic or ignored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import pytest

CONDITIONS = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")


class S3Server:
    """An S3 server of this process, with a bucket `bucket`.

    moto checks the condition of a put and writes the object in two steps. Requests take turns here, as S3 has it.

    Attributes:
        ignored: conditions that the server ignores, of `CONDITIONS`.
        before: is called with the method and the path before each request, and may raise or change objects.
        fault: takes the method and the path of a request. May return a status that is the answer in place of moto's,
            and whether moto takes the request nevertheless.
        requests: method and path of each request so far.
    """

    def __init__(self) -> None:
        werkzeug_app = pytest.importorskip("moto.moto_server.werkzeug_app")
        from werkzeug.serving import make_server

        self._moto = werkzeug_app.DomainDispatcherApplication(werkzeug_app.create_backend_app)
        self._mutex = threading.Lock()
        self.ignored: tuple[str, ...] = ()
        self.before: Callable[[str, str], None] = lambda method, path: None
        self.fault: Callable[[str, str], tuple[int, bool] | None] = lambda method, path: None
        self.requests: list[tuple[str, str]] = []
        self._server = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=werkzeug_app.MotoRequestHandler
        )
        self.endpoint = "http://{}:{}".format(*self._server.server_address[:2])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.before(method, path)
        for name in self.ignored:
            environ.pop(name, None)
        status, taken = self.fault(method, path) or (None, True)
        with self._mutex:
            self.requests.append((method, path))
            if status is None:
                return list(self._moto(environ, start_response))
            if taken:
                list(self._moto(environ, lambda *_: None))
        start_response(f"{status} {HTTPStatus(status).phrase}", [("Content-Type", "application/xml")])
        code = "PreconditionFailed" if status == HTTPStatus.PRECONDITION_FAILED else "InternalError"
        return [f"<Error><Code>{code}</Code><Message>a test</Message></Error>".encode()]

    def reset(self) -> None:
        """Ends all faults."""
        self.ignored, self.before, self.fault = (), lambda method, path: None, lambda method, path: None

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Runs a server, to which fsspec connects."""
    s3fs = pytest.importorskip("s3fs")
    server = S3Server()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_MAX_ATTEMPTS": "1",  # botocore's own retries wait for seconds
        }.items():
            patch.setenv(name, value)
        patch.setattr(s3fs.S3FileSystem, "retries", 1)
        # fsspec caches file systems by their arguments, which do not include the endpoint of another server.
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().makedirs("bucket", exist_ok=True)
        yield server
    server.close()
