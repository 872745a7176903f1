"""The protocol every source format implements, and what a format module provides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gear_data.errors import InvalidArgumentError
from gear_data.ingest.findings.log import FindingLog
from gear_data.ingest.location import Location
from gear_data.schema import ColumnSpec
from gear_data.storage.block import EpisodeBlock, Position


@dataclass(frozen=True)
class SourceOptions:
    """What the user asked for, for every format alike.

    Attributes:
        columns: canonical or source names to keep; None keeps all.
        rename: source name -> canonical name.
        skip_bad: leave bad episodes out and report them, instead of raising.
        episode_column: the column that numbers or names the episodes, where a row is a step.
        step_column: the column that numbers the steps within an episode.
        end_column: the column that is true at an episode's last step.
        max_episode_steps: where a source says nothing else, an episode ends after so many steps.
    """

    columns: tuple[str, ...] | None = None
    rename: Mapping[str, str] | None = None
    skip_bad: bool = False
    episode_column: str | None = None
    step_column: str | None = None
    end_column: str | None = None
    max_episode_steps: int | None = None


def check_count(name: str, value: Any, least: int) -> None:
    """Raises InvalidArgumentError where an argument is no int, or less than `least`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgumentError(f"{name} must be an int, not {value!r}")
    if value < least:
        raise InvalidArgumentError(f"{name} must be at least {least}, not {value}")


def source_options(
    columns: Sequence[str] | None,
    rename: Mapping[str, str] | None,
    *,
    skip_bad: bool,
    episode_column: str | None,
    step_column: str | None,
    end_column: str | None,
    max_episode_steps: int | None,
) -> SourceOptions:
    """What a user gave, checked as far as it can be without the source. Raises InvalidArgumentError."""
    if isinstance(columns, str):
        raise InvalidArgumentError("columns is a list of names, not a string")
    if columns is not None and not (isinstance(columns, Iterable) and all(isinstance(name, str) for name in columns)):
        raise InvalidArgumentError(f"columns is a list of names, not {columns!r}")
    if rename is not None and not (
        isinstance(rename, Mapping) and all(isinstance(name, str) for pair in rename.items() for name in pair)
    ):
        raise InvalidArgumentError(f"rename is a mapping of names to names, not {rename!r}")
    if max_episode_steps is not None:
        check_count("max_episode_steps", max_episode_steps, 1)
    return SourceOptions(
        columns=None if columns is None else tuple(columns),
        rename=None if rename is None else dict(rename),
        skip_bad=skip_bad,
        episode_column=episode_column,
        step_column=step_column,
        end_column=end_column,
        max_episode_steps=max_episode_steps,
    )


#: Of files that hold episodes, as a rule. A source that has some of another kind than its format's has more to say.
DATA_SUFFIXES = (".parquet", ".hdf5", ".h5", ".npz", ".npy", ".arrow", ".memmap")

#: Source bytes of a unit, where a source can be taken apart at will: fewer are not worth a task's overhead.
UNIT_BYTES = 32 << 20


@dataclass(frozen=True)
class Unit:
    """A part of a source that can be read on its own: it begins with an episode, whatever came before.

    Attributes:
        position: of its first episode. It ends where the next unit begins.
        bytes: about how many bytes of the source it has.
    """

    position: Position
    bytes: int


class EpisodeSource(Protocol):
    """A source opened: its columns are known, its episodes can be streamed.

    Columns carry canonical names (`gear_data.ingest.pipeline.names`). End flags are given as far
    as the source has them:
    `dones`, `terminated`, `truncated`, as bool; `gear_data.ingest.pipeline.end_flags` completes them.
    """

    findings: FindingLog
    #: What a resumed run must know of the episodes before its start, JSON-able: saved with every block, and put back
    #: before `blocks` is called again.
    resume_state: dict[str, Any]

    @property
    def columns(self) -> tuple[ColumnSpec, ...]:
        """The step columns, end flags included. One of variable length with `has_final` has its final observations in
        `EpisodeBlock.variable_finals`."""

    @property
    def num_rows(self) -> int | None:
        """About how many rows the source has, for the progress bar; None if not known. What `units` came to know on its
        way may make it better."""

    @property
    def rows_are_steps(self) -> bool:
        """Whether a source row is a step (else an episode)."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The source's own facts about itself, JSON-able, kept in the manifest."""

    def units(self) -> Sequence[Unit]:
        """The whole source in order, the first at `BEGIN`. The same source gives the same units, whoever asks. Finding
        them costs little beside reading them all; a source that cannot be taken apart is one unit."""

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        """Episodes in source order, from where a unit or an earlier run's block was (or `BEGIN`), up to where a unit
        begins (or `END`).

        Raises:
            BadEpisodeError: a malformed episode, unless `skip_bad`.
            CorruptSourceError: a file that cannot be read.
        """


@dataclass(frozen=True)
class Format:
    """What a module in `gear_data.ingest.sources.registry` provides as `FORMAT`.

    Attributes:
        name: as given to `--format`.
        probe: says why a location has this format, or None if it does not.
        open: opens a location that has it.
        priority: formats are probed from the highest down.
        uses: those of `SourceOptions` that not every format has a use for, and this one does.
        suffixes: of the data files it reads.
    """

    name: str
    probe: Callable[[Location], str | None]
    open: Callable[[Location, SourceOptions], EpisodeSource]
    priority: int = 0
    uses: frozenset[str] = frozenset()
    suffixes: tuple[str, ...] = ()
