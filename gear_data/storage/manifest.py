"""manifest.json: the contents of a dataset and its files.

It is written last, so a folder without it is no dataset.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import xxhash

from gear_data.common.paths import missing_hint, with_short_paths, without_folders
from gear_data.common.regular_files import JSON_BYTES, read_regular
from gear_data.common.signed_text import sign, text_checksum
from gear_data.common.typed_json import Count, check_json, parse_json, resolved
from gear_data.errors import DatasetNotFoundError, ManifestError, VersionError, refuse_exhausted
from gear_data.schema import ColumnRecord, ColumnSpec, Schema, VideoRecord
from gear_data.storage.generations.growth import Growth, GrowthRecord
from gear_data.storage.statistics import ColumnStatistics, StatisticsRecord, statistics_width
from gear_data.storage.variable_columns import OFFSET_BYTES, VariableBuffers
from gear_data.video.index_tables import TABLE_FILES

#: Newest known version. A dataset has the lowest version that reads it: 6 if it has unindexed video files, 5 if it has
#: depth videos, which older versions would read as RGB, 4 if it has video files without checksums, 3 if its columns
#: were edited (see `ShardEntry.names`), 2 if it has a step mask, which version 1 would ignore, else 1.
FORMAT_VERSION = 6
MANIFEST_NAME = "manifest.json"
#: The table of the steps that windows may use, and its file.
STEP_MASK, STEP_MASK_FILE = "step_mask", "step_mask.arrow"

#: Most datasets inside a folder that an error names.
_SHOWN_DATASETS = 10
#: Remedies for a damaged shard or video file, for all datasets and for one that is opened. `repair` needs a source.
REPAIR = "restore it from a copy; of a converted dataset, 'gear-data repair' writes it again"
REPAIR_OR_SKIP = f"{REPAIR}; or open the dataset without its episodes: gear_data.open(..., on_bad_shard='skip')"
#: Remedy for a manifest that cannot be used.
_RESTORE = "restore manifest.json, or convert again"


@dataclass(frozen=True)
class FileEntry:
    """One file of a dataset.

    Attributes:
        file: path relative to the dataset's folder.
        bytes: size.
        checksum: `xxh3-128:HEX`.
    """

    file: str
    bytes: Count
    checksum: str


@dataclass(frozen=True)
class AddedFile:
    """A file beside a shard, with columns that were added to the dataset later.

    Attributes:
        file, bytes, checksum: see `FileEntry`.
        columns: the columns that it holds, by their names in the schema.
    """

    file: str
    bytes: Count
    checksum: str
    columns: tuple[str, ...]

    @property
    def entry(self) -> FileEntry:
        """The file."""
        return FileEntry(self.file, self.bytes, self.checksum)


@resolved
class ShardRecord(msgspec.Struct, frozen=True):
    """One shard in JSON. See `ShardEntry`."""

    file: str
    bytes: Count
    checksum: str
    episodes: Count
    steps: Count
    buffers: dict[str, Count]
    variable: dict[str, VariableBuffers] = {}
    added: tuple[AddedFile, ...] = ()
    names: dict[str, str] | None = None


@dataclass(frozen=True)
class ShardEntry:
    """One shard: a file of whole episodes, and files of columns that were added later.

    Attributes:
        entry: file of the shard.
        episodes: number of episodes.
        steps: number of steps.
        buffers: column -> byte offset of the column's values in its file.
        variable: variable-length column -> its further buffers.
        added: files of further columns of the same steps.
        names: column -> its name in its file, where it differs: the dataset was edited, and its files may have columns
            that the schema does not have. None: the file has exactly the columns of the schema.
    """

    entry: FileEntry
    episodes: int
    steps: int
    buffers: Mapping[str, int]
    variable: Mapping[str, VariableBuffers] = field(default_factory=dict)
    added: tuple[AddedFile, ...] = ()
    names: Mapping[str, str] | None = None

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """All files of the shard: `entry`, then the files of `added`."""
        return (self.entry, *(added.entry for added in self.added))

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)

    def file_of(self, column: str) -> int:
        """Returns the index in `files` of the file that holds a column."""
        return next((index for index, added in enumerate(self.added, 1) if column in added.columns), 0)

    def placed(self, names: Sequence[str]) -> ShardEntry:
        """Returns the shard with other names of its files, in the order of `files`."""
        return replace(
            self,
            entry=replace(self.entry, file=names[0]),
            added=tuple(replace(added, file=name) for added, name in zip(self.added, names[1:], strict=True)),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form of a `ShardRecord`."""
        data = {
            **msgspec.to_builtins(self.entry),
            "episodes": self.episodes,
            "steps": self.steps,
            "buffers": dict(self.buffers),
        }
        if self.variable:
            data["variable"] = {name: msgspec.to_builtins(item) for name, item in self.variable.items()}
        if self.added:
            data["added"] = msgspec.to_builtins(self.added)
        if self.names is not None:
            data["names"] = dict(self.names)
        return data

    @staticmethod
    def from_record(record: ShardRecord) -> ShardEntry:
        """Returns the shard of a record."""
        entry = FileEntry(record.file, record.bytes, record.checksum)
        return ShardEntry(
            entry, record.episodes, record.steps, record.buffers, record.variable, record.added, record.names
        )

    def holds(self, column: ColumnSpec) -> bool:
        """Returns whether a column's buffers are known and end within its file."""
        if column.name not in self.buffers or column.variable_length is not (column.name in self.variable):
            return False
        values, size = self.buffers[column.name], self.files[self.file_of(column.name)].bytes
        if not column.variable_length:
            return values + self.steps * column.row_bytes <= size
        buffers = self.variable[column.name]
        offsets_end = buffers.offsets + (self.steps + 1) * OFFSET_BYTES
        return max(offsets_end, values + buffers.bytes) <= size


