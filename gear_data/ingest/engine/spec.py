"""What to convert and how, in a form that another process can be handed."""

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
    """Everything a task must know to make the same shards wherever it runs.

    Attributes:
        source: a path, a URL, a hub id, or an object in memory, which cannot leave its process.
        split, format: as in `convert`.
        options: of the source.
        keep_encoded: leave images as they are in the source.
        strict: what is noticed is an error.
        shard_bytes: size at which a shard is closed.
    """

    source: Any
    split: str | None
    format: str
    options: SourceOptions
    keep_encoded: bool
    strict: bool
    shard_bytes: int

    def to_json(self) -> dict[str, Any]:
        """All but the source, by the names that `convert` gives them."""
        options = asdict(self.options)
        on_bad_episode = "skip" if options.pop("skip_bad") else "error"
        own = {name: getattr(self, name) for name in ("split", "format", "keep_encoded", "strict", "shard_bytes")}
        return {**own, **options, "on_bad_episode": on_bad_episode}

    @staticmethod
    def from_json(source: Any, data: Mapping[str, Any]) -> ConversionSpec:
        """Raises KeyError and TypeError for what `to_json` did not make."""
        options = dict(data)
        own = {name: options.pop(name) for name in ("split", "format", "keep_encoded", "strict", "shard_bytes")}
        skip_bad = options.pop("on_bad_episode") == "skip"
        columns = options.pop("columns")
        columns = None if columns is None else tuple(columns)
        return ConversionSpec(
            source=source, options=SourceOptions(columns=columns, skip_bad=skip_bad, **options), **own
        )

    def open(self, location: Location | None = None, *, threads: int = 1) -> tuple[EpisodeSource, str, str]:
        """The source, its format, and why it is that one. `threads` decode images. Raises as `locate` and `open_source`
        do."""
        location = locate(self.source, self.split) if location is None else location
        source, name, reason = open_source(location, self.format, self.options)
        if self.strict:
            source.findings.make_strict()
        if not self.keep_encoded:
            source = decode_images(source, skip_bad=self.options.skip_bad, threads=threads)
        report_replaced_columns(source)
        return source, name, reason
