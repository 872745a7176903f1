"""Every error that gear-data raises on purpose.

Each says what is wrong, where (file, column, row) and what to do. All are `GearError`; those
that are also the fitting builtin (`ValueError`, `FileNotFoundError`, ...) can be caught as such.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable


class GearError(Exception):
    """Base of all gear-data errors.

    Args:
        message: what is wrong.
        file: the file it is in.
        column: the column it is in.
        row: the zero-based row it is in, as rows are counted in that file.
        hint: what to do about it.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        column: str | None = None,
        row: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.column = column
        self.row = row
        self.hint = hint

    def __str__(self) -> str:
        named = f"column '{self.column}'"
        place = [
            text
            for text in (
                self.file,
                None if self.column is None or named in self.message else named,
                None if self.row is None else f"row {self.row}",
            )
            if text is not None
        ]
        text = f"{', '.join(place)}: {self.message}" if place else self.message
        return f"{text}\n  {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        # Exception pickles its positional arguments alone; the place must survive a worker process.
        return (_rebuild, (type(self), self.message, self.file, self.column, self.row, self.hint))


def _rebuild(
    kind: type[GearError],
    message: str,
    file: str | None,
    column: str | None,
    row: int | None,
    hint: str | None,
) -> GearError:
    return kind(message, file=file, column=column, row=row, hint=hint)


class InvalidArgumentError(GearError, ValueError):
    """An argument is out of its range or of the wrong kind."""


class EpisodeIndexError(InvalidArgumentError, IndexError):
    """A dataset or view has no episode of this id or at this position."""


class UnknownNameError(GearError, ValueError):
    """A column, preset, sampler, format or residency that does not exist; the message lists those that do."""


class SourceNotFoundError(GearError, FileNotFoundError):
    """The source of a conversion does not exist."""

    __str__ = GearError.__str__


class UnknownFormatError(GearError, ValueError):
    """The layout of a source could not be recognised."""


class CorruptSourceError(GearError, ValueError):
    """A source file cannot be read: empty, cut short, or not what its name says."""


class UnsupportedColumnError(GearError, ValueError):
    """A source column holds something a shard cannot: objects, pickles, mixed types."""


class BadEpisodeError(GearError, ValueError):
    """One episode of a source is malformed: unequal or ragged columns, nulls, no steps."""


class SourceChangedError(GearError, ValueError):
    """A source no longer holds what a dataset was made of."""


class WorkerError(GearError, RuntimeError):
    """A process that worked for this one died."""


class FindingError(GearError, ValueError):
    """Something was noticed in a source that would be kept in the manifest as a finding, and `strict` was asked for."""


class NonFiniteError(FindingError):
    """A numeric column holds NaN or Inf and `strict` was asked for."""


class EmptySourceError(GearError, ValueError):
    """A source holds no episode, or a filter leaves none."""


class DestinationExistsError(GearError, FileExistsError):
    """The destination already holds something."""

    __str__ = GearError.__str__


class ResumeError(GearError, ValueError):
    """A half-done conversion or a training run cannot be resumed: other source or options, or damaged notes."""


class StorageFullError(GearError, OSError):
    """The disk (or quota) of the destination is full."""

    __str__ = GearError.__str__


class UnwritableError(GearError, OSError):
    """The destination cannot be written: no permission, no such device, a file where a folder should be."""

    __str__ = GearError.__str__


class RemoteError(GearError, OSError):
    """A server cannot be reached, or broke off every time."""

    __str__ = GearError.__str__


class ClusterError(GearError, RuntimeError):
    """Something is wrong between the nodes that hold a dataset; `file` names the node."""


class NodeUnreachableError(ClusterError):
    """A node cannot be reached, died, or did not answer in time."""


class NodeRefusedError(ClusterError):
    """A node does not serve this: no valid token, another dataset or version, or a request that is none."""


class CorruptResponseError(ClusterError):
    """What a node sent is not what its checksum says."""


class MissingShardsError(ClusterError):
    """No node that can be reached holds some of the shards."""


class DatasetNotFoundError(GearError, FileNotFoundError):
    """There is no finished gear dataset at this path."""

    __str__ = GearError.__str__


class ManifestError(GearError, ValueError):
    """A manifest is malformed, or does not fit the files beside it."""


class VersionError(ManifestError):
    """A dataset was written by a newer format version."""


class CorruptShardError(GearError, ValueError):
    """A shard or table is missing, cut short, or differs from its checksum."""


class MissingColumnError(GearError, ValueError):
    """A preset needs a column that the dataset does not have."""


class StateMismatchError(GearError, ValueError):
    """Loader state belongs to another dataset, sampler, seed or batch size."""


class MissingExtraError(GearError, ImportError):
    """A package of an optional extra is not installed."""


class DeviceError(GearError, RuntimeError):
    """A device that was asked for is not there."""


class DeviceMemoryError(GearError, MemoryError):
    """A device has not the memory that was asked for."""


class HostMemoryError(GearError, MemoryError):
    """This machine has not the memory that was asked for."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that does not exist, with the known ones and the nearest of them."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return UnknownNameError(
        f"unknown {kind} '{name}'",
        column=str(name) if kind == "column" else None,
        hint=f"{hint}known: {', '.join(names) or 'none'}",
    )


def is_disk_full(error: OSError) -> bool:
    """Whether an OSError (Arrow's too, which may keep the number in its text alone) means a full disk or quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(error)