@resolved
class _HeaderRecord(msgspec.Struct, frozen=True):
    """Fields of manifest.json that are read before all others."""

    format: str
    version: Count


@resolved
class _ManifestRecord(msgspec.Struct, frozen=True):
    """The other fields of manifest.json. See `Manifest`."""

    checksum: str
    episodes: Count
    steps: Count
    fingerprint: str
    schema: list[ColumnRecord]
    shards: list[ShardRecord]
    tables: dict[str, FileEntry]
    statistics: dict[str, StatisticsRecord]
    provenance: dict[str, Any]
    findings: tuple[dict[str, Any], ...]
    videos: list[VideoRecord] = []
    growth: GrowthRecord | None = None


@dataclass(frozen=True)
class Manifest:
    """Contents of manifest.json.

    Attributes:
        episodes: number of episodes.
        steps: number of steps.
        fingerprint: hash of the schema and of the episodes' content hashes in order (see `fingerprint`).
        schema: all columns.
        shards: shards in order.
        tables: `episodes`; `finals` if the dataset has final observations; `videos` and `video_packets` if it has
            videos; `step_mask` if it was saved with a filter of steps.
        statistics: column -> statistics; variable-length columns have none, and cameras may have none.
        provenance: source, format, reason for that format, options, and the source's own metadata. `tasks` lists, for
            each task of the conversion, its first position in the source, [file, row], and its number of shards.
        findings: problems that conversion found: code, message, count, first place, action taken.
        growth: place among the generations of a dataset that grows; None for other datasets.
    """

    episodes: int
    steps: int
    fingerprint: str
    schema: Schema
    shards: tuple[ShardEntry, ...]
    tables: Mapping[str, FileEntry]
    statistics: Mapping[str, ColumnStatistics]
    provenance: Mapping[str, Any]
    findings: tuple[Mapping[str, Any], ...]
    growth: Growth | None = None

    @property
    def generation(self) -> int:
        """The number of its generation; 0 if the dataset has not grown."""
        return 0 if self.growth is None else self.growth.generation

    @property
    def next_id(self) -> int:
        """The id of the next episode."""
        return self.episodes if self.growth is None else self.growth.next_id

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """All files that the manifest lists: tables, then shards."""
        return (*self.tables.values(), *(file for shard in self.shards for file in shard.files))

    @property
    def _version(self) -> int:
        videos = self.provenance.get("videos")
        facts = videos if isinstance(videos, Mapping) and self.schema.videos else {}
        if facts.get("unindexed"):
            return 6
        if any(camera.depth is not None for camera in self.schema.videos):
            return 5
        if facts.get("unread"):
            return 4
        if any(shard.names is not None or shard.added for shard in self.shards):
            return 3
        return 2 if STEP_MASK in self.tables else 1

    def without_folders(self) -> Manifest:
        """Returns the manifest with the names of local sources in place of their paths, for others to read."""
        names = {source: without_folders(source, is_path=is_path) for source, is_path in _sources(self.provenance)}
        findings = with_short_paths([dict(each) for each in self.findings], names)
        return replace(self, provenance=with_short_paths(dict(self.provenance), names), findings=tuple(findings))

    def to_text(self) -> str:
        """Returns the text of manifest.json."""
        return sign(self._unsigned_text())

    @cached_property
    def checksum(self) -> str:
        """`text_checksum` of the text that was read, or of `to_text` if no text was read."""
        return text_checksum(self._unsigned_text())

    def _unsigned_text(self) -> str:
        document = {
            "format": "gear",
            "version": self._version,
            "checksum": "",
            "episodes": self.episodes,
            "steps": self.steps,
            "fingerprint": self.fingerprint,
            "schema": self.schema.to_json(),
            **({"videos": self.schema.videos_to_json()} if self.schema.videos else {}),
            "shards": [shard.to_json() for shard in self.shards],
            "tables": {name: msgspec.to_builtins(entry) for name, entry in self.tables.items()},
            "statistics": {name: item.to_json() for name, item in self.statistics.items()},
            "provenance": dict(self.provenance),
            "findings": [dict(finding) for finding in self.findings],
            **({} if self.growth is None else {"growth": self.growth.to_json()}),
        }
        return json.dumps(document, indent=1, allow_nan=False) + "\n"

    @staticmethod
    def load(folder: Path, file: str = MANIFEST_NAME) -> Manifest:
        """Reads and checks the manifest of a folder.

        The files that it lists are not checked.

        Args:
            folder: the folder of the dataset.
            file: name of the manifest in it.

        Raises:
            DatasetNotFoundError: the folder is missing or has no manifest.
            VersionError: a newer gear-data wrote the manifest.
            ManifestError: the manifest is malformed, does not match its checksum, contradicts itself, or lists a file
                outside the folder.
        """
        path = folder / file
        try:
            data = read_regular(path, JSON_BYTES)
        except FileNotFoundError as error:
            unfinished = (folder / ".progress").exists()
            raise not_a_dataset(str(folder), exists=folder.exists(), unfinished=unfinished) from error
        except NotADirectoryError as error:
            raise DatasetNotFoundError(
                "is a file, not a dataset folder", file=str(folder), hint=f"name the folder that has {MANIFEST_NAME}"
            ) from error
        except (OSError, MemoryError) as error:
            refuse_exhausted(error, str(path))
            raise ManifestError(f"cannot be read: {error}", file=str(path), hint=_RESTORE) from error
        return Manifest.from_bytes(data, str(path))

    @staticmethod
    def from_bytes(data: bytes, name: str) -> Manifest:
        """Parses and checks the bytes of the manifest file `name`.

        Raises VersionError and ManifestError as `load`.
        """
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise ManifestError(f"cannot be read: {error}", file=name, hint=_RESTORE) from error
        return Manifest.from_text(text, name)

    @staticmethod
    def from_text(text: str, name: str) -> Manifest:
        """Parses and checks the text of the manifest file `name`.

        Raises VersionError and ManifestError as `load`.
        """
        data = parse_json(text, dict[str, Any], error=ManifestError, file=name, hint=_RESTORE)
        header = check_json(data, _HeaderRecord, error=ManifestError, file=name, hint=_RESTORE)
        if header.format != "gear":
            raise ManifestError(f"its format is {header.format!r}, not 'gear'", file=name, hint=_RESTORE)
        if header.version > FORMAT_VERSION:
            raise VersionError(
                f"format version {header.version} is newer than {FORMAT_VERSION}, the newest version known here",
                file=name,
                hint="upgrade gear-data",
            )
        _check_checksum(text, data, name)
        record = check_json(data, _ManifestRecord, error=ManifestError, file=name, hint=_RESTORE)
        try:
            schema = Schema.from_records(record.schema, record.videos)
        except ManifestError as error:
            error.file, error.hint = name, _RESTORE
            raise
        try:
            statistics = {name: ColumnStatistics.from_record(item) for name, item in record.statistics.items()}
        except ValueError as error:  # rows of different lengths
            raise ManifestError(f"malformed statistics: {error}", file=name, hint=_RESTORE) from error
        manifest = Manifest(
            episodes=record.episodes,
            steps=record.steps,
            fingerprint=record.fingerprint,
            schema=schema,
            shards=tuple(map(ShardEntry.from_record, record.shards)),
            tables=record.tables,
            statistics=statistics,
            provenance=record.provenance,
            findings=record.findings,
            growth=None if record.growth is None else Growth.from_record(record.growth),
        )
        manifest._check(name)
        vars(manifest)["checksum"] = record.checksum
        return manifest

    def _check(self, name: str) -> None:
        """Checks that the parts of the manifest agree.

        It must run before any number of the manifest is used as an address.

        Raises:
            ManifestError: two parts disagree, or a file is outside the dataset's folder.
        """
        for entry in self.files:
            check_inside(entry.file, name)
        videos = self.provenance.get("videos", {})
        if not isinstance(videos, dict) or not isinstance(videos.get("bytes", 0), int):
            raise ManifestError("its provenance of videos is malformed", file=name, hint=_RESTORE)
        if "episodes" not in self.tables:
            raise ManifestError("it lists no episode table", file=name, hint=_RESTORE)
        if ("finals" in self.tables) != bool(self.schema.final_columns):
            raise ManifestError(
                "the schema and the list of tables disagree about final observations", file=name, hint=_RESTORE
            )
        for table in TABLE_FILES:
            if (table in self.tables) != bool(self.schema.videos):
                raise ManifestError("the schema and the list of tables disagree about videos", file=name, hint=_RESTORE)
        if len(set(self.schema.names)) != len(self.schema.names):
            raise ManifestError("two columns share one name", file=name, hint=_RESTORE)
        for column in self.schema.fixed_columns:
            statistics = self.statistics.get(column.name)
            if statistics is None or not statistics.has_width(statistics_width(column)):
                raise ManifestError(
                    "its statistics are missing or have the wrong width", file=name, column=column.name, hint=_RESTORE
                )
        for camera in self.schema.videos:
            statistics = self.statistics.get(camera.name)
            if statistics is not None and not statistics.is_sample(camera.shape[2]):
                raise ManifestError("its statistics have the wrong width", file=name, column=camera.name, hint=_RESTORE)
        if sum(shard.steps for shard in self.shards) != self.steps:
            raise ManifestError(f"the shards' steps do not add up to {self.steps}", file=name, hint=_RESTORE)
        if sum(shard.episodes for shard in self.shards) != self.episodes:
            raise ManifestError(f"the shards' episodes do not add up to {self.episodes}", file=name, hint=_RESTORE)
        if self.growth is not None:
            if sum(part.shards for part in self.growth.parts) != len(self.shards):
                raise ManifestError("its parts do not add up to its shards", file=name, hint=_RESTORE)
            if self.growth.next_id < self.episodes:
                raise ManifestError("it has more episodes than ids", file=name, hint=_RESTORE)
        for shard in self.shards:
            if not shard.episodes or not shard.steps:
                raise ManifestError(f"shard {shard.entry.file} has no episodes or no steps", file=name, hint=_RESTORE)
            held = [column for added in shard.added for column in added.columns]
            if len(set(held)) != len(held) or not set(held) <= set(shard.buffers):
                raise ManifestError(
                    f"the files beside shard {shard.entry.file} have the columns {', '.join(held)}",
                    file=name,
                    hint=_RESTORE,
                )
            for column in self.schema:
                if not shard.holds(column):
                    raise ManifestError(
                        f"its buffer offset in shard {shard.entry.file} is missing or past the shard's end",
                        file=name,
                        column=column.name,
                        hint=_RESTORE,
                    )


