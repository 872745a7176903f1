"""BucketServer: a server of a bucket, whose requests tests see, stop and answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import fsspec
import pytest

#: Conditions of puts: the object does not exist; it has the version that was read.
CONDITIONS = ("create", "replace")


class BucketServer:
    """A server of this process with a bucket `bucket`, one request at a time.

    A request has a verb (PUT, GET, HEAD, LIST or DELETE) and a path (`/bucket/key`; for LIST, the prefix), which are
    the same for each kind of store.

    Attributes:
        scheme: of the URLs.
        no_version: the version of no object.
        ignored: conditions that the server ignores, of `CONDITIONS`.
        before: is called with the verb and the path before each request, and may raise or change objects.
        fault: takes the verb and the path of a request. May return a status that is the answer in place of the
            server's, and whether the server takes the request nevertheless.
        requests: verb and path of each request so far.
    """

    scheme: str
    no_version: str

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.requests: list[tuple[str, str]] = []
        self.reset()

    def reset(self) -> None:
        """Ends all faults."""
        self.ignored: tuple[str, ...] = ()
        self.before: Callable[[str, str], None] = lambda verb, path: None
        self.fault: Callable[[str, str], tuple[int, bool] | None] = lambda verb, path: None

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Lets fsspec connect to the server, in this process and in those that it starts."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def turn(self, verb: str, path: str, take: Callable[[], object]) -> int | None:
        """Takes a request, unless a test wants otherwise.

        Returns:
            The status that a test wants as answer, if any.
        """
        self.before(verb, path)
        status, taken = self.fault(verb, path) or (None, True)
        with self._mutex:
            self.requests.append((verb, path))
            if taken:
                take()
        return status


@contextmanager
def environment(values: dict[str, str], scheme: str) -> Iterator[pytest.MonkeyPatch]:
    """Sets environment variables, and forgets the file systems that fsspec made before and meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, value)
        kind = fsspec.get_filesystem_class(scheme)
        # fsspec caches file systems by their arguments, which do not include the endpoint of another server.
        kind.clear_instance_cache()
        yield patch
        kind.clear_instance_cache()
