"""Whatever a Writer acknowledges is in the dataset once, or in the quarantine with its bytes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings

from gear_data.recording.journal_folder import journals_of
from tests.support.feed.acknowledged import Recording, Steps, steps


@settings(max_examples=40, deadline=None)
@given(steps(30))
def test_acknowledged_episodes_are_published_once_or_kept(steps: Steps) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        recording = Recording(Path(scratch, "live"), Path(scratch))
        recording.check(steps)
        assert not journals_of(Path(scratch, "live")).exists()
