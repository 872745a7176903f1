"""Checks a source without converting it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Never

from gear_data.common.environment import usable_cores
from gear_data.common.keywords import refuse_keywords_of
from gear_data.common.progress import progress_bar
from gear_data.errors import EmptySourceError, InvalidArgumentError
from gear_data.ingest.convert_options import ConvertOptions
from gear_data.ingest.episode_boundaries import EpisodeBoundaries
from gear_data.ingest.findings.dataset_checks import check_dataset
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.location import locate
from gear_data.ingest.pipeline.prepare import prepared_blocks, stored_schema
from gear_data.ingest.several.parts import plain_source
from gear_data.ingest.several.plan import with_parts
from gear_data.ingest.source import MOVED
from gear_data.ingest.sources.tree import reader
from gear_data.ingest.table_options import TableOptions
from gear_data.ingest.videos.storage_options import VideoStorage
from gear_data.storage.content_hash import content_hashes
from gear_data.storage.episode_block import BEGIN, END
from gear_data.words import SourceFormat, VideoMode


@dataclass(frozen=True)
class LintReport:
    """The outcome of `lint`.

    Attributes:
        episodes: the number of episodes that the dataset would have.
        steps: the number of steps that the dataset would have.
        findings: the findings that a conversion would store in the manifest.
        format: the source's format.
        reason: why the source was read in that format.
    """

    episodes: int
    steps: int
    findings: tuple[Finding, ...]
    format: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a JSON-able mapping."""
        return {**asdict(self), "findings": [finding.to_json() for finding in self.findings]}


def suggest_mapping(source: Any, *, follow_links: bool = False) -> str:
    """Returns a first mapping for HDF5, NumPy and Zarr files, as YAML.

    Check it before you give it to `convert` (`mapping=`). Comments name what is not clear, and what is left out.

    Args:
        source: the source, as in `convert`; not several.
        follow_links: as in `convert`.

    Raises:
        InvalidArgumentError: there are several sources.
        UnknownFormatError: the source has no such files, or they hold no array.
    """
    source = plain_source(source)
    if isinstance(source, tuple):
        raise InvalidArgumentError(f"a mapping describes one source, not {len(source)}", hint="give one source")
    return reader.suggest_mapping(locate(source, None, follow_links=follow_links))


def lint(
    source: Any,
    *,
    format: SourceFormat = "auto",
    split: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    stack: Mapping[str, Sequence[str]] | None = None,
    episodes: EpisodeBoundaries = EpisodeBoundaries(),
    videos: VideoMode | VideoStorage = "keep",
    tables: TableOptions = TableOptions(),
    keep_encoded: bool = False,
    follow_links: bool = False,
    progress: bool | None = None,
    **unknown: Never,
) -> LintReport:
    """Reads a source as `convert` does, and reports findings. It writes nothing.

    The arguments are the same as in `convert`.

    Returns:
        The findings. A malformed episode is a finding (`bad-episode`), and is not counted as an episode.

    Raises:
        UnknownArgumentError: there is no argument of a name, or a group has it now; the message names the group.
        GearError: the source cannot be read.
    """
    refuse_keywords_of(lint, unknown, MOVED)
    options = ConvertOptions(
        format=format,
        split=split,
        columns=columns,
        rename=rename,
        mapping=mapping,
        stack=stack,
        episodes=episodes,
        videos=videos,
        tables=tables,
        keep_encoded=keep_encoded,
        follow_links=follow_links,
        on_bad_episode="skip",
    )
    spec = with_parts(options.spec(source))
    location = spec.locate()
    opened, format_name, reason = spec.open(location, threads=usable_cores())
    opened.units()  # refuses files that do not fit together, before reading
    contents: list[bytes] = []
    sources: list[tuple[str, int]] = []
    steps = 0
    opened = spec.with_read_cameras(opened, progress)
    schema = stored_schema(opened)
    with progress_bar(opened.num_rows, "lint", "step" if opened.rows_are_steps else "episode", progress) as bar:
        for block, _ in prepared_blocks(opened, BEGIN, END, strict=False):
            contents += content_hashes(block, schema)
            sources += zip(block.sources, block.rows.tolist(), strict=True)
            steps += int(block.lengths.sum())
            bar.update(block.source_rows)
    if not contents:
        raise EmptySourceError("the source holds no episode", file=location.name)
    check_dataset(opened.findings, opened.metadata, b"".join(contents), steps, sources.__getitem__)
    return LintReport(len(contents), steps, tuple(opened.findings), format_name, reason)
