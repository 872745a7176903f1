"""The specification of a conversion, in a form that other processes can receive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gear_data.ingest.location import Location, locate
from gear_data.ingest.pipeline.images import decode_images
from gear_data.ingest.pipeline.prepare import report_replaced_columns
from gear_data.ingest.source import EpisodeSource, SourceOptions
from gear_data.ingest.sources.registry import open_source


@dataclass(frozen=True)
class ConversionSpec:
    """All that a task must know to write the same shards in any process.

    Attributes:
        source: A path, a URL, a hub id, or an object in memory. An object in memory cannot leave its process.
        split: The split of the source, as in `convert`.
        format: The name of the source's format, as in `convert`.
        options: The options for reading the source.
        keep_encoded: Keep images as the source encodes them.
        strict: Raise an error for every finding.
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
        options = asdict(self.options)
        on_bad_episode = "skip" if options.pop("skip_bad") else "error"
        fields = {name: getattr(self, name) for name in ("split", "format", "keep_encoded", "strict", "shard_bytes")}
        return {**fields, **options, "on_bad_episode": on_bad_episode}

    @staticmethod
    def from_json(source: Any, data: Mapping[str, Any]) -> ConversionSpec:
        """Restores a specification from `to_json`.

        Raises:
            KeyError, TypeError: The data is not the output of `to_json`.
        """
        options = dict(data)
        fields = {name: options.pop(name) for name in ("split", "format", "keep_encoded", "strict", "shard_bytes")}
        skip_bad = options.pop("on_bad_episode") == "skip"
        columns = options.pop("columns")
        columns = None if columns is None else tuple(columns)
        source_options = SourceOptions(columns=columns, skip_bad=skip_bad, **options)
        return ConversionSpec(source=source, options=source_options, **fields)

    def open(self, location: Location | None = None, *, threads: int = 1) -> tuple[EpisodeSource, str, str]:
        """Opens the source. Raises the errors of `locate` and `open_source`.

        Args:
            location: The located source; None locates it.
            threads: The number of threads that decode images.

        Returns:
            The source, the name of its format, and the reason why it has that format.
        """
        location = locate(self.source, self.split) if location is None else location
        source, name, reason = open_source(location, self.format, self.options)
        if self.strict:
            source.findings.make_strict()
        if not self.keep_encoded:
            source = decode_images(source, skip_bad=self.options.skip_bad, threads=threads)
        report_replaced_columns(source)
        return source, name, reason
