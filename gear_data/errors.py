"""Errors that gear-data raises on purpose.

Each error names the problem, its place (file, column, row) and the remedy. All are subclasses of `GearError`. Many are
also a builtin error (`ValueError`, `FileNotFoundError`, ...), and `except` clauses for that builtin catch them.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from gear_data.error_text import shorten_values


class GearError(Exception):
    """Base class of all gear-data errors.

    Args:
        message: the problem. Values in it, in quotes or brackets, are shortened to 200 characters.
        file: file or URL of the problem.
        column: column of the problem.
        row: zero-based row of `file`.
        hint: the remedy.
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
        message = shorten_values(message)
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
                None if self.column is None or shorten_values(named) in self.message else shorten_values(named),
                None if self.row is None else f"row {self.row}",
            )
            if text is not None
        ]
        text = f"{', '.join(place)}: {self.message}" if place else self.message
        return f"{text}\n  {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        # Exception pickles only its positional arguments. Errors of a worker process must keep their place.
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
    """Raised when an argument has the wrong type or is out of range.

    Pass a value that the message allows.
    """


class SplitNeededError(InvalidArgumentError):
    """Raised when a source has several splits, and none is chosen.

    Choose one with `--split`, or several, or `--split all`.

    Attributes:
        splits: the names of the splits.
    """

    splits: tuple[str, ...] = ()


class EpisodeRefusedError(InvalidArgumentError):
    """Raised when the facts of an episode do not fit to earlier episodes.

    Servers also raise it for a final observation that the dataset cannot have. Give facts other names, or values of one
    type; leave `final` out.

    Attributes:
        sequence: number of the episode among the ended ones of a Writer, from 0, if a server refused it after its end:
            the Writer drops it. None: it stays open.
    """

    sequence: int | None = None


class EpisodeIndexError(InvalidArgumentError, IndexError):
    """Raised when a dataset or view has no episode of this id or position.

    `ds.episodes` lists the ids.
    """


class UnknownNameError(GearError, ValueError):
    """Raised when a column, preset, sampler, format or residency does not exist.

    Pick one that the message lists.
    """


class UnknownArgumentError(InvalidArgumentError, TypeError):
    """Raised when a function has no argument of a name.

    Give the argument that the message names.
    """


class SourceNotFoundError(GearError, FileNotFoundError):
    """Raised when the source of a conversion does not exist. Check the path or URL."""

    __str__ = GearError.__str__


class UnknownFormatError(GearError, ValueError):
    """Raised when no reader recognises the layout of a source.

    Name the format with `--format`.
    """


class CorruptSourceError(GearError, ValueError):
    """Raised when a source file is empty, truncated or not of its type.

    Download or write the file again.
    """


class UnsupportedColumnError(GearError, ValueError):
    """Raised when a format cannot hold a column's values.

    Examples are Python objects and mixed types. Convert, rename or leave out the column.
    """


class BadEpisodeError(GearError, ValueError):
    """Raised when an episode has unequal or ragged columns, nulls or no steps.

    Fix the episode, or skip it with `on_bad_episode="skip"`.
    """


class SourceChangedError(GearError, ValueError):
    """Raised when a source no longer holds the data of a dataset.

    Restore the source, or convert again.
    """


class WorkerError(GearError, RuntimeError):
    """Raised when a worker process died, for example of too little memory.

    Run again with fewer jobs.
    """


class MappingError(GearError, ValueError):
    """Raised when a mapping (`--map`) has a wrong key or value.

    Correct the key that the message names.
    """


class FindingError(GearError, ValueError):
    """Raised by `strict` for a finding that the manifest would record.

    Fix the source, or turn `strict` off.
    """


class NonFiniteError(FindingError):
    """Raised for a numeric column with NaN or Inf: by `strict`, and where a loader normalises the column.

    Fix the source, or turn `strict` off; or leave the episode out.
    """


class EmptySourceError(GearError, ValueError):
    """Raised when a source has no episode, or a filter selects none.

    Check the source, or relax the filter.
    """


class DestinationExistsError(GearError, FileExistsError):
    """Raised when the destination is not empty or is in use.

    Choose another destination, or remove it.
    """

    __str__ = GearError.__str__


class ResumeError(GearError, ValueError):
    """Raised when a conversion or a training run cannot resume.

    Use the same source and options, or start over if its files are damaged.
    """


class RateLimitError(GearError, TimeoutError):
    """Raised when a Writer or training waited too long for the other side.

    Start the other side, or raise the limit's `timeout` or `error`.
    """

    __str__ = GearError.__str__


class StorageFullError(GearError, OSError):
    """Raised when the disk or quota of the destination is full.

    Free some space, or choose another disk.
    """

    __str__ = GearError.__str__


class UnwritableError(GearError, OSError):
    """Raised when the system refuses to write the destination.

    Check the permissions. Check that the parent is a folder and not a file.
    """

    __str__ = GearError.__str__


class RemoteError(GearError, OSError):
    """Raised when requests to a server failed after all retries.

    Check the server and the URL, then run again.
    """

    __str__ = GearError.__str__


class ClusterError(GearError, RuntimeError):
    """Raised for errors between the nodes of a cluster; `file` names the node.

    Check that node and its log.
    """


class NodeUnreachableError(ClusterError):
    """Raised when a node is unreachable, died or timed out.

    Restart the node, or check the network.
    """


