"""Values that the ranks of a run publish for each other, or errors in their place."""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

from gear_data.cluster.error_codec import error_from_bytes, error_to_bytes
from gear_data.cluster.key_value_store import KeyValueStore
from gear_data.cluster.protocol import ONE_VERSION_HINT
from gear_data.common.secret import Secret, decode_json
from gear_data.common.typed_json import resolved
from gear_data.errors import ClusterError, GearError

_log = logging.getLogger(__name__)

T = TypeVar("T")


@resolved
@dataclass(frozen=True)
class Failure:
    """The error of a rank: its bytes (see `error_to_bytes`) and the name of the rank."""

    error: str
    rank: str


class RankMessages:
    """Values that ranks publish for each other.

    A rank that fails publishes its error in place of its value.

    Args:
        store: the run's store.
        rank: name of this process's rank, such as `rank 3`.
        action: what the ranks do together, for errors.
    """

    def __init__(self, store: KeyValueStore, rank: str, action: str = "joining the cluster") -> None:
        self._store, self._rank, self._action = store, rank, action

    def publish(self, key: str, make: Callable[[], Any]) -> None:
        """Publishes what `make` returns, or its error.

        Does not raise the error of `make`: `read` raises it on every rank, this one too.

        Raises:
            ClusterError: the store cannot be reached.
        """
        self.publish_with_result(key, lambda: (make(), None))

    def publish_with_result(self, key: str, make: Callable[[], tuple[Any, T]]) -> T | None:
        """Publishes the first value that `make` returns, and returns the second.

        Returns None after an error of `make`, which it publishes like `publish`.
        """
        result: T | None = None
        try:
            value, result = make()
        except GearError as error:
            value = self.as_failure(error)
        except Exception as error:
            # Published too: the other ranks would wait for the value until the timeout.
            _log.exception("%s failed", self._action)
            value = self.as_failure(
                ClusterError(f"{self._action} failed: {error!r}", hint=f"see the log of {self._rank}")
            )
        self._store.put(key, value)
        return result

    def as_failure(self, error: GearError) -> Failure:
        """Returns an error in its published form.

        The form has the name of the rank where the error happened first, in place of a file. The file is named in the
        message.
        """
        if error.file is not None and error.file.startswith("rank "):
            return Failure(error_to_bytes(error).decode(), error.file)
        if error.file is not None:
            error, message = copy(error), f"{error.file}: {error.message}"
            error.message = message
        return Failure(error_to_bytes(error).decode(), self._rank)

    def read(self, key: str, rank: int, kind: type[T]) -> T:
        """Waits for the value that a rank publishes.

        Raises:
            GearError: the error that the rank published in its place.
            ClusterError: the rank does not publish a valid value in time.
        """
        message = self._store.take(key, f"rank {rank}")
        self.raise_failure(message)
        try:
            return decode_json(message, kind)
        except ValueError as problem:
            raise ClusterError(f"rank {rank} published an invalid value: {problem}", hint=ONE_VERSION_HINT) from problem

    def raise_failure(self, message: Secret) -> None:
        """Raises the error that a rank published in place of a value.

        Returns for another value.
        """
        # First as a failure: it would also pass as a value without required fields.
        failure = failure_in(message)
        if failure is not None:
            raise error_from_bytes(failure.error.encode(), failure.rank) or ClusterError(
                f"{self._action} failed", file=failure.rank, hint=f"see the log of {failure.rank}"
            )


def failure_in(message: Secret) -> Failure | None:
    """Returns the failure that a rank published, or None for another value."""
    try:
        return decode_json(message, Failure)
    except ValueError:
        return None
