"""Network calls with a time limit, and with retries after transient failures.

Transient failures are: dropped and refused connections, timeouts, truncated responses, and the HTTP statuses 408, 429,
500, 502, 503 and 504 (RFC 9110, RFC 6585). Each library behind fsspec has its own error classes for these. The classes
are matched by name, because the libraries may not be installed. File systems also have their own, lower-level retries.
The limit is ours, because the libraries have none for some requests. Why: docs/explanation/decisions/stores.md
"""

from __future__ import annotations

import concurrent.futures.thread
import errno
import logging
import random
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

from gear_data.common.cancellation import start_thread
from gear_data.common.environment import env_seconds
from gear_data.errors import GearError, RemoteError

#: Largest number of attempts.
MAX_ATTEMPTS = 5
#: Seconds before the second attempt. Each further delay is twice as long.
FIRST_DELAY = 0.2
#: Seconds after which no new attempt starts.
MAX_SECONDS = 60.0
_VARIABLE, _DEFAULT_SECONDS = "GEAR_DATA_REQUEST_SECONDS", 60.0
#: The most seconds of a request, and of a call of many. Sockets take at most 24 days, and queues 292 years.
_MOST_SECONDS, _MOST_OF_CALL = 1e6, 1e9
#: Bytes for which a transfer has the time of one request.
_REQUEST_BYTES = 32 << 20
#: Listings and removals make a request for each thousand files. Each has the time of so many requests.
MANY = 5

_TOO_MANY = 429
#: The error of HuggingFace's client in its offline mode.
_OFFLINE = "OfflineModeIsEnabled"
_HINT = "check that the server runs and that the endpoint is right; then run the same command again"
_LIMITED_HINT = (
    "the server limits how often it is asked: log in (the hub allows more requests then), raise cache_bytes, use fewer "
    "processes, or wait some minutes"
)
#: Beginnings of the names of errors of botocore and google-auth without usable credentials.
_CREDENTIALS = ("NoCredentials", "PartialCredentials", "CredentialRetrieval", "DefaultCredentials", "ProfileNotFound")
_ACCESS_HINT = (
    "give the credentials of the bucket in the environment (S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
    "AWS_PROFILE; Google: GOOGLE_APPLICATION_CREDENTIALS), or read a public bucket without any: FSSPEC_S3_ANON=true"
)
_DENIED = frozenset({401, 403})
_DENIED_HINT = "the server refuses access: check the credentials and their rights, and the name in the URL"
_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_ERRNOS = frozenset(
    {
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.EPIPE,
        errno.ETIMEDOUT,
        # s3fs maps HTTP 500 and 503 to these. macOS lacks the first.
        getattr(errno, "EREMOTEIO", errno.EBUSY),
        errno.EBUSY,
    }
)
#: Transient errors of aiohttp, botocore, httpx, requests, urllib3, http.client, asyncio, socket.
_TRANSIENT = frozenset(
    {
        "ChunkedEncodingError",
        "ClientConnectionError",
        "ClientPayloadError",
        "ConnectionError",
        "HTTPClientError",
        "IncompleteRead",
        "IncompleteReadError",
        "ProtocolError",
        "ResponseParserError",
        "Timeout",
        "TransportError",
        "gaierror",
    }
)

#: Base classes of those libraries' permanent errors: denied access, missing credentials, bad requests.
_PERMANENT = frozenset({"AzureError", "BotoCoreError", "ClientError", "GoogleAuthError", "HTTPError", "HttpError"})

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


def with_retries(
    call: Callable[[], _Result], action: str, url: str, requests: int = 1, *, once: bool = False
) -> _Result:
    """Returns the result of a call.

    Retries after each transient failure, with growing delays, or after the seconds for which the server asks. If they
    are more than `MAX_SECONDS`, it does not wait.

    Args:
        call: function to call.
        action: action on the file in the passive, for messages: "be read".
        url: URL of the file, for messages.
        requests: the number of requests whose time an attempt may take; see `answer_of`.
        once: make one attempt only.

    Raises:
        RemoteError: every attempt failed, or an attempt failed permanently.
        FileNotFoundError: raised by `call`.
        GearError: raised by `call`.
    """
    begin = time.monotonic()
    delay = FIRST_DELAY
    attempts = 0
    while True:
        attempts += 1
        try:
            return answer_of(call, requests)
        except Exception as error:
            error = _told(error)
            if isinstance(error, GearError | FileNotFoundError) or not _is_remote(error):
                raise
            if not is_transient(error):
                raise RemoteError(f"cannot {action}: {_describe(error)}", file=url, hint=_access_hint(error)) from error
            limited, asked = _TOO_MANY in http_statuses(error), _retry_after(error)
            # Random, so that clients that failed together do not retry together.
            wait = max(delay * random.uniform(0.5, 1.0), asked)
            if once or attempts == MAX_ATTEMPTS or time.monotonic() - begin + max(delay, wait) > MAX_SECONDS:
                times = "once" if attempts == 1 else f"{attempts} times"
                asks = f"; the server asks to wait {asked:.0f} s" if asked else ""
                raise RemoteError(
                    f"cannot {action}, tried {times}: {_describe(error)}{asks}",
                    file=url,
                    hint=_LIMITED_HINT if limited else _HINT,
                ) from error
            if limited:
                _log.warning("%s: the server limits how often it is asked (429); waiting %.1f s", url, wait)
            else:
                _log.warning("%s: cannot %s, retrying: %s", url, action, _describe(error))
        time.sleep(wait)
        delay *= 2


