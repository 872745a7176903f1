"""Journals that become parts of a growing dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gear_data.errors import UnsupportedColumnError
from gear_data.growing.draft import Draft, DraftPart, draft_of
from gear_data.growing.part_statistics import write_statistics
from gear_data.ingest.several.united import united_columns
from gear_data.ingest.videos.draft import linked_videos
from gear_data.schema import Schema
from gear_data.storage.atomic import typed_write_errors
from gear_data.storage.generations.growth import Part
from gear_data.storage.manifest import FileEntry, Manifest
from gear_data.storage.writing.file_store import LocalFileStore
from gear_data.storage.writing.placing import place


@dataclass(frozen=True)
class SealedJournal:
    """A sealed journal: a dataset of its own, which becomes a part of a growing one.

    Attributes:
        writer: the series of the journal. Of an earlier version: the name of the writer's folder of journals.
        number: of the journal.
        folder: folder of the sealed dataset.
        manifest: its manifest.
        comes_back: whether another process recorded it, or it was given to a publication before.
        sequences: client of a server for writers -> sequence number of its last episode in the journal.
    """

    writer: str
    number: int
    folder: Path
    manifest: Manifest
    comes_back: bool
    sequences: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class AddedJournal:
    """A journal whose shards and videos are in the folder of a growing dataset.

    Attributes:
        writer, number, sequences: see `SealedJournal`.
        manifest: of the sealed dataset.
        draft: the sealed dataset, with the names that its files have in the growing one.
    """

    writer: str
    number: int
    sequences: Mapping[str, int]
    manifest: Manifest
    draft: Draft


def placed(store: LocalFileStore, folder: Path, manifest: Manifest, name: str) -> Draft:
    """Puts the shards and videos of a sealed journal into a dataset's folder.

    Args:
        store: the dataset's folder.
        folder: folder of the sealed journal.
        manifest: its manifest.
        name: of the new part. No earlier part has the name.

    Raises:
        CorruptShardError: a file has another checksum.
        StorageFullError, UnwritableError: the folder cannot be written to.
    """
    destination = store.folder / "shards"
    with typed_write_errors(destination):
        destination.mkdir(parents=True, exist_ok=True)
    files = []
    for number, shard in enumerate(manifest.shards):
        file = f"shards/{name}-{number:04d}.arrow"
        source = folder / shard.entry.file
        place(store, source, shard.entry, file, name=str(source))
        files.append(FileEntry(file, shard.entry.bytes, shard.entry.checksum))
    write_statistics(store, name, manifest.statistics)
    draft = draft_of(folder, manifest, [Part(name, len(files))])
    shards = tuple(replace(shard, entry=file) for shard, file in zip(draft.shards, files, strict=True))
    videos = None if draft.videos is None else linked_videos(store, folder, draft.videos, name)
    part = DraftPart(Part(name, len(files)), shards, draft.parts[0].video_bytes)
    return replace(draft, parts=(part,), videos=videos)


def check_columns(schema: Schema, added: Schema, file: str) -> None:
    """Checks that episodes of some columns can join a dataset.

    Args:
        schema: of the dataset.
        added: of the episodes.
        file: the dataset, for errors.

    Raises:
        UnsupportedColumnError: a column is missing, new, or has another dtype or shape.
    """
    united_columns([(file, schema.columns), ("the new episodes", added.columns)])
    for name in dict.fromkeys((*schema.names, *added.names)):
        if (name in schema) != (name in added):
            lacks = "the new episodes lack it" if name in schema else "the dataset lacks it"
            raise UnsupportedColumnError(
                f"cannot be appended: {lacks}", file=file, column=name, hint="record the columns of the dataset"
            )
        if (schema[name].video is None, schema[name].shape) != (added[name].video is None, added[name].shape):
            kinds = ("a column" if each[name].video is None else "a camera" for each in (schema, added))
            raise UnsupportedColumnError(
                "is {} in the dataset, and {} of other frames in the new episodes".format(*kinds), file=file,
                column=name, hint="record to another path",
            )  # fmt: skip
        if schema[name].has_final != added[name].has_final:
            raise UnsupportedColumnError(
                "has final observations in one of the dataset and the new episodes only", file=file, column=name,
                hint="record to another path, and merge the datasets",
            )  # fmt: skip
    if schema.names != added.names:
        raise UnsupportedColumnError(
            f"its columns are in the order {', '.join(schema.names)}", file=file, hint="record them in this order"
        )
