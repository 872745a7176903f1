"""RateLimit: how far writers and training may be ahead of each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gear_data.common.keywords import check_range, suggest_fields
from gear_data.errors import InvalidArgumentError


@dataclass(frozen=True)
class Counts:
    """Counts of all processes.

    Attributes:
        inserted: steps of finished episodes.
        sampled: rows of batches.
    """

    inserted: int
    sampled: int


@suggest_fields
@dataclass(frozen=True)
class RateLimit:
    """How far writers and training may be ahead of each other.

    As in Reverb (`reverb.rate_limiters.MinSize` and `SampleToInsertRatio`), the limit has two stages. With fewer than
    `min_steps` inserted steps, training waits, and writers do not. After that, both sides keep the difference

        inserted steps * samples_per_insert - sampled rows

    within `min_steps * samples_per_insert ± error`. Training waits below this range, writers wait above it. So both
    sides never wait for each other at the same time, whatever the lengths of episodes and the size of batches. An
    episode is inserted as a whole, and a batch is sampled as a whole. So the difference may leave the range by the last
    episode of each writer and by the last batch of each rank.

    Reverb counts items. Here, a step is an item, and each row of a batch samples one.

    Source: https://github.com/google-deepmind/reverb, `reverb/rate_limiters.py`.

    Args:
        min_steps: inserted steps before the first batch.
        samples_per_insert: rows that training samples for each inserted step. None: only `min_steps` counts.
        error: margin of the difference, in rows: at least the larger of 1 and `samples_per_insert`. With less than
            `samples_per_insert` times the steps of an episode, the two sides mostly take turns.
        timeout: seconds that one wait may last.

    Raises:
        InvalidArgumentError: a value is out of its range, or `error` is given without `samples_per_insert`, or the
            reverse.
    """

    min_steps: int = 1
    samples_per_insert: float | None = None
    error: float | None = None
    timeout: float = field(default=600.0, compare=False)

    def __post_init__(self) -> None:
        check_range("min_steps", self.min_steps, 1)
        _check_positive("timeout", self.timeout)
        if (self.samples_per_insert is None) != (self.error is None):
            raise InvalidArgumentError(
                f"samples_per_insert is {self.samples_per_insert!r} and error is {self.error!r}",
                hint="give both, or none of them",
            )
        if self.samples_per_insert is None or self.error is None:
            return
        _check_positive("samples_per_insert", self.samples_per_insert)
        _check_positive("error", self.error)
        if self.error < (least := max(1.0, self.samples_per_insert)):
            raise InvalidArgumentError(
                f"error must be at least {least:g}, not {self.error!r}",
                hint="the larger of 1 and samples_per_insert; otherwise no step could be inserted without a wait",
            )

    def may_insert(self, counts: Counts) -> bool:
        """Returns whether a writer may insert an episode."""
        if self.samples_per_insert is None or self.error is None or counts.inserted < self.min_steps:
            return True
        return self._difference(counts, self.samples_per_insert) <= self.error

    def may_sample(self, counts: Counts) -> bool:
        """Returns whether training may sample a batch."""
        if counts.inserted < self.min_steps:
            return False
        if self.samples_per_insert is None or self.error is None:
            return True
        return self._difference(counts, self.samples_per_insert) >= -self.error

    def _difference(self, counts: Counts, samples_per_insert: float) -> float:
        """Returns the rows that writers are ahead; negative: training is ahead."""
        return (counts.inserted - self.min_steps) * samples_per_insert - counts.sampled


def _check_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise InvalidArgumentError(f"{name} must be a positive number, not {value!r}")
