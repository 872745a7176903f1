"""The episodes of a dataset and its journals, as a server for writers must know them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from gear_data.errors import CorruptSourceError
from gear_data.growing.folder.generations import newest_manifest
from gear_data.growing.next_generation import growth_of
from gear_data.recording.declared_columns import declared_columns
from gear_data.recording.journal_folder import journals_of
from gear_data.schema import ColumnSpec
from gear_data.storage.journal.episode_log import EarlierEpisodes, last_sequences
from gear_data.storage.journal.reading import Journal, read_journal
from gear_data.storage.journal.writing import SUFFIX
from gear_data.storage.writing.folder_lock import folder_lock


def earlier_episodes(folder: Path) -> EarlierEpisodes:
    """Returns what a server must know of the episodes of a dataset and of all its journals.

    Args:
        folder: folder of the dataset, which need not exist.

    Raises:
        CorruptSourceError: a journal cannot be read.
        ManifestError: the manifest is damaged.
    """
    # The journals first: another process may put them into the dataset meanwhile.
    columns: tuple[ColumnSpec, ...] = ()
    sequences: dict[str, int] = {}
    for file in sorted(journals_of(folder).glob(f"*/*{SUFFIX}")):
        if (journal := _read(file)) is not None and journal.episodes:
            columns = columns or (*journal.columns, *journal.cameras)
            sequences = last_sequences(journal.episodes, sequences)
        del journal  # it is in memory
    manifest = newest_manifest(folder)
    growth = growth_of(manifest)
    for client, sequence in growth.sequences.items():
        sequences[client] = max(sequence, sequences.get(client, -1))
    if manifest is not None:
        finals = {column.name for column in manifest.schema.final_columns}
        declared = declared_columns(manifest.schema)
        columns = tuple(replace(each, has_final=each.name in finals) for each in declared)
    return EarlierEpisodes(columns, sequences, growth.forgotten_clients)


@contextmanager
def only_server(folder: Path) -> Iterator[None]:
    """Makes this process the only server for writers of a dataset.

    Another one would not know which episodes this one has taken.

    Raises:
        DestinationExistsError: another process is a server for writers of the dataset.
    """
    journals = journals_of(folder)
    try:
        hint = "end the other server, or choose another dataset"
        with folder_lock(journals / "server", name=str(folder), hint=hint):
            yield
    finally:
        with suppress(OSError):  # journals wait there, or a writer uses it
            os.rmdir(journals)


def _read(file: Path) -> Journal | None:
    """Reads a journal; None if it was removed meanwhile."""
    try:
        return read_journal(file, is_written=True)
    except CorruptSourceError:
        if file.exists():
            raise
        return None