class NodeRefusedError(ClusterError):
    """Raised when a node rejects a token, dataset, version or message.

    Start all nodes with the same settings.
    """


class NodeFailedError(ClusterError):
    """Raised when a node cannot answer because of an error of its own.

    Search the node's log for the id in the message.
    """


class CorruptResponseError(ClusterError):
    """Raised when a node's response fails its checksum.

    Check the network and the node's memory.
    """


class MissingShardsError(ClusterError):
    """Raised when no reachable node holds some shards.

    Restart the nodes that held them.
    """


class DatasetNotFoundError(GearError, FileNotFoundError):
    """Raised when a path has no finished gear dataset.

    Check the path, or convert the source first.
    """

    __str__ = GearError.__str__


class ManifestError(GearError, ValueError):
    """Raised when a manifest is malformed or contradicts its files.

    Restore the manifest, or convert again.
    """


class VersionError(ManifestError):
    """Raised when a newer gear-data wrote the dataset. Upgrade gear-data."""


class CorruptShardError(GearError, ValueError):
    """Raised when a shard or table is missing, truncated or changed.

    Run `gear-data repair`, or convert again.
    """


class DatasetReplacedError(GearError, RuntimeError):
    """Raised when another dataset took the place of an opened dataset.

    Parts that are not read yet are lost. Open the dataset again.
    """


class GenerationGoneError(GearError, RuntimeError):
    """A generation of a growing dataset is no longer on disk."""


class MissingColumnError(GearError, ValueError):
    """Raised when a preset or format needs a column that the dataset lacks.

    Choose another preset or format, or add the column.
    """


class StateMismatchError(GearError, ValueError):
    """Raised when loader state belongs to another dataset or other arguments.

    Arguments are, for example, the sampler, seed or batch size. Load the state into an equal loader.
    """


class LoaderConfigError(GearError, ValueError):
    """Raised when a file of `gear-data tune` does not fit the loader, or a file of a mixture is wrong.

    The first is malformed, of another version, or for a dataset with other columns: run `gear-data tune` again. Of the
    second, the message names the key.
    """


class MissingExtraError(GearError, ImportError):
    """Raised when a package of an optional extra is not installed.

    Install the extra that the message names.
    """


class ForkedProcessError(GearError, RuntimeError):
    """Raised when a forked child needs threads or locks that only its parent has.

    Prepare the object before the fork, make another one in the child, or start the process by `spawn`.
    """


class DeviceError(GearError, RuntimeError):
    """Raised when a requested device does not exist or fails.

    Run `gear-data doctor`, or choose another device.
    """


class DeviceMemoryError(GearError, MemoryError):
    """Raised when a device has too little free memory.

    Keep fewer columns on the device, or use a residency plan.
    """


class HostMemoryError(GearError, MemoryError):
    """Raised when this machine has too little free memory.

    Use residency `mmap`, or keep fewer columns.
    """


class OpenFilesError(GearError, OSError):
    """Raised when this process can open no further file.

    Raise the limit of open files, or open fewer datasets.
    """

    __str__ = GearError.__str__


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """Returns the error for an unknown name.

    Its hint lists the known names and suggests the closest one.
    """
    return UnknownNameError(
        f"unknown {kind} '{name}'",
        column=str(name) if kind == "column" else None,
        hint=closest_name(str(name), known),
    )


def closest_name(name: str, known: Iterable[str]) -> str:
    """Returns the hint for an unknown name: the closest known name, and all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return (f"did you mean '{close[0]}'? " if close else "") + f"known: {', '.join(names) or 'none'}"


@contextmanager
def errors_as(
    kinds: type[Exception] | tuple[type[Exception], ...], make: Callable[[Exception], GearError]
) -> Iterator[None]:
    """Converts errors of the block.

    Args:
        kinds: the kinds of errors. A GearError is never converted.
        make: returns the error to raise instead.
    """
    try:
        yield
    except GearError:
        raise
    except kinds as error:
        raise make(error) from error


@contextmanager
def naming(name: str, path: object) -> Iterator[None]:
    """Lets errors of the block name a dataset, unless they name its path.

    Args:
        name: the dataset, for people.
        path: its folder or URL.
    """
    try:
        yield
    except GearError as error:
        if str(path) not in str(error):
            error.message = f"{name}: {error.message}"
        raise


def refuse_exhausted(error: Exception, file: str) -> None:
    """Checks that an error of a file does not mean that the process has reached a limit: the file may be whole.

    Arrow's errors may have the error number only in their text.

    Raises:
        HostMemoryError: the process can have no further memory, or no further mappings.
        OpenFilesError: the process, or the machine, can open no further file.
    """
    if not isinstance(error, OSError):
        return
    if error.errno == errno.ENOMEM or "Cannot allocate memory" in str(error):
        raise HostMemoryError(
            "cannot be mapped: this process can have no further memory, or no further mappings",
            file=file,
            hint="raise the limit of its address space (ulimit -v) or of its mappings (sysctl vm.max_map_count), "
            "or open fewer datasets",
        ) from error
    if error.errno in (errno.EMFILE, errno.ENFILE) or "Too many open files" in str(error):
        raise OpenFilesError(
            "cannot be opened: too many files are open",
            file=file,
            hint="raise the limit of open files (ulimit -n), or open fewer datasets",
        ) from error


def is_disk_full(error: OSError) -> bool:
    """Returns whether an OSError means a full disk or quota.

    Arrow's errors may have the error number only in their text.
    """
    return error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(error)