def _check_checksum(text: str, data: dict[str, Any], name: str) -> None:
    """Checks the checksum of a manifest.

    No later field is looked at before: a changed byte may be valid JSON of another meaning.
    """
    stored = data.get("checksum")
    if not isinstance(stored, str):
        raise ManifestError("it has no checksum of itself", file=name, hint=_RESTORE)
    found = text_checksum(text, stored)
    if found != stored:
        raise ManifestError(
            f"its bytes were changed: their checksum is {found}, it says {stored!r:.80}", file=name, hint=_RESTORE
        )


def files_elsewhere(manifest: Manifest, here: Iterable[int]) -> frozenset[str]:
    """Returns the names of the files of all shards but some, which are given by their numbers."""
    known = set(here)
    return frozenset(
        file.file for index, shard in enumerate(manifest.shards) if index not in known for file in shard.files
    )


def check_inside(name: str, manifest: str) -> None:
    """Checks that a file name stays inside the dataset's folder.

    Raises ManifestError for an absolute name, or one with `..`.
    """
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts or "\\" in name or "\0" in name:
        raise ManifestError(
            f"it lists the file {name!r}, which is outside the dataset's folder",
            file=manifest,
            hint="do not use this dataset: its manifest points to other files of this machine",
        )


def fingerprint(schema: Schema, contents: bytes) -> str:
    """Returns the fingerprint of a dataset: a hash of its schema and contents.

    It is xxh3-128 of the names, dtypes and shapes of source columns and videos, of the meaning of depth, and of the
    episodes' content hashes in order.

    Layout (shards, sizes) and provenance are left out, so equal contents have equal fingerprints.

    Args:
        schema: the schema.
        contents: the content hash of every episode, 16 bytes each.
    """
    digest = xxhash.xxh3_128()
    columns = [[c.name, c.dtype, list(c.shape), c.has_final] for c in schema.source_columns]
    columns += [[c.name, "video", list(c.shape), False if c.depth is None else asdict(c.depth)] for c in schema.videos]
    digest.update(json.dumps(sorted(columns)).encode())
    digest.update(contents)
    return digest.hexdigest()


