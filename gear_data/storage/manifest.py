"""manifest.json: what a dataset holds and where. Written last; a folder without one is no dataset."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import xxhash

from gear_data.errors import DatasetNotFoundError, GearError, ManifestError, VersionError
from gear_data.schema import ColumnSpec, Schema
from gear_data.storage.statistics import ColumnStatistics, statistics_width
from gear_data.storage.variable import OFFSET_BYTES, VariableBuffers

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True)
class FileEntry:
    """One file of a dataset: path relative to the dataset's folder, size in bytes, `xxh3-128:HEX`."""

    file: str
    bytes: int
    checksum: str

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "bytes": self.bytes, "checksum": self.checksum}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> FileEntry:
        return FileEntry(str(data["file"]), _count(data["bytes"]), str(data["checksum"]))


@dataclass(frozen=True)
class ShardEntry:
    """One shard.

    Attributes:
        entry: its file.
        episodes, steps: how many it holds.
        buffers: column -> byte offset in the file of the column's values.
        variable: column of variable length -> where its offsets are, and how many bytes its values.
    """

    entry: FileEntry
    episodes: int
    steps: int
    buffers: Mapping[str, int]
    variable: Mapping[str, VariableBuffers] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        data = {**self.entry.to_json(), "episodes": self.episodes, "steps": self.steps, "buffers": dict(self.buffers)}
        if self.variable:
            data["variable"] = {name: item.to_json() for name, item in self.variable.items()}
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ShardEntry:
        buffers = {str(name): _count(offset) for name, offset in data["buffers"].items()}
        variable = {
            str(name): VariableBuffers(_count(item["offsets"]), _count(item["bytes"]))
            for name, item in data.get("variable", {}).items()
        }
        return ShardEntry(FileEntry.from_json(data), _count(data["episodes"]), _count(data["steps"]), buffers, variable)

    def holds(self, column: ColumnSpec) -> bool:
        """Whether a column's buffers are known and end within the file."""
        if column.name not in self.buffers or column.variable_length is not (column.name in self.variable):
            return False
        values = self.buffers[column.name]
        if not column.variable_length:
            return values + self.steps * column.row_bytes <= self.entry.bytes
        known = self.variable[column.name]
        offsets_end = known.offsets + (self.steps + 1) * OFFSET_BYTES
        return max(offsets_end, values + known.bytes) <= self.entry.bytes