def request_seconds() -> float:
    """Returns the time limit of a request.

    Raises:
        InvalidArgumentError: the environment variable has a wrong value.
    """
    return min(env_seconds(_VARIABLE, _DEFAULT_SECONDS), _MOST_SECONDS)


def requests_of(size: int) -> int:
    """Returns the number of requests whose time a transfer of some bytes may take."""
    return 1 + size // _REQUEST_BYTES


def answer_of(call: Callable[[], _Result], requests: int = 1) -> _Result:
    """Returns the result of a call that asks a server.

    The call runs in a thread: the libraries give some of their requests no limit. Without an answer, the thread stays
    until its connection ends. It does not keep the process.

    Args:
        call: function to call.
        requests: the number of requests whose time it may take.

    Raises:
        TimeoutError: the call did not end in time.
        InvalidArgumentError: the environment variable has a wrong value.
        Exception: raised by `call`.
    """
    seconds = min(requests * request_seconds(), _MOST_OF_CALL)
    answers: SimpleQueue[tuple[list[_Result], BaseException | None]] = SimpleQueue()
    pools = frozenset(_pool_threads())

    def run() -> None:
        try:
            answers.put(([call()], None))
        except BaseException as error:
            answers.put(([], error))

    start_thread(run, (), "gear-request")
    try:
        results, error = answers.get(timeout=seconds)
    except Empty:
        # A library's pool inherits that its thread may be left, but the interpreter would wait for it at exit.
        for thread in frozenset(_pool_threads()) - pools:
            if thread.daemon:
                _pool_threads().pop(thread, None)
        raise TimeoutError(f"no answer within {seconds:g} s; ${_VARIABLE} sets the limit") from None
    if error is not None:
        raise error
    return results[0]


def _pool_threads() -> MutableMapping[Thread, object]:
    """Returns the threads of pools that the interpreter waits for at exit."""
    found: MutableMapping[Thread, object] = getattr(concurrent.futures.thread, "_threads_queues", {})
    return found


def _told(error: Exception) -> Exception:
    """Returns the transient failure behind a FileNotFoundError, or the error itself.

    fsspec says after any failure that a web server has no such file. Only the cause tells which failure it was.
    """
    cause = error.__cause__
    if type(error) is FileNotFoundError and isinstance(cause, Exception) and is_transient(cause):
        return cause
    return error


def is_transient(error: BaseException) -> bool:
    """Returns whether a failure may go away by itself.

    Examples are a lost connection, and an overloaded or restarting server.
    """
    return any(_is_transient_cause(cause) for cause in _causes(error))


def is_unreachable(error: BaseException) -> bool:
    """Returns whether a failure says that a server cannot be reached, or that HuggingFace's offline mode is on.

    A server that limits how often it is asked (429) is reached.
    """
    if _TOO_MANY in http_statuses(error):
        return False
    return is_transient(error) or any(type(cause).__name__ == _OFFLINE for cause in _causes(error))


def http_statuses(error: BaseException) -> frozenset[int]:
    """Returns the HTTP statuses of an error and its causes."""
    return frozenset(status for cause in _causes(error) if (status := _http_status(cause)) is not None)


def _describe(error: BaseException) -> str:
    """Formats an error with its class name, because many of these errors have no text."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _access_hint(error: BaseException) -> str | None:
    """Returns the hint for a request without credentials, or with the wrong ones; None for another failure."""
    causes = [*_causes(error)]
    if any(type(cause).__name__.startswith(_CREDENTIALS) for cause in causes):
        return _ACCESS_HINT
    is_denied = any(isinstance(cause, PermissionError) for cause in causes) or http_statuses(error) & _DENIED
    return _DENIED_HINT if is_denied else None


def _is_remote(error: Exception) -> bool:
    """Returns whether an error comes from the network or its libraries.

    Other errors are bugs in a program.
    """
    if isinstance(error, OSError) or is_transient(error):
        return True
    return any(kind.__name__ in _PERMANENT for kind in type(error).__mro__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and its chain of `__cause__`."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__


def _is_transient_cause(error: BaseException) -> bool:
    if isinstance(error, GearError | FileNotFoundError | PermissionError):
        return False
    if isinstance(error, ConnectionError | TimeoutError):
        # The error of the offline mode is a ConnectionError. Retries do not change the mode.
        return type(error).__name__ != _OFFLINE
    if isinstance(error, OSError) and error.errno in _ERRNOS:
        return True
    return _http_status(error) in _STATUSES or any(kind.__name__ in _TRANSIENT for kind in type(error).__mro__)


def _retry_after(error: BaseException) -> float:
    """Returns the seconds that a server asks to wait, by `Retry-After` (RFC 9110); 0 if it does not."""
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        headers = getattr(cause, "headers", None) or getattr(response, "headers", None)
        if isinstance(response, dict):  # botocore
            headers = response.get("ResponseMetadata", {}).get("HTTPHeaders")
        text = headers.get("retry-after") if headers is not None and hasattr(headers, "get") else None
        if text is None:
            continue
        if str(text).isdecimal():
            return float(text)
        with suppress(ValueError):
            return max(0.0, parsedate_to_datetime(str(text)).timestamp() - time.time())
    return 0.0


def _http_status(error: BaseException) -> int | None:
    """Returns the HTTP status of an error.

    Each library stores it in another attribute.
    """
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return found if isinstance(found, int) else None
    for holder in (error, response):
        for name in ("status", "status_code", "code"):
            found = getattr(holder, name, None)
            if isinstance(found, int | str) and str(found).isdecimal():
                return int(found)
    return None
