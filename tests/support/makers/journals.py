"""Makers of journals, as `gear_data.Writer` leaves them when its process dies. Not a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gear_data.schema import ColumnSpec
from gear_data.storage.journal.record import RecordedEpisode
from gear_data.storage.journal.writing import JournalWriter
from tests.support.rollouts import Rollout


def journals(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes two journals. The second one has no end."""
    folder.mkdir(parents=True)
    steps = {name: values for name, values in rollouts[0].columns.items() if name not in ("terminated", "truncated")}
    columns = [ColumnSpec(name, values.dtype.name, values.shape[1:]) for name, values in steps.items()]
    half = len(rollouts) // 2
    for number, part in enumerate((rollouts[:half], rollouts[half:])):
        writer = JournalWriter(folder / f"{number:06d}.arrows", columns)
        for rollout in part:
            flags = (bool(rollout.columns[name][-1]) for name in ("terminated", "truncated"))
            writer.append(RecordedEpisode({name: rollout.columns[name] for name in steps}, *flags))
        if number == 0:
            writer.close()
