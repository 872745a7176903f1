"""The specification of a conversion, in a form that other processes can receive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from gear_data.ingest.location import Location, locate
from gear_data.ingest.pipeline.images import decode_images
from gear_data.ingest.pipeline.prepare import report_names
from gear_data.ingest.source import EpisodeSource, SourceOptions, typed_memory_errors
from gear_data.ingest.sources.registry import open_source


class _SpecRecord(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON form of a specification, as the manifest stores it."""

    split: str | None
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


@dataclass(frozen=True)
class ConversionSpec:
    """All that a task must know to write the same shards in any process.

    Attributes:
        source: A path, a URL, a hub id, or an object in memory. An object in memory cannot leave its process.
        split: The split of the source, as in `convert`.
        format: The name of the source's format, as in `convert`.
        options: The options for reading the source.
        keep_encoded: Keep images as the source encodes them.
        strict: Raise an error for the first finding.
        shard_bytes: The size at which a shard is closed, in bytes of column data.
    """

    source: Any
    split: str | None
    format: str
    options: SourceOptions
    keep_encoded: bool
    strict: bool
    shard_bytes: int

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
        )
        return msgspec.to_builtins(record)  # type: ignore[no-any-return]

    @staticmethod
    def from_json(source: Any, data: Any) -> ConversionSpec:
        """Restores a specification from `to_json`.

        Raises:
            msgspec.ValidationError: The data is not the output of `to_json`.
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
        )
        return ConversionSpec(
            source, record.split, record.format, options, record.keep_encoded, record.strict, record.shard_bytes
        )

    def open(self, location: Location | None = None, *, threads: int = 1) -> tuple[EpisodeSource, str, str]:
        """Opens the source. Raises the errors of `locate` and `open_source`.

        Args:
            location: The located source; None locates it.
            threads: The number of threads that decode images.

        Returns:
            The source, the name of its format, and the reason why it has that format.
        """
        location = locate(self.source, self.split) if location is None else location
        with typed_memory_errors():
            source, name, reason = open_source(location, self.format, self.options)
        if self.strict:
            source.findings.make_strict()
        if not self.keep_encoded:
            source = decode_images(source, skip_bad=self.options.skip_bad, threads=threads)
        report_names(source)
        return source, name, reason
