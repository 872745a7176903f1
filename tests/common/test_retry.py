"""Retries: which failures are transient, and when retrying ends."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest

from gear_data.common import retry
from gear_data.errors import RemoteError


def _http_error(status: int) -> Exception:
    error = Exception("answered")
    error.status = status  # type: ignore[attr-defined]
    return error


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_transient_http_statuses(status: int) -> None:
    assert retry.is_transient(_http_error(status))
    assert retry.is_transient(_caused(OSError("unknown"), _http_error(status)))


@pytest.mark.parametrize(
    "error",
    [
        _http_error(403),
        _http_error(404),
        FileNotFoundError(),
        PermissionError(),
        OSError(errno.ENOSPC, "full"),
        ValueError(),
        RemoteError("was tried already"),
    ],
)
def test_permanent_failures(error: Exception) -> None:
    assert not retry.is_transient(error)


def test_transient_failures_of_libraries() -> None:
    aiohttp, exceptions = pytest.importorskip("aiohttp"), pytest.importorskip("botocore.exceptions")
    transient = [
        aiohttp.ClientPayloadError(),
        aiohttp.ServerDisconnectedError(),
        exceptions.EndpointConnectionError(endpoint_url="x"),
        exceptions.ReadTimeoutError(endpoint_url="x"),
        exceptions.ClientError({"ResponseMetadata": {"HTTPStatusCode": 503}, "Error": {}}, "GetObject"),
    ]
    denied = exceptions.ClientError({"ResponseMetadata": {"HTTPStatusCode": 403}, "Error": {}}, "GetObject")
    assert [retry.is_transient(error) for error in (*transient, denied)] == [True] * 5 + [False]
    with pytest.raises(
        RemoteError, match=r"Unable to locate credentials(.|\n)*AWS_ACCESS_KEY_ID(.|\n)*FSSPEC_S3_ANON=true"
    ):
        retry.with_retries(_raise(exceptions.NoCredentialsError()), "be read", "s3://b/x")
    with pytest.raises(RemoteError, match="the server refuses access: check the credentials"):
        retry.with_retries(_raise(denied), "be read", "s3://b/x")


def test_fsspec_reads_a_public_bucket_without_credentials_as_the_hint_says(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs")
    from fsspec import config, url_to_fs

    conf: dict[str, Any] = {}
    monkeypatch.setenv("FSSPEC_S3_ANON", "true")
    config.set_conf_env(conf)
    monkeypatch.setitem(config.conf, "s3", conf["s3"])
    assert url_to_fs("s3://b/x", skip_instance_cache=True)[0].anon


def _raise(error: Exception) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


def test_bugs_are_not_retried() -> None:
    with pytest.raises(TypeError):
        retry.with_retries(_raise(TypeError("a mistake")), "be read", "s3://b/x")


def test_no_attempt_starts_after_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "MAX_SECONDS", 0.0)
    with pytest.raises(RemoteError, match="tried once"):
        retry.with_retries(_raise(ConnectionResetError()), "be read", "s3://b/x")


@pytest.mark.parametrize("asked", ["2", "date"])
def test_a_server_says_how_long_to_wait(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000.0
    waits: list[float] = []
    monkeypatch.setattr(retry.time, "time", lambda: now)
    monkeypatch.setattr(retry.time, "sleep", waits.append)
    text = formatdate(now + 2, usegmt=True) if asked == "date" else asked
    limited = _http_error(429)
    limited.headers = {"retry-after": text}  # type: ignore[attr-defined]
    of_botocore = Exception("answered")
    of_botocore.response = {"ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": {"retry-after": text}}}  # type: ignore[attr-defined]
    errors = [_caused(OSError("unknown"), limited), of_botocore]

    def call() -> str:
        if errors:
            raise errors.pop(0)
        return "answer"

    assert retry.with_retries(call, "be read", "s3://b/x") == "answer"
    assert waits == [2.0, 2.0]
    limited.headers = {"retry-after": "300"}  # type: ignore[attr-defined]
    with pytest.raises(RemoteError, match="the server asks to wait 300 s") as raised:
        retry.with_retries(_raise(limited), "be read", "s3://b/x")
    assert "log in" in str(raised.value.hint)
    assert len(waits) == 2


def test_a_file_that_only_seems_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec raises FileNotFoundError after any failure of a web server."""
    monkeypatch.setattr(retry.time, "sleep", lambda seconds: None)
    errors = [_caused(FileNotFoundError("https://server/x"), _http_error(503))]

    def call() -> str:
        if errors:
            raise errors.pop()
        return "answer"

    assert retry.with_retries(call, "be looked up", "https://server/x") == "answer"
    with pytest.raises(FileNotFoundError) as raised:
        retry.with_retries(
            _raise(_caused(FileNotFoundError("x"), _http_error(404))), "be looked up", "https://server/x"
        )
    assert type(raised.value) is FileNotFoundError
    monkeypatch.setattr(retry, "MAX_SECONDS", 0.0)
    reset = _caused(FileNotFoundError("https://server/x"), ConnectionResetError("reset by peer"))
    with pytest.raises(
        RemoteError, match="cannot be looked up, tried once: ConnectionResetError: reset by peer"
    ) as lost:
        retry.with_retries(_raise(reset), "be looked up", "https://server/x")
    assert retry.is_unreachable(lost.value)


def test_a_limit_of_many_years(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither sockets nor queues take such a limit."""
    monkeypatch.setenv("GEAR_DATA_REQUEST_SECONDS", "1e12")
    with socket.socket() as client:
        client.settimeout(retry.request_seconds())
    assert retry.answer_of(lambda: "answer", 100_000) == "answer"


_LEFT = """
import time
from concurrent.futures import ThreadPoolExecutor
from gear_data.common.retry import answer_of

def silent():
    with ThreadPoolExecutor() as pool:  # as the hub's library does
        pool.submit(time.sleep, 600).result()

try:
    answer_of(silent)
except TimeoutError as error:
    print(error)
"""


@pytest.mark.processes
def test_a_pool_of_a_call_without_an_answer_does_not_keep_the_process() -> None:
    environment = {**os.environ, "GEAR_DATA_REQUEST_SECONDS": "0.5"}
    command = [sys.executable, "-c", _LEFT]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    assert "no answer within 0.5 s" in ended.stdout