@dataclass(frozen=True)
class Manifest:
    """The whole of manifest.json.

    Attributes:
        fingerprint: hash of the schema and of the episodes' content hashes in order (`fingerprint`).
        statistics: column -> statistics; columns of variable length have none.
        tables: `episodes`, and `finals` where the dataset has final observations.
        provenance: source, format, why that format, options, the source's own metadata; `tasks`: where in the source
            each task of the conversion began, [file, row], and how many shards it wrote.
        findings: what the conversion noticed: code, message, count, first place, what was done.
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

    @property
    def files(self) -> tuple[FileEntry, ...]:
        return (*self.tables.values(), *(shard.entry for shard in self.shards))

    def to_text(self) -> str:
        document = {
            "format": "gear",
            "version": FORMAT_VERSION,
            "episodes": self.episodes,
            "steps": self.steps,
            "fingerprint": self.fingerprint,
            "schema": self.schema.to_json(),
            "shards": [shard.to_json() for shard in self.shards],
            "tables": {name: entry.to_json() for name, entry in self.tables.items()},
            "statistics": {name: item.to_json() for name, item in self.statistics.items()},
            "provenance": dict(self.provenance),
            "findings": [dict(finding) for finding in self.findings],
        }
        return json.dumps(document, indent=1, allow_nan=False) + "\n"

    @staticmethod
    def load(folder: Path) -> Manifest:
        """Reads and checks a manifest, without looking at the files it lists.

        Raises:
            DatasetNotFoundError: no folder, or no manifest in it.
            VersionError: written by a newer gear-data.
            ManifestError: malformed, or naming a file outside the folder.
        """
        path = folder / MANIFEST_NAME
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            unfinished = (folder / ".progress").exists()
            raise not_a_dataset(str(folder), exists=folder.exists(), unfinished=unfinished) from error
        except NotADirectoryError as error:
            raise DatasetNotFoundError("is a file, not a dataset folder", file=str(folder)) from error
        except (OSError, UnicodeDecodeError) as error:
            raise ManifestError(f"cannot be read: {error}", file=str(path)) from error
        return Manifest.from_text(text, str(path))

    @staticmethod
    def from_text(text: str, name: str) -> Manifest:
        """The manifest of a file `name` with this text. Raises VersionError and ManifestError as `load` does."""
        try:
            data = json.loads(text)
            if data["format"] != "gear":
                raise ManifestError(f"its format is {data['format']!r}, not 'gear'", file=name)
            if _count(data["version"]) > FORMAT_VERSION:
                raise VersionError(
                    f"format version {data['version']} is newer than {FORMAT_VERSION}, the newest known here",
                    file=name,
                    hint="upgrade gear-data",
                )
            manifest = Manifest(
                episodes=_count(data["episodes"]),
                steps=_count(data["steps"]),
                fingerprint=str(data["fingerprint"]),
                schema=Schema.from_json(data["schema"]),
                shards=tuple(ShardEntry.from_json(item) for item in data["shards"]),
                tables={str(name): FileEntry.from_json(item) for name, item in data["tables"].items()},
                statistics={name: ColumnStatistics.from_json(item) for name, item in data["statistics"].items()},
                provenance=dict(data["provenance"]),
                findings=tuple(dict(finding) for finding in data["findings"]),
            )
        except GearError as error:
            error.file = error.file or name
            raise
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ManifestError(f"malformed: {type(error).__name__}: {error}", file=name) from error
        manifest._check(name)
        return manifest

    def _check(self, name: str) -> None:
        """What must hold within the manifest, before any of its numbers is used as an address."""
        for entry in self.files:
            check_inside(entry.file, name)
        if "episodes" not in self.tables:
            raise ManifestError("lists no episode table", file=name)
        if ("finals" in self.tables) != bool(self.schema.final_columns):
            raise ManifestError("the table of final observations and the schema disagree", file=name)
        if len(set(self.schema.names)) != len(self.schema):
            raise ManifestError("two columns have one name", file=name)
        for column in self.schema.fixed_columns:
            known = self.statistics.get(column.name)
            if known is None or not known.has_width(statistics_width(column)):
                raise ManifestError("the statistics are missing or do not fit", file=name, column=column.name)
        if sum(shard.steps for shard in self.shards) != self.steps:
            raise ManifestError("the shards' steps do not add up to the dataset's", file=name)
        if sum(shard.episodes for shard in self.shards) != self.episodes:
            raise ManifestError("the shards' episodes do not add up to the dataset's", file=name)
        for shard in self.shards:
            if not shard.episodes or not shard.steps:
                raise ManifestError(f"shard {shard.entry.file} is said to be empty", file=name)
            for column in self.schema:
                if not shard.holds(column):
                    raise ManifestError(
                        f"the buffer offset for shard {shard.entry.file} is missing or past the shard's end",
                        file=name,
                        column=column.name,
                    )


def _count(value: Any) -> int:
    """A number of things. Raises ValueError for what is none."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is no count")
    return value


def check_inside(name: str, manifest: str) -> None:
    """Raises ManifestError for a path that is absolute or climbs out of the dataset's folder."""
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts or "\\" in name or "\0" in name:
        raise ManifestError(
            f"lists the file {name!r}, which is outside the dataset's folder",
            file=manifest,
            hint="do not use this dataset: its manifest was made to reach other files",
        )


def fingerprint(schema: Schema, contents: list[bytes]) -> str:
    """xxh3-128 over the source columns' names, dtypes and shapes and the episodes' content hashes in order.

    Neither layout (shards, sizes) nor provenance enters it: equal contents have equal fingerprints.
    """
    digest = xxhash.xxh3_128()
    columns = [[c.name, c.dtype, list(c.shape), c.has_final] for c in schema.source_columns]
    digest.update(json.dumps(sorted(columns)).encode())
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def not_a_dataset(folder: str, *, exists: bool, unfinished: bool) -> DatasetNotFoundError:
    """The error for a folder without a manifest."""
    if not exists:
        return DatasetNotFoundError("no such dataset", file=folder)
    if unfinished:
        return DatasetNotFoundError(
            "this conversion did not finish",
            file=folder,
            hint="run the same convert again with --resume (resume=True)",
        )
    return DatasetNotFoundError(
        f"no gear dataset here: it has no {MANIFEST_NAME}",
        file=folder,
        hint="make one with 'gear-data convert SRC DST'",
    )
