"""RateLimit, against a loop that plays writers and training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import InvalidArgumentError
from gear_data.recording.rate_limit.limit import Counts


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_steps": 0}, "min_steps must be an integer of at least 1, not 0"),
        ({"min_steps": 1.5}, "min_steps must be an integer"),
        ({"samples_per_insert": 2.0}, "error is None"),
        ({"error": 2.0}, "samples_per_insert is None"),
        ({"samples_per_insert": 0.0, "error": 2.0}, "samples_per_insert must be a positive number"),
        ({"samples_per_insert": 4.0, "error": 3.0}, "error must be at least 4, not 3.0"),
        ({"samples_per_insert": 0.25, "error": 0.5}, "error must be at least 1, not 0.5"),
        ({"samples_per_insert": 1.0, "error": float("nan")}, "error must be a positive number"),
        ({"timeout": 0}, "timeout must be a positive number"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        gear_data.RateLimit(**values)


def test_min_steps_alone_holds_back_training_only() -> None:
    limit = gear_data.RateLimit(min_steps=100)
    assert [limit.may_sample(Counts(inserted, 0)) for inserted in (0, 99, 100)] == [False, False, True]
    assert limit.may_insert(Counts(0, 0)) and limit.may_insert(Counts(10**9, 0))


def test_the_margin_is_that_of_reverb() -> None:
    # reverb.rate_limiters.SampleToInsertRatio(4, 100, 50): the difference may be 350 to 450.
    limit = gear_data.RateLimit(min_steps=100, samples_per_insert=4, error=50)
    for inserted in (99, 100, 130):
        for sampled in range(0, 400):
            difference = inserted * 4 - sampled
            counts = Counts(inserted, sampled)
            assert limit.may_insert(counts) == (inserted < 100 or difference <= 450)
            assert limit.may_sample(counts) == (inserted >= 100 and difference >= 350)


@pytest.mark.parametrize("seed", range(10))
def test_one_side_can_always_go_on(seed: int) -> None:
    random = np.random.default_rng(seed)
    ratio = float(2 ** random.uniform(-6, 6))
    limit = gear_data.RateLimit(
        min_steps=int(random.integers(1, 2000)),
        samples_per_insert=ratio,
        error=max(1.0, ratio) * float(random.uniform(1, 100)),
    )
    longest, batch = int(random.integers(1, 1000)), int(random.integers(1, 1000))
    inserted = sampled = 0
    for _ in range(3000):
        counts = Counts(inserted, sampled)
        allowed = [limit.may_insert(counts), limit.may_sample(counts)]
        assert any(allowed)
        if allowed[0] and (not allowed[1] or random.random() < 0.5):
            inserted += int(random.integers(1, longest + 1))
        else:
            sampled += batch
        if sampled:
            difference = (inserted - limit.min_steps) * ratio - sampled
            # A writer may insert one episode at the lower end of stage 1, and one more in stage 2.
            assert -limit.error - batch <= difference <= max(limit.error, longest * ratio) + longest * ratio
