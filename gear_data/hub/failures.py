"""Errors of the hub's library as errors of gear-data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb

from gear_data.common.retry import request_seconds
from gear_data.errors import (
    DatasetNotFoundError,
    GearError,
    InvalidArgumentError,
    RemoteError,
    StorageFullError,
    is_disk_full,
)

#: Packages of HTTP clients that versions of huggingface_hub use. Their errors have no common class.
_CLIENTS = ("httpx", "requests", "urllib3")
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_LOG_IN = "log in with 'hf auth login', or set HF_TOKEN to a token that may do this"


def check_name(repo_id: str) -> None:
    """Checks the name of a dataset on the hub.

    Raises:
        InvalidArgumentError: it is not USER/NAME.
    """
    if not isinstance(repo_id, str) or not _NAME.fullmatch(repo_id):
        raise InvalidArgumentError(
            f"{repo_id!r} is not the name of a dataset on the hub", hint="give USER/NAME, such as me/hopper"
        )


@contextmanager
def typed_hub_errors(name: str, again: str) -> Iterator[None]:
    """Turns errors of the hub's library into errors of gear-data, and gives its requests a time limit.

    Args:
        name: name of the repository, for messages.
        again: the remedy if the network or the server failed.

    Raises:
        InvalidArgumentError: the hub's library refuses the name.
        DatasetNotFoundError: the repository or the revision does not exist, or may not be read.
        RemoteError: the hub refused the request, or cannot be reached.
        StorageFullError: the part of the library that moves files says that the disk is full.
    """
    from huggingface_hub import constants, errors, utils

    place = f"hf://datasets/{name}"
    # Its client has no limit: a thread that uploads would keep the process. Versions before 1.0 have no such client.
    client = utils.get_session()  # type: ignore[attr-defined]
    before = getattr(client, "timeout", None)
    try:
        if before is not None:
            client.timeout = request_seconds()
        yield
    except GearError:
        raise
    except errors.HFValidationError as error:
        raise InvalidArgumentError(f"the hub's library refuses it: {error}", file=place) from error
    except errors.RevisionNotFoundError as error:
        raise DatasetNotFoundError("has no such revision", file=place, hint="give a branch, tag or commit") from error
    except errors.GatedRepoError as error:
        page = f"{constants.ENDPOINT}/datasets/{name}"
        hint = f"accept its conditions on {page}, and {_LOG_IN}"
        raise DatasetNotFoundError(
            "is gated: only users who accepted its conditions may read it", file=place, hint=hint
        ) from error
    except errors.RepositoryNotFoundError as error:
        # The hub gives the same answer for a private repository.
        hint = f"check the name; if it is private, {_LOG_IN}"
        raise DatasetNotFoundError("does not exist, or is private", file=place, hint=hint) from error
    except Exception as error:
        if (moves := _is_of_transfer(error)) and is_disk_full(OSError(str(error))):
            hint = "free some space, or choose another disk"
            raise StorageFullError(f"no space left on the device: {error}", file=place, hint=hint) from error
        status = _status(error)
        if status is None and not moves and not _is_of_network(error):
            raise
        text = str(getattr(error, "server_message", None) or error).strip() or type(error).__name__
        refused = status in (401, 403)
        raise RemoteError(
            f"the hub {'refused the request' if refused else 'failed'}: {text.splitlines()[0]}",
            file=place,
            hint=_LOG_IN if refused else again,
        ) from error
    finally:
        if before is not None:
            client.timeout = before


def _status(error: BaseException) -> int | None:
    """Returns the HTTP status of an error or of its cause; None without one."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is None and error.__cause__ is not None:
        return _status(error.__cause__)
    return status if isinstance(status, int) else None


def _is_of_network(error: BaseException) -> bool:
    """Returns whether a connection failed. An upload in a thread wraps its error."""
    modules = {kind.__module__.split(".")[0] for kind in type(error).__mro__}
    if isinstance(error, ConnectionError | TimeoutError) or any(each.startswith(_CLIENTS) for each in modules):
        return True
    of_library = not modules.isdisjoint(("huggingface_hub", "hf_xet"))
    return of_library or (error.__cause__ is not None and _is_of_network(error.__cause__))


def _is_of_transfer(error: BaseException) -> bool:
    """Returns whether the part of the library that moves files failed: hf_xet, or the library's check of what arrived.

    They raise errors of Python itself: RuntimeErrors, and OSErrors without a number. hf_xet is compiled, so the
    innermost frame is the library's. An error that has a cause is judged by its cause.
    """
    numbered = getattr(error, "errno", None) is not None
    if type(error) not in (RuntimeError, OSError) or numbered or error.__cause__ is not None:
        return False
    modules = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    return bool(modules) and modules[-1].startswith("huggingface_hub")


@contextmanager
def quiet_library() -> Iterator[None]:
    """Hides the progress bars of the hub's library: one bar is shown for all files."""
    from huggingface_hub import utils

    before = utils.are_progress_bars_disabled()  # type: ignore[attr-defined]
    utils.disable_progress_bars()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if not before:
            utils.enable_progress_bars()  # type: ignore[attr-defined]
