"""The specification of a conversion, in a form that other processes can receive."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec

from gear_data.common.environment import usable_cores
from gear_data.common.keywords import check_range
from gear_data.common.private_folder import scratch_folder
from gear_data.common.typed_json import resolved
from gear_data.errors import InvalidArgumentError, UnknownNameError
from gear_data.ingest.episode_boundaries import EpisodeBoundaries
from gear_data.ingest.ideas.next_observations import take_next_observations
from gear_data.ingest.ideas.padded_images import unpad_images
from gear_data.ingest.ideas.reset_rows import refuse_unclear_last_rows, shift_reset_rows
from gear_data.ingest.ideas.reset_steps import leave_out_reset_steps
from gear_data.ingest.location import Location, locate
from gear_data.ingest.mapping import parse_mapping
from gear_data.ingest.merging.dataset_source import GEAR, DatasetSource
from gear_data.ingest.pipeline.columns import without_column
from gear_data.ingest.pipeline.images import decode_images
from gear_data.ingest.pipeline.names import is_next
from gear_data.ingest.pipeline.prepare import report_names
from gear_data.ingest.pipeline.stack import stack_columns
from gear_data.ingest.several.parts import SourcePart, locate_parts
from gear_data.ingest.several.sequence import SourceSequence
from gear_data.ingest.source import EpisodeSource, SourceOptions, source_videos, typed_memory_errors
from gear_data.ingest.sources.registry import known_formats, open_source
from gear_data.ingest.table_options import TableOptions
from gear_data.ingest.videos.decoded_videos import stored_cameras
from gear_data.ingest.videos.staged_index import stage_videos
from gear_data.ingest.videos.storage_options import LINK, VideoStorage
from gear_data.ingest.videos.video_columns import add_video_columns
from gear_data.storage.writing.file_store import FileStore, LocalFileStore

MIN_SHARD_BYTES = 1 << 10
#: The default size of a shard.
SHARD_BYTES = 512 << 20

#: The fields of a specification that a manifest records as they are.
_PLAIN = ("split", "format", "keep_encoded", "strict", "shard_bytes")
#: Formats whose columns have no second meaning, as those of a mapping.
_OWN = (GEAR, "journal")
#: Argument -> the group of options that it takes.
_GROUPS: dict[str, type[Any]] = {"episodes": EpisodeBoundaries, "videos": VideoStorage, "tables": TableOptions}


@resolved
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

    Raises:
        InvalidArgumentError: `shard_bytes` is no int, or too small.
    """

    source: Any
    split: str | tuple[str, ...] | None
    format: str
    options: SourceOptions
    keep_encoded: bool
    strict: bool = False
    shard_bytes: int = SHARD_BYTES
    parts: tuple[SourcePart, ...] = ()

    def __post_init__(self) -> None:
        check_range("shard_bytes", self.shard_bytes, MIN_SHARD_BYTES)

    @property
    def is_shareable(self) -> bool:
        """Whether other processes can read the source: not if it is in memory."""
        sources = [part.source for part in self.parts] or [self.source]
        return all(isinstance(source, str) and not source.startswith("memory:") for source in sources)

    def locate(self) -> Location:
        """Locates the source, or all parts. Raises the errors of `locate`."""
        if self.parts:
            return locate_parts(self.parts, self.options.follow_links)
        if isinstance(self.split, tuple):
            raise InvalidArgumentError(f"one split is expected here, not {', '.join(self.split)}")
        return locate(self.source, self.split, follow_links=self.options.follow_links)

    def to_json(self) -> dict[str, Any]:
        """Returns all fields except the source and the parts, as the manifest records them.

        The values of groups are not nested. One that has its default is null, as in manifests that are older than the
        value. So their conversions can be resumed.
        """
        record = {name: getattr(self, name) for name in _PLAIN}
        for option in fields(self.options):
            value = getattr(self.options, option.name)
            record |= _group_record(value) if option.name in _GROUPS else {option.name: value}
        if not self.options.follow_links:
            del record["follow_links"]  # as in manifests that are older than the option
        record["mapping"] = None if self.options.mapping is None else self.options.mapping.to_json()
        return msgspec.to_builtins(record)  # type: ignore[no-any-return]

    @staticmethod
    def from_json(source: Any, data: Any) -> ConversionSpec:
        """Restores a specification from `to_json`.

        Raises:
            msgspec.ValidationError: the data is not the output of `to_json`.
            MappingError: the same, for the mapping.
        """
        record = msgspec.convert(data, dict[str, Any])
        options: dict[str, Any] = {name: _group_values(record, group) for name, group in _GROUPS.items()}
        for option in fields(SourceOptions):
            if option.name not in _GROUPS:
                options[option.name] = record.pop(option.name, option.default)
        mapping = options.pop("mapping")
        if unknown := record.keys() - {*_PLAIN}:
            raise msgspec.ValidationError(f"unknown options: {', '.join(sorted(unknown))}")
        spec = msgspec.convert({**record, "source": None, "options": options}, ConversionSpec)
        if mapping is not None:
            spec = replace(spec, options=replace(spec.options, mapping=parse_mapping(mapping, "manifest")))
        return replace(spec, source=source)

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
        stack = self.options.stack or {}
        # Without a number of episodes, they may be an iterator.
        once = location.episodes is not None and source.num_rows is None
        has_meanings = name not in _OWN and self.options.mapping is None
        is_late = has_meanings and any(map(is_next, stack))  # stacks give the final observations
        if has_meanings:
            source = unpad_images(source, once=once)
            source = shift_reset_rows(source, self.options, once=once)
            has_dtypes = "dtype" in known_formats()[name].uses
            source = take_next_observations(source, self.options, location.name, has_dtypes=has_dtypes)
        if name not in _OWN and not known_formats()[name].knows_last_rows:
            refuse_unclear_last_rows(source, location.name)
        if not is_late:
            source = self._without_reset_steps(source, name)
        if not self.keep_encoded:
            source = decode_images(source, skip_bad=self.options.skip_bad, threads=threads, once=once)
        source = stack_columns(source, stack)
        if is_late:
            source = take_next_observations(source, self.options, location.name)
            source = self._without_reset_steps(source, name)
        report_names(source, all_columns=self.options.columns is None)
        return source, name, reason

    def open_part(
        self, location: Location | None = None, *, threads: int = 1
    ) -> tuple[tuple[EpisodeSource, str, str], dict[str, UnknownNameError]]:
        """Opens one of several sources, without the columns that it lacks. Raises the errors of `open`.

        Returns:
            As `open`, and column that options name and the source lacks -> its error.
        """
        spec, lacked = self, dict[str, UnknownNameError]()
        while True:
            try:
                return spec.open(location, threads=threads), lacked
            except UnknownNameError as error:
                options = None if error.column is None else without_column(spec.options, error.column)
                if options is None:
                    raise
                lacked[str(error.column)], spec = error, replace(spec, options=options)

    def _without_reset_steps(self, source: EpisodeSource, format: str) -> EpisodeSource:
        if format in _OWN:
            return source
        # Without a number of rows, the source may be an iterator, which can be read only once.
        flat = known_formats()[format].in_time_order and (source.rows_are_steps or source.num_rows is not None)
        return leave_out_reset_steps(source, self.options, flat=flat)

    def with_stored_cameras(self, source: EpisodeSource, store: FileStore, threads: int = 1) -> EpisodeSource:
        """Returns an opened source with its cameras as the dataset stores them.

        See `stored_cameras`.
        """
        return stored_cameras(source, store, self.options.videos, skip_bad=self.options.skip_bad, threads=threads)

    def with_read_cameras(self, source: EpisodeSource, progress: bool | None) -> EpisodeSource:
        """Returns an opened source with its cameras as `with_stored_cameras`, without a dataset that stores them.

        Raises the errors of `stage_videos`.
        """
        if not (videos := source_videos(source)).columns:
            return source
        with scratch_folder() as scratch:
            # The index is of no use later. `LINK` copies no video.
            store, jobs = LocalFileStore(scratch), usable_cores()
            stage_videos(videos, store, LINK, source.findings, jobs=jobs, progress=progress)
            return self.with_stored_cameras(source, store, threads=jobs)

    def _open_format(self, location: Location) -> tuple[EpisodeSource, str, str]:
        if self.format == GEAR:
            return DatasetSource(location.name), GEAR, "dataset to merge"
        source, name, reason = open_source(location, self.format, self.options)
        suffixes = known_formats()[name].suffixes
        return add_video_columns(source, location, self.options.videos.cameras, suffixes), name, reason

    def _open_parts(self, location: Location, threads: int) -> tuple[EpisodeSource, str, str]:
        """Opens all parts. The format is "auto" if they have different ones."""
        opened, lacked = [], []
        for part, place in zip(self.parts, location.parts, strict=True):
            one = replace(self, source=part.source, split=part.split, parts=())
            found, errors = one.open_part(place, threads=threads)
            opened.append(found)
            lacked.append(errors)
        for name in set[str]().union(*lacked).intersection(*lacked):
            raise UnknownNameError(
                f"no source has a column '{name}'",
                column=name,
                hint=f"in {lacked[0][name].file}: {lacked[0][name].hint}",
            )
        source = SourceSequence(self.parts, [each for each, _, _ in opened])
        if self.strict:
            source.findings.make_strict()
        names = {name for _, name, _ in opened}
        reasons = "; ".join(f"{part.name}: {reason}" for part, (_, _, reason) in zip(self.parts, opened, strict=True))
        return source, names.pop() if len(names) == 1 else "auto", reasons


def _group_record(group: Any) -> dict[str, Any]:
    """Returns the values of a group under their names in a manifest; null, or nothing, for a default."""
    default = type(group)()
    record = {}
    for each in fields(group):
        value = getattr(group, each.name)
        is_default = value == getattr(default, each.name)
        if not (is_default and each.metadata.get("only_if_given")):
            record[each.metadata.get("recorded", each.name)] = None if is_default else value
    return record


def _group_values(record: dict[str, Any], group: type[Any]) -> dict[str, Any]:
    """Takes the values of a group out of a record. Values that are missing or null are left out."""
    taken = {each.name: record.pop(each.metadata.get("recorded", each.name), None) for each in fields(group)}
    return {name: value for name, value in taken.items() if value is not None}