def _sources(facts: Any, are_paths: bool = False) -> Iterator[tuple[str, bool]]:
    """Yields the paths, URLs and names under `source` in a provenance, at any depth, and whether each is no hub id.

    Of several sources, `source` has all of them in one text, and `parts` or `merged` has each.
    """
    if isinstance(facts, list | tuple):
        for each in facts:
            yield from _sources(each, are_paths)
    elif isinstance(facts, Mapping):
        are_paths = are_paths or _names_paths(facts)
        for name, value in facts.items():
            if name == "source" and isinstance(value, str):
                if not {"parts", "merged"} & facts.keys():
                    yield value, are_paths
            elif name in ("parts", "merged"):
                yield from _sources(value, are_paths)
            else:
                yield from _sources(value)


def _names_paths(facts: Mapping[str, Any]) -> bool:
    """Returns whether the sources of a conversion, a merge or a view are no hub ids.

    Merges and views have paths and URLs of datasets. The stamp of a local file is its modification time in nanoseconds,
    and of a file of the hub its hash.
    """
    if facts.get("format") in ("merged", "view"):
        return True
    files = facts.get("source_files")
    return (
        bool(files)
        and isinstance(files, list)
        and all(
            isinstance(each, list) and each and isinstance(each[-1], str) and each[-1].isdecimal() for each in files
        )
    )


