"""Errors of a node's server, in the form that its clients get.

A client learns what it needs to mend a request or to name a problem. Tracebacks and folders stay in the node's log.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyarrow import flight

from gear_data.cluster.error_codec import error_to_bytes
from gear_data.cluster.flight.call_counts import CallCounts
from gear_data.errors import EpisodeRefusedError, GearError, GenerationGoneError, NodeFailedError, NodeRefusedError

#: The folders of an absolute path, or of a URL.
_FOLDERS = re.compile(r"(?:\b\w+:/)?(?<![\w.])/(?:[^\s'\"]+/)?")

_log = logging.getLogger(__name__)


class _ClientGoneError(Exception):
    """Raised when a client does not take a response any more."""


@contextmanager
def to_client() -> Iterator[None]:
    """A context in which a handler writes to its client.

    If the client is gone, `as_flight_errors` ends the call quietly.
    """
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise _ClientGoneError from error


@contextmanager
def as_flight_errors(counts: CallCounts) -> Iterator[None]:
    """Converts the errors of a handler to the error that Arrow Flight sends.

    A `GearError` is sent with its class. Any other error is logged with its traceback and an id. The client gets only
    the id. Errors are counted.
    """
    try:
        yield
    except (pa.ArrowCancelled, _ClientGoneError):
        # The client has closed the stream.
        return
    except GearError as error:
        counts.add(errors=1)
        if not isinstance(error, NodeRefusedError | GenerationGoneError):
            # Not the client's fault: the node's operator must know.
            _log.warning("a request failed: %s", error)
        raise flight_error(error) from error
    except Exception as error:
        counts.add(errors=1)
        number = secrets.token_hex(4)
        _log.exception("a request failed with an unexpected error, id %s", number)
        failure = NodeFailedError(
            f"failed with an unexpected error, id {number}", hint=f"search the log of that node for {number}"
        )
        raise flight_error(failure) from error


def flight_error(error: GearError) -> flight.FlightServerError:
    """Returns an error as Arrow Flight sends it.

    Paths lose their folders, which are only this machine's business.
    """
    message = _FOLDERS.sub("", error.message)
    hint = None if error.hint is None else _FOLDERS.sub("", error.hint)
    sent = type(error)(message, column=error.column, hint=hint)
    if isinstance(sent, EpisodeRefusedError) and isinstance(error, EpisodeRefusedError):
        sent.sequence = error.sequence
    return flight.FlightServerError(message, extra_info=error_to_bytes(sent))
