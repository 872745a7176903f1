"""ConvertOptions: the options of a conversion as one value."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import msgspec

from gear_data.common.keywords import refuse_keywords, suggest_fields
from gear_data.error_text import shown
from gear_data.errors import InvalidArgumentError
from gear_data.ingest.episode_boundaries import EpisodeBoundaries
from gear_data.ingest.several.parts import check_splits, plain_source
from gear_data.ingest.table_options import TableOptions
from gear_data.ingest.videos.storage_options import KEEP, LINK, VideoStorage, video_storage
from gear_data.words import EngineName, OnBadEpisode, SourceFormat, VideoMode

if TYPE_CHECKING:
    from gear_data.ingest.engine.spec import ConversionSpec

#: Options on which the dataset does not depend.
_OF_A_RUN = ("engine", "jobs", "progress")
#: Options that are groups of values.
_GROUPS: dict[str, type[Any]] = {"episodes": EpisodeBoundaries, "videos": VideoStorage, "tables": TableOptions}


@suggest_fields
@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """The options of a conversion.

    `gear_data.open(source, convert=...)` takes it. Each is the argument of `convert` of the same name.

    Attributes:
        format, split, columns, rename, mapping, stack, episodes, tables: what is read, and how.
        videos: as in `convert`, but `keep` refers to the video files where they are, as `link` does. They are not
            copied into the cache.
        keep_encoded, follow_links, shard_bytes, on_bad_episode, strict: see `convert`.
        engine, jobs, progress: how the conversion runs. The dataset does not depend on them.
    """

    format: SourceFormat = "auto"
    split: str | Sequence[str] | None = None
    columns: Sequence[str] | None = None
    rename: Mapping[str, str] | None = None
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None
    stack: Mapping[str, Sequence[str]] | None = None
    episodes: EpisodeBoundaries = field(default_factory=EpisodeBoundaries)
    videos: VideoMode | VideoStorage = "keep"
    tables: TableOptions = field(default_factory=TableOptions)
    keep_encoded: bool = False
    follow_links: bool = False
    shard_bytes: int = 512 << 20
    on_bad_episode: OnBadEpisode = "error"
    strict: bool = False
    engine: EngineName = "local"
    jobs: int | None = None
    progress: bool | None = None

    @staticmethod
    def parse(data: Any) -> ConvertOptions:
        """Returns the options of a mapping, as a YAML file has them. Groups are mappings, too.

        Raises:
            InvalidArgumentError: it is no mapping.
            UnknownArgumentError: there is no option of a name.
        """
        if not isinstance(data, Mapping):
            raise InvalidArgumentError(
                f"the options of a conversion are {shown(data)}, not a mapping", hint="such as {split: train}"
            )
        known = [each.name for each in fields(ConvertOptions)]
        refuse_keywords("convert", [str(name) for name in data if name not in known], known)
        groups = {name: kind(**data[name]) for name, kind in _GROUPS.items() if isinstance(data.get(name), Mapping)}
        return ConvertOptions(**{**data, **groups})

    def to_json(self) -> dict[str, Any]:
        """Returns the options on which the dataset depends and that are not the defaults. `parse` reads them.

        Raises:
            GearError: a value cannot be used.
        """
        record = {name: value for name, value in _given(self).items() if name not in _OF_A_RUN}
        record["split"] = check_splits(self.split)
        if self.mapping is not None:
            from gear_data.ingest.mapping import load_mapping

            record["mapping"] = load_mapping(self.mapping).to_json()
        record["videos"] = _given(video_storage(self.videos))
        if record["videos"].get("mode") == LINK:
            del record["videos"]["mode"]  # as `keep`
        record |= {name: _given(record[name]) for name in ("episodes", "tables") if name in record}
        return msgspec.to_builtins({name: value for name, value in record.items() if value not in (None, {})})  # type: ignore[no-any-return]

    def with_linked_videos(self) -> ConvertOptions:
        """Returns the options with a reference to video files in place of `keep`."""
        videos = video_storage(self.videos)
        if videos.mode == KEEP:
            videos = dataclasses.replace(videos, mode=LINK)
        return dataclasses.replace(self, videos=videos)

    def spec(self, source: Any) -> ConversionSpec:
        """Returns the conversion of a source with these options.

        Raises:
            GearError: an option cannot be used.
        """
        # Imports the readers of all formats.
        from gear_data.ingest.engine.spec import ConversionSpec
        from gear_data.ingest.mapping import load_mapping
        from gear_data.ingest.source import SourceOptions

        values = {each.name: getattr(self, each.name) for each in fields(SourceOptions)}
        mapping, videos = None if self.mapping is None else load_mapping(self.mapping), video_storage(self.videos)
        options = SourceOptions(**{**values, "mapping": mapping, "videos": videos}).with_stacked_parts()
        split = check_splits(self.split)
        return ConversionSpec(
            plain_source(source), split, self.format, options, self.keep_encoded, self.strict, self.shard_bytes
        )


def _given(group: Any) -> dict[str, Any]:
    """Returns the values of a group that are not the defaults."""
    default = type(group)()
    return {
        each.name: value
        for each in fields(group)
        if (value := getattr(group, each.name)) != getattr(default, each.name)
    }
