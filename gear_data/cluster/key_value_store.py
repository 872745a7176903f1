"""A key-value store shared by the ranks of a run, over torch.distributed's store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from gear_data.common.environment import env_seconds
from gear_data.common.secret import Secret, encode_json
from gear_data.errors import ClusterError

TIMEOUT_VARIABLE = "GEAR_DATA_JOIN_TIMEOUT"
DEFAULT_TIMEOUT = 1800.0


def join_timeout() -> float:
    """Returns how many seconds ranks wait for each other ($GEAR_DATA_JOIN_TIMEOUT).

    Loading shards takes time.

    Raises:
        InvalidArgumentError: the variable's value is not a number of seconds.
    """
    return env_seconds(TIMEOUT_VARIABLE, DEFAULT_TIMEOUT)


class KeyValueStore:
    """Values that ranks publish for each other. Each value is stored as JSON.

    Args:
        store: torch.distributed's store, or an object with the same methods.
        prefix: prefix of all keys.
        timeout: seconds that `take` waits.
    """

    def __init__(self, store: Any, prefix: str, timeout: float) -> None:
        self._store = store
        self._prefix = prefix
        self._timeout = timedelta(seconds=timeout)

    def put(self, key: str, value: Any) -> None:
        """Publishes a value.

        Raises:
            ClusterError: the store cannot be reached.
        """
        with _reached():
            self._store.set(self._prefix + key, encode_json(value).reveal().decode())

    def propose(self, key: str, value: Any) -> Secret:
        """Publishes a value that no rank has published, and returns the JSON of the published value.

        All ranks that propose values get the same one: that of the first.

        Raises:
            ClusterError: the store cannot be reached.
        """
        with _reached():
            text = encode_json(value).reveal().decode()
            return Secret(bytes(self._store.compare_set(self._prefix + key, "", text)))

    def has(self, keys: Sequence[str]) -> bool:
        """Returns whether all of these values are published.

        Raises:
            ClusterError: the store cannot be reached.
        """
        with _reached():
            return bool(self._store.check([self._prefix + key for key in keys]))

    def remove(self, keys: Sequence[str]) -> None:
        """Removes values; those that are not published are ignored.

        Raises:
            ClusterError: the store cannot be reached.
        """
        with _reached():
            for key in keys:
                self._store.delete_key(self._prefix + key)

    def take(self, key: str, rank: str) -> Secret:
        """Waits for a value and returns its JSON, which may hold secrets.

        Args:
            key: its key.
            rank: the rank that publishes it, for the error message.

        Raises:
            ClusterError: the value is not published in time, or the store cannot be reached.
        """
        with _reached():
            try:
                self._store.wait([self._prefix + key], self._timeout)
            except RuntimeError as error:
                if _connection_lost(error):
                    raise
                raise ClusterError(
                    f"timed out after {self._timeout.total_seconds():g} s waiting for {rank}",
                    hint=f"see the log of {rank}; ${TIMEOUT_VARIABLE} sets the timeout in seconds",
                ) from error
            return Secret(self._store.get(self._prefix + key))


@contextmanager
def _reached() -> Iterator[None]:
    """Explains errors of a store that cannot be reached."""
    try:
        yield
    except RuntimeError as error:
        raise ClusterError(
            f"cannot reach the run's key-value store: {error}",
            hint="rank 0 holds the store: check that it runs, and see its log",
        ) from error


def _connection_lost(error: RuntimeError) -> bool:
    from torch.distributed import DistNetworkError

    return isinstance(error, DistNetworkError)
