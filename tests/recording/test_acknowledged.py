"""Whatever a Writer acknowledges is in the dataset once, or in the quarantine with its bytes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import example, given, settings

from gear_data.recording.journal_folder import journals_of
from tests.support.feed.acknowledged import Recording, Steps, steps

# Journals with actions of two dtypes, of Writers that checked nothing and of one that dies.
_COLUMNS: Steps = [
    ("old", 0, {"metadata.length": 1}), ("old", 1, {}), ("episode", 0, {}), ("episode", 1, {"metadata.length": 2}),
    ("seal", 1, {}), ("old", 2, {"metadata.length": 3}), ("episode", 1, {}), ("crash", 1, {}), ("old", 0, {"a": 1}),
]  # fmt: skip


@settings(max_examples=40, deadline=None)
@example(_COLUMNS)
@given(steps(30))
def test_acknowledged_episodes_are_published_once_or_kept(steps: Steps) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        recording = Recording(Path(scratch, "live"), Path(scratch))
        recording.check(steps)
        assert not journals_of(Path(scratch, "live")).exists()
