"""Calls over a network that are tried again when the connection fails.

What counts as passing: dropped and refused connections, timeouts, answers cut short, and HTTP's 408, 429 and 5xx
(RFC 9110, RFC 6585). The libraries behind fsspec have error classes of their own for these, and none of them need be
installed: they are known by name. File systems have retries of their own beneath these.
"""

from __future__ import annotations

import errno
import logging
import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from gear_data.errors import GearError, RemoteError

#: How often a call is tried.
MAX_ATTEMPTS = 5
#: Seconds waited before the second try; each further wait is twice as long.
FIRST_DELAY = 0.2
#: Seconds after which no new try begins.
MAX_SECONDS = 60.0

_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_NUMBERS = frozenset(
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
        # s3fs makes these of 500 and 503.
        errno.EREMOTEIO,
        errno.EBUSY,
    }
)
#: Of aiohttp, botocore, httpx, requests, urllib3, http.client, asyncio, socket.
_NAMES = frozenset(
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

#: What those libraries' other errors are kinds of: refused rights, missing credentials, bad requests.
_BASES = frozenset({"AzureError", "BotoCoreError", "ClientError", "GoogleAuthError", "HTTPError", "HttpError"})

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


def with_retries(call: Callable[[], _Result], what: str, file: str) -> _Result:
    """The result of a call, tried again after a passing failure, each time after a longer wait.

    Args:
        what: what the call does to the file, for messages: "be read".
        file: the URL.

    Raises:
        RemoteError: it failed every time, or in a way that will not pass.
        FileNotFoundError: as `call` raises it.
        GearError: as `call` raises it.
    """
    begin = time.monotonic()
    wait = FIRST_DELAY
    tries = 0
    while True:
        tries += 1
        try:
            return call()
        except Exception as error:
            if isinstance(error, GearError | FileNotFoundError) or not _is_remote(error):
                raise
            if not is_transient(error):
                raise RemoteError(f"cannot {what}: {describe(error)}", file=file) from error
            if tries == MAX_ATTEMPTS or time.monotonic() - begin + wait > MAX_SECONDS:
                times = "once" if tries == 1 else f"{tries} times"
                raise RemoteError(
                    f"cannot {what}, tried {times}: {describe(error)}",
                    file=file,
                    hint="is the server there, and the endpoint right? the same command can be run again",
                ) from error
            _log.warning("%s: cannot %s, trying again: %s", file, what, describe(error))
        # Many that were cut off at once should not come back at once.
        time.sleep(wait * random.uniform(0.5, 1.0))
        wait *= 2


def is_transient(error: BaseException) -> bool:
    """Whether a failure is one of the connection, or of a server that may answer again."""
    return any(_passes(cause) for cause in _causes(error))


def describe(error: BaseException) -> str:
    """What an error says, with its class: many of these have no text."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _is_remote(error: Exception) -> bool:
    """Whether an error is of the network or its libraries, not a mistake in a program."""
    if isinstance(error, OSError) or is_transient(error):
        return True
    return any(kind.__name__ in _BASES for kind in type(error).__mro__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__


def _passes(error: BaseException) -> bool:
    if isinstance(error, GearError | FileNotFoundError | PermissionError):
        return False
    if isinstance(error, ConnectionError | TimeoutError):
        # The hub's client was told to stay away from the network: it will go on doing so.
        return type(error).__name__ != "OfflineModeIsEnabled"
    if isinstance(error, OSError) and error.errno in _NUMBERS:
        return True
    return _status(error) in _STATUSES or any(kind.__name__ in _NAMES for kind in type(error).__mro__)


def _status(error: BaseException) -> int | None:
    """The HTTP status an error carries, wherever its library puts it."""
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
