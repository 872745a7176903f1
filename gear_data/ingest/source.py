"""The interface of source formats: options, units, episodes, formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, get_args

from gear_data.common.keywords import check_group
from gear_data.errors import HostMemoryError, InvalidArgumentError, errors_as
from gear_data.ingest.episode_boundaries import EpisodeBoundaries
from gear_data.ingest.findings.log import FindingLog
from gear_data.ingest.findings.video_files import DeclaredVideo
from gear_data.ingest.layout import Layout
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.table_options import TableOptions
from gear_data.ingest.videos.storage_options import VideoStorage
from gear_data.schema import ColumnSpec
from gear_data.stacking import Stack, check_stack
from gear_data.storage.episode_block import EpisodeBlock, Position
from gear_data.words import OnBadEpisode


@dataclass(frozen=True)
class SourceOptions:
    """The user's options for reading a source, the same for all formats.

    Attributes:
        columns: canonical or source names of the columns to keep. None keeps all.
        rename: source name -> canonical name. None renames nothing.
        episodes: where episodes begin and end, if the source does not say it.
        on_bad_episode: raise an error for a malformed episode, or leave it out and report it.
        mapping: where the episodes and columns are, for the format `tree`.
        stack: name of a new column -> names of the columns that it is made of. None stacks nothing.
        videos: the video files of cameras, and what becomes of them.
        tables: how the values of tables are read.
        follow_links: whether symbolic links may lead out of the source's folder.

    Raises:
        InvalidArgumentError: an option has the wrong type or range.
    """

    columns: Sequence[str] | None = None
    rename: Mapping[str, str] | None = None
    episodes: EpisodeBoundaries = field(default_factory=EpisodeBoundaries)
    on_bad_episode: OnBadEpisode = "error"
    mapping: Layout | None = None
    stack: Stack | None = None
    videos: VideoStorage = field(default_factory=VideoStorage)
    tables: TableOptions = field(default_factory=TableOptions)
    follow_links: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.columns, str):
            raise InvalidArgumentError(f"columns must be a list of names, not the string {self.columns!r}")
        if self.columns is not None:
            if not isinstance(self.columns, Iterable):
                raise InvalidArgumentError(f"columns must be a list of names, not {self.columns!r}")
            object.__setattr__(self, "columns", tuple(self.columns))
            if not all(isinstance(name, str) for name in self.columns):
                raise InvalidArgumentError(f"columns must be a list of names, not {self.columns!r}")
        if self.rename is not None:
            if not isinstance(self.rename, Mapping) or not all(
                isinstance(name, str) for pair in self.rename.items() for name in pair
            ):
                raise InvalidArgumentError(f"rename must be a mapping of names to names, not {self.rename!r}")
            object.__setattr__(self, "rename", dict(self.rename) or None)  # an empty mapping is no other option
        if self.on_bad_episode not in get_args(OnBadEpisode):
            raise InvalidArgumentError(f"on_bad_episode must be 'error' or 'skip', not {self.on_bad_episode!r}")
        check_group("episodes", self.episodes, EpisodeBoundaries)
        check_group("tables", self.tables, TableOptions)
        object.__setattr__(self, "stack", check_stack(self.stack) or None)

    @property
    def skip_bad(self) -> bool:
        """Whether bad episodes are left out and reported, instead of raising an error."""
        return self.on_bad_episode == "skip"

    def names_column(self, spec: ColumnSpec) -> bool:
        """Returns whether `columns` names a column, by its canonical name or its source's."""
        return self.columns is not None and not {spec.name, spec.source}.isdisjoint(self.columns)

    def with_stacked_parts(self) -> SourceOptions:
        """Returns the options with the parts of each stack among the columns to keep, in place of the stack."""
        if self.columns is None or self.stack is None:
            return self
        stack = self.stack
        parts = {part for names in stack.values() for part in names}
        kept = [name for name in self.columns if name not in stack or name in parts]
        return replace(self, columns=(*kept, *sorted(parts - {*self.columns})))


#: Name that was an argument of `convert` and `lint`, or may be taken for one -> what to give.
MOVED = {
    **{
        each.name: f"{group}=gear_data.{kind.__name__}({each.name}=...)"
        for group, kind in (("episodes", EpisodeBoundaries), ("videos", VideoStorage), ("tables", TableOptions))
        for each in fields(kind)
    },
    "video_columns": "videos=gear_data.VideoStorage(cameras=...)",
    "video_size": "videos=gear_data.VideoStorage(mode=..., size=...)",
}

#: Suffixes of files that usually hold episodes. A finding reports files of other suffixes than the format's.
DATA_SUFFIXES = (
    ".parquet", ".hdf5", ".h5", ".npz", ".npy", ".arrow", ".arrows", ".feather", ".ipc", ".lance", ".memmap",
)  # fmt: skip