def not_a_dataset(folder: str, *, exists: bool, unfinished: bool) -> DatasetNotFoundError:
    """Returns the error for a folder without a manifest."""
    if Path(f"{folder}.journal").is_dir():
        # No conversion writes into a folder that has files of a first generation.
        command = shlex.join(["gear-data", "convert", f"{folder}.journal", folder])
        make = f"gear_data.Writer({folder!r}).close()" if exists else command
        return DatasetNotFoundError(
            "a Writer records here and has not sealed the dataset, or its process died",
            file=folder,
            hint="wait for its first generation: gear_data.open(..., follow=True); or make the dataset of its finished "
            f"episodes: {make}",
        )
    if not exists:
        if "://" in folder:
            return DatasetNotFoundError("no such dataset", file=folder, hint="check the URL")
        return DatasetNotFoundError("no such file or folder", file=folder, hint=missing_hint(folder))
    if unfinished:
        return DatasetNotFoundError(
            "the conversion into this folder did not finish",
            file=folder,
            hint="run the same convert again with --resume (resume=True)",
        )
    inside = sorted(path.parent.name for path in Path(folder).glob(f"*/{MANIFEST_NAME}"))
    hint = "create one with 'gear-data convert SRC DST'"
    if inside:
        more = f", and {len(inside) - _SHOWN_DATASETS} more" if len(inside) > _SHOWN_DATASETS else ""
        hint = f"open one of the datasets inside: {', '.join(inside[:_SHOWN_DATASETS])}{more}"
    return DatasetNotFoundError(f"no gear dataset here: it has no {MANIFEST_NAME}", file=folder, hint=hint)
