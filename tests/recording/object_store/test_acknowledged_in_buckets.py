"""Whatever a Writer acknowledges is in the bucket once: in the dataset, or in a quarantine."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings

from tests.support.feed.acknowledged import BucketRecording, Steps, steps

#: Facts of two types on two machines, and Writers that die before and after an upload.
_CONFLICTS: Steps = [
    ("episode", 0, {"a": 1}), ("episode", 1, {"a": "x"}), ("flush", 0, {}), ("flush", 1, {}), ("episode", 1, {}),
    ("crash", 1, {}), ("old", 2, {"a": True}), ("seal", 0, {}), ("episode", 0, {"a": 2}), ("flush", 0, {}),
    ("crash", 0, {}), ("episode", 1, {"b": 1}), ("seal", 1, {}), ("episode", 0, {"b": "y"}),
]  # fmt: skip


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(_CONFLICTS)
@given(steps(12))
def test_acknowledged_episodes_are_published_once_or_kept(url: str, steps: Steps) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        BucketRecording(f"{url}-{Path(scratch).name}", Path(scratch)).check(steps)
