"""The specification of a conversion, in a form that other processes can receive."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from gear_data.errors import InvalidArgumentError
from gear_data.ingest.location import Location, locate
from gear_data.ingest.mapping import parse_mapping
from gear_data.ingest.merging.dataset_source import GEAR, DatasetSource
from gear_data.ingest.pipeline.images import decode_images
from gear_data.ingest.pipeline.prepare import report_names
from gear_data.ingest.pipeline.stack import stack_columns
from gear_data.ingest.several.parts import SourcePart, locate_parts
from gear_data.ingest.several.sequence import SourceSequence
from gear_data.ingest.source import EpisodeSource, SourceOptions, typed_memory_errors
from gear_data.ingest.sources.registry import known_formats, open_source
from gear_data.ingest.videos.arguments import KEEP
from gear_data.ingest.videos.stored_cameras import stored_cameras
from gear_data.ingest.videos.video_columns import add_video_columns
from gear_data.storage.writing.file_store import FileStore


class _SpecRecord(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON form of a specification, as the manifest stores it."""

    split: str | tuple[str, ...] | None
    format: str
    keep_encoded: bool
    strict: bool
    shard_bytes: int
    columns: tuple[str, ...] | None
    rename: dict[str, str] | None
    episode_column: str | None
    step_column: str | None
    end_column: str | None
    max_episode_steps: int | None
    on_bad_episode: Literal["error", "skip"]
    mapping: dict[str, Any] | None = None
    stack: dict[str, tuple[str, ...]] | None = None
    video_columns: dict[str, str] | None = None
    videos: str | None = None
    video_size: tuple[int, int] | None = None


@dataclass(frozen=True)
class ConversionSpec:
    """All that a task must know to write the same shards in any process.

    Attributes:
        source: a path, a URL, a hub id, or an object in memory, which cannot leave its process; or a tuple of paths,
            URLs and hub ids.
        split: the split of the source, as in `convert`; several as a tuple.
        format: the name of the source's format, as in `convert`; `GEAR` for the datasets of a merge.
        options: the options for reading the source.
        keep_encoded: keep images as the source encodes them.
        strict: raise an error for the first finding.
        shard_bytes: the size at which a shard is closed, in bytes of column data.
        parts: the sources and splits to read one after another; empty for one source with one split. See
            `gear_data.ingest.several.plan`.
        videos: what becomes of cameras' video files, as in `convert`.
        video_size: (height, width) of decoded frames, as in `convert`.
    """

    source: Any
    split: str | tuple[str, ...] | None
    format: str
    options: SourceOptions
    keep_encoded: bool
    strict: bool
    shard_bytes: int
    parts: tuple[SourcePart, ...] = ()
    videos: str = KEEP
    video_size: tuple[int, int] | None = None

    @property
    def is_shareable(self) -> bool:
        """Whether other processes can read the source: not if it is in memory."""
        sources = [part.source for part in self.parts] or [self.source]
        return all(isinstance(source, str) and not source.startswith("memory:") for source in sources)

    def locate(self) -> Location:
        """Locates the source, or all parts. Raises the errors of `locate`."""
        if self.parts:
            return locate_parts(self.parts)
        if isinstance(self.split, tuple):
            raise InvalidArgumentError(f"one split is expected here, not {', '.join(self.split)}")
        return locate(self.source, self.split)

    def to_json(self) -> dict[str, Any]:
        """Returns all fields except the source, under the names of `convert`'s arguments."""
        options = self.options
        record = _SpecRecord(
            split=self.split,
            format=self.format,
            keep_encoded=self.keep_encoded,
            strict=self.strict,
            shard_bytes=self.shard_bytes,
            columns=options.columns,
            rename=None if options.rename is None else dict(options.rename),
            episode_column=options.episode_column,
            step_column=options.step_column,
            end_column=options.end_column,
            max_episode_steps=options.max_episode_steps,
            on_bad_episode="skip" if options.skip_bad else "error",
            mapping=None if options.mapping is None else options.mapping.to_json(),
            stack=dict(options.stack) or None,
            video_columns=dict(options.video_columns) or None,
            # As in manifests without this option: such conversions can be resumed.
            videos=None if self.videos == KEEP else self.videos,
            video_size=self.video_size,
        )
        return msgspec.to_builtins(record)  # type: ignore[no-any-return]

    @staticmethod
    def from_json(source: Any, data: Any) -> ConversionSpec:
        """Restores a specification from `to_json`.

        Raises:
            msgspec.ValidationError: the data is not the output of `to_json`.
            MappingError: the same, for the mapping.
        """
        record = msgspec.convert(data, _SpecRecord)
        options = SourceOptions(
            columns=record.columns,
            rename=record.rename,
            skip_bad=record.on_bad_episode == "skip",
            episode_column=record.episode_column,
            step_column=record.step_column,
            end_column=record.end_column,
            max_episode_steps=record.max_episode_steps,
            mapping=None if record.mapping is None else parse_mapping(record.mapping, "manifest"),
            stack=record.stack or {},
            video_columns=record.video_columns or {},
        )
        return ConversionSpec(
            source, record.split, record.format, options, record.keep_encoded, record.strict, record.shard_bytes,
            videos=record.videos or KEEP, video_size=record.video_size,
        )  # fmt: skip

    def open(self, location: Location | None = None, *, threads: int = 1) -> tuple[EpisodeSource, str, str]:
        """Opens the source. Raises the errors of `locate` and `open_source`.

        Args:
            location: the located source; None locates it.
            threads: the number of threads that decode images.

        Returns:
            The source, the name of its format, and the reason why it has that format.
        """
        location = self.locate() if location is None else location
        if self.parts:
            return self._open_parts(location, threads)
        with typed_memory_errors():
            source, name, reason = self._open_format(location)
        if self.strict:
            source.findings.make_strict()
        if not self.keep_encoded:
            source = decode_images(source, skip_bad=self.options.skip_bad, threads=threads)
        source = stack_columns(source, self.options.stack)
        report_names(source, all_columns=self.options.columns is None)
        return source, name, reason

    def with_stored_cameras(self, source: EpisodeSource, store: FileStore, threads: int = 1) -> EpisodeSource:
        """Returns an opened source with its cameras as the dataset stores them.

        See `stored_cameras`.
        """
        return stored_cameras(
            source,
            store,
            mode=self.videos,
            size=self.video_size,
            skip_bad=self.options.skip_bad,
            threads=threads,
        )

    def _open_format(self, location: Location) -> tuple[EpisodeSource, str, str]:
        if self.format == GEAR:
            return DatasetSource(location.name), GEAR, "dataset to merge"
        source, name, reason = open_source(location, self.format, self.options)
        suffixes = known_formats()[name].suffixes
        return add_video_columns(source, location, self.options.video_columns, suffixes), name, reason

    def _open_parts(self, location: Location, threads: int) -> tuple[EpisodeSource, str, str]:
        """Opens all parts. The format is "auto" if they have different ones."""
        opened = [
            replace(self, source=part.source, split=part.split, parts=()).open(place, threads=threads)
            for part, place in zip(self.parts, location.parts, strict=True)
        ]
        source = SourceSequence(self.parts, [each for each, _, _ in opened])
        if self.strict:
            source.findings.make_strict()
        names = {name for _, name, _ in opened}
        reasons = "; ".join(f"{part.name}: {reason}" for part, (_, _, reason) in zip(self.parts, opened, strict=True))
        return source, names.pop() if len(names) == 1 else "auto", reasons
