"""RateLimiter: one process's side of a rate limit."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from gear_data.errors import InvalidArgumentError, RateLimitError
from gear_data.recording.journal_folder import journals_of
from gear_data.recording.rate_limit.counters import SIDES, Counter, Side, read_counters, read_counts, remove_ended
from gear_data.recording.rate_limit.limit import Counts, RateLimit
from gear_data.storage.journal.writing import SUFFIX
from gear_data.storage.manifest import MANIFEST_NAME

#: Seconds of a wait before a log message says who waits for whom.
MESSAGE_SECONDS = 5.0

_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05

_log = logging.getLogger(__name__)


class RateLimiter:
    """One process's side of a rate limit: it counts, and waits for the other side.

    Args:
        path: the folder of the dataset. The counters are in `PATH.rate`.
        limit: the limit.
        side: what this process counts: steps that it inserted, or rows that it sampled.

    Raises:
        InvalidArgumentError: a running process has another limit for this dataset. The two could wait for each other.
        StorageFullError, UnwritableError: the counters cannot be written.
    """

    def __init__(self, path: Path, limit: RateLimit, side: Side) -> None:
        self._limit, self._side, self._name = limit, side, str(path)
        self._folder = path.with_name(f"{path.name}.rate")
        self._manifest = path / MANIFEST_NAME
        # The journals first: another process may put them into the dataset meanwhile. A server has their folder before
        # its first episode, and a killed Writer leaves it.
        if not any(journals_of(path).glob(f"*/*{SUFFIX}")) and not self.has_dataset():
            # Nothing is recorded: the counts are those of an earlier dataset with this path.
            remove_ended(self._folder)
        self._counter = Counter(self._folder, side, limit)
        try:
            self._check_same_limit()
        except BaseException:
            self.close()
            raise

    def has_dataset(self) -> bool:
        """Returns whether the dataset has a generation."""
        return self._manifest.exists()

    def may_go_on(self) -> bool:
        """Returns whether this side need not wait."""
        return self._allows(read_counts(self._folder))

    def wait(self, timeout: float | None = None) -> None:
        """Waits while this side is ahead.

        Args:
            timeout: seconds that the wait may last; None: the limit's `timeout`.

        Raises:
            RateLimitError: the wait lasted longer. Call again to wait longer.
        """
        longest = self._limit.timeout if timeout is None else timeout
        since, pause, announced = time.monotonic(), _FIRST_PAUSE, False
        while not self._allows(counts := read_counts(self._folder)):
            waited = time.monotonic() - since
            if waited >= longest:
                raise RateLimitError(
                    f"{self._reason(counts)} for {waited:.0f} s",
                    file=self._name,
                    hint="start the other side, or raise the limit's timeout or error",
                )
            if not announced and waited >= MESSAGE_SECONDS:
                _log.warning("%s: %s since %.0f s", self._name, self._reason(counts), waited)
                announced = True
            time.sleep(min(pause, max(0.0, longest - waited)))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def add(self, number: int) -> None:
        """Adds steps that this process inserted, or rows that it sampled."""
        self._counter.add(number)

    def close(self) -> None:
        """Stops to count. The counts stay."""
        self._counter.close()

    def __enter__(self) -> RateLimiter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _allows(self, counts: Counts) -> bool:
        return self._limit.may_insert(counts) if self._side == "inserted" else self._limit.may_sample(counts)

    def _reason(self, counts: Counts) -> str:
        """Returns who waits for whom."""
        own, other = ("a Writer", "training") if self._side == "inserted" else ("training", "Writers")
        other_side = SIDES[1] if self._side == "inserted" else SIDES[0]
        others = ", ".join(map(str, read_counters(self._folder, other_side))) or "none has started"
        return (
            f"{own} waits for {other} ({others}): {counts.inserted} steps inserted, {counts.sampled} rows sampled, "
            f"with {self._limit}"
        )

    def _check_same_limit(self) -> None:
        for side in SIDES:
            for each in read_counters(self._folder, side):
                if each.is_held and each.holder is not None and each.holder.limit != self._limit:
                    raise InvalidArgumentError(
                        f"the rate limit is {self._limit}, and that of {each.holder.process} is {each.holder.limit}",
                        file=self._name,
                        hint="give all processes the same limit",
                    )