#: Source bytes of a unit, if a source can be cut anywhere. Smaller units are not worth the overhead of a task.
UNIT_BYTES = 32 << 20


@dataclass(frozen=True)
class Unit:
    """A part of a source that can be read independently. It begins with an episode.

    Attributes:
        position: the position of its first episode. The unit ends where the next unit begins.
        bytes: its approximate size in the source, in bytes.
    """

    position: Position
    bytes: int


def files_between(start: Position, stop: Position, count: int) -> Iterator[tuple[int, int, int | None]]:
    """Yields the files from `start` up to `stop`, of `count` files.

    Yields number, first row, and the row after the last one; None for all rows.
    """
    for number in range(start.file, count):
        first = start.row if number == start.file else 0
        if (number, first) >= stop:
            return
        yield number, first, stop.row if number == stop.file else None


class EpisodeSource(Protocol):
    """An opened source: its columns are known, and its episodes can be streamed.

    Columns have canonical names (`gear_data.ingest.pipeline.names`). The source yields the end flags that it has:
    `dones`, `terminated`, `truncated`. `gear_data.ingest.pipeline.end_flags` completes them.
    """

    findings: FindingLog
    #: Facts about the episodes read so far, which a resumed run needs. They are JSON-able, saved with every block, and
    #: restored before a resumed run calls `blocks`.
    resume_state: dict[str, Any]

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """The step columns, including end flags."""

    @property
    def num_rows(self) -> int | None:
        """The approximate number of rows, for the progress bar; None if unknown.

        `units` may make it more precise.
        """

    @property
    def rows_are_steps(self) -> bool:
        """Whether a source row is a step. Otherwise it is an episode."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The source's own metadata, JSON-able. The manifest stores it."""

    def units(self) -> Sequence[Unit]:
        """Returns the units of the source in order. The first begins at `BEGIN`.

        The same source has the same units in every process. Finding them is cheap compared with reading them. A source
        that cannot be cut is one unit.
        """

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        """Yields blocks of episodes in source order.

        Args:
            start: the position of a unit, or of a block of an earlier run, or `BEGIN`.
            stop: the position of a unit, or `END`.

        Raises:
            BadEpisodeError: an episode is malformed, and `skip_bad` is not set.
            CorruptSourceError: a file cannot be read.
        """


@dataclass(frozen=True)
class Format:
    """A source format.

    Each module of `gear_data.ingest.sources` defines one as `FORMAT`.

    Attributes:
        name: the name for `--format`.
        probe: returns the reason why a location has this format, or None if it does not.
        open: opens a location of this format.
        uses: of `mapping` and the values of `EpisodeBoundaries` and `TableOptions`, the names that this format uses;
            "split" if it chooses a split itself.
        suffixes: the suffixes of the data files that it reads.
        beside: a pattern of the names of further files that it reads, or that only describe the format. A finding
            reports other text files.
        in_time_order: whether the steps of a source may follow each other in time, so that a step which only resets an
            environment shows (`gear_data.ingest.ideas.reset_steps`).
        knows_last_rows: whether the format itself says if the last row of an episode is a step.
    """

    name: str
    probe: Callable[[Location], str | None]
    open: Callable[[Location, SourceOptions], EpisodeSource]
    uses: frozenset[str] = frozenset()
    suffixes: tuple[str, ...] = ()
    beside: str = r"(?!)"
    in_time_order: bool = False
    knows_last_rows: bool = False


def typed_memory_errors() -> AbstractContextManager[None]:
    """Converts a MemoryError of the block into a typed error.

    Raises:
        HostMemoryError: an array or a file does not fit the memory.
    """
    return errors_as(
        MemoryError,
        lambda error: HostMemoryError(
            f"the source needs more memory than this process can have: {error or 'MemoryError'}",
            hint="check the sizes in the source: a damaged file may declare any size; else split its episodes",
        ),
    )


@dataclass(frozen=True)
class SourceVideos:
    """The cameras of a source, in an attribute `videos` of the source.

    The blocks of such a source have `EpisodeBlock.video_times` for every camera.

    Attributes:
        columns: a `gear_data.schema.video_column` for each camera, as the source declares its frames. The index of the
            files corrects them.
        files: the files of all cameras. Their order is the same in every process.
        declared: for each file, what the source says about it (`gear_data.ingest.findings.video_files.video_findings`).
    """

    columns: tuple[ColumnSpec, ...] = ()
    files: tuple[SourceFile, ...] = ()
    declared: tuple[DeclaredVideo, ...] = ()


#: The videos of a source without cameras.
NO_VIDEOS = SourceVideos()


def source_videos(source: EpisodeSource) -> SourceVideos:
    """Returns the cameras of a source; `NO_VIDEOS` if it has no `videos`."""
    return getattr(source, "videos", NO_VIDEOS)
