"""The interface of source formats: options, units, episodes, formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from gear_data.errors import GearError, HostMemoryError, InvalidArgumentError
from gear_data.ingest.findings.log import FindingLog
from gear_data.ingest.location import Location
from gear_data.ingest.mapping import SourceMapping, load_mapping
from gear_data.ingest.videos.arguments import check_video_columns
from gear_data.schema import ColumnSpec
from gear_data.stacking import Stack, check_stack
from gear_data.storage.episode_block import EpisodeBlock, Position


@dataclass(frozen=True)
class SourceOptions:
    """The user's options for reading a source, the same for all formats.

    Attributes:
        columns: canonical or source names of the columns to keep. None keeps all.
        rename: source name -> canonical name.
        skip_bad: leave out bad episodes and report them, instead of raising an error.
        episode_column: for tables with one row per step: the column that numbers or names the episodes.
        step_column: the column that numbers the steps of an episode.
        end_column: the column that is true at the last step of an episode.
        max_episode_steps: the length of an episode, if the source does not mark the ends of episodes.
        mapping: where the episodes and columns are, for the format `tree`.
        stack: name of a new column -> names of the columns that it is made of.
        video_columns: name of a camera -> pattern of its files. See `gear_data.ingest.videos.video_columns`.
    """

    columns: tuple[str, ...] | None = None
    rename: Mapping[str, str] | None = None
    skip_bad: bool = False
    episode_column: str | None = None
    step_column: str | None = None
    end_column: str | None = None
    max_episode_steps: int | None = None
    mapping: SourceMapping | None = None
    stack: Stack = field(default_factory=dict)
    video_columns: Mapping[str, str] = field(default_factory=dict)


def check_count(name: str, value: Any, minimum: int) -> None:
    """Raises InvalidArgumentError unless a value is an int of at least `minimum`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgumentError(f"{name} must be an int, not {value!r}")
    if value < minimum:
        raise InvalidArgumentError(f"{name} must be at least {minimum}, not {value}")


def source_options(
    columns: Sequence[str] | None,
    rename: Mapping[str, str] | None,
    *,
    skip_bad: bool,
    episode_column: str | None,
    step_column: str | None,
    end_column: str | None,
    max_episode_steps: int | None,
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None,
    stack: Mapping[str, Sequence[str]] | None,
    video_columns: Mapping[str, str] | None,
) -> SourceOptions:
    """Checks the user's options and returns them. It does not read the source.

    Raises:
        InvalidArgumentError: an option has the wrong type or range.
        MappingError: the mapping cannot be read, or has a wrong key or value.
    """
    if isinstance(columns, str):
        raise InvalidArgumentError(f"columns must be a list of names, not the string {columns!r}")
    if columns is not None and not (isinstance(columns, Iterable) and all(isinstance(name, str) for name in columns)):
        raise InvalidArgumentError(f"columns must be a list of names, not {columns!r}")
    if rename is not None and not (
        isinstance(rename, Mapping) and all(isinstance(name, str) for pair in rename.items() for name in pair)
    ):
        raise InvalidArgumentError(f"rename must be a mapping of names to names, not {rename!r}")
    if max_episode_steps is not None:
        check_count("max_episode_steps", max_episode_steps, 1)
    stacked = check_stack(stack)
    parts = {part for names in stacked.values() for part in names}
    if columns is not None:  # whoever keeps a stack keeps its parts
        columns = [*(name for name in columns if name not in stacked or name in parts), *sorted(parts - {*columns})]
    return SourceOptions(
        columns=None if columns is None else tuple(columns),
        rename=dict(rename) if rename else None,  # an empty mapping is no other option than None
        skip_bad=skip_bad,
        episode_column=episode_column,
        step_column=step_column,
        end_column=end_column,
        max_episode_steps=max_episode_steps,
        mapping=None if mapping is None else load_mapping(mapping),
        stack=stacked,
        video_columns=check_video_columns(video_columns),
    )


#: Suffixes of files that usually hold episodes. A finding reports files of other suffixes than the format's.
DATA_SUFFIXES = (
    ".parquet",
    ".hdf5",
    ".h5",
    ".npz",
    ".npy",
    ".arrow",
    ".arrows",
    ".feather",
    ".ipc",
    ".lance",
    ".memmap",
)

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
        """The step columns, including end flags.

        `has_final` of a column of variable length means that its final observations are in
        `EpisodeBlock.variable_finals`.
        """

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
        priority: formats are probed in descending priority.
        uses: the names of the optional `SourceOptions` that this format uses; "split" if it chooses a split itself.
        suffixes: the suffixes of the data files that it reads.
    """

    name: str
    probe: Callable[[Location], str | None]
    open: Callable[[Location, SourceOptions], EpisodeSource]
    priority: int = 0
    uses: frozenset[str] = frozenset()
    suffixes: tuple[str, ...] = ()


@contextmanager
def typed_memory_errors() -> Iterator[None]:
    """Converts a MemoryError of the block into a typed error.

    Raises:
        HostMemoryError: an array or a file does not fit the memory.
    """
    try:
        yield
    except GearError:
        raise
    except MemoryError as error:
        raise HostMemoryError(
            f"the source needs more memory than this process can have: {error or 'MemoryError'}",
            hint="check the sizes in the source: a damaged file may declare any size; else split its episodes",
        ) from error
