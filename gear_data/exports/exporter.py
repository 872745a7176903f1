"""What every export format takes and gives back, and how it walks through a dataset."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from gear_data.dataset.dataset import Dataset
from gear_data.dataset.episode_blocks import block_ranges
from gear_data.errors import MissingColumnError

#: Column bytes that are read and written together; in Parquet, of a row group: small enough for streaming readers,
#: large enough to compress.
BLOCK_BYTES = 32 << 20
#: Columns without which D4RL's and Minari's readers take a dataset for none.
REQUIRED = ("observations", "actions", "rewards")


@dataclass(frozen=True)
class ExportOptions:
    """What the user asked for.

    Attributes:
        progress: show a bar; None shows one on a terminal.
        fps: steps a second, for formats with a clock.
    """

    progress: bool | None = None
    fps: float | None = None


@dataclass(frozen=True)
class ExportedFiles:
    """What an exporter wrote.

    Attributes:
        files: relative to the destination; of a destination that is a file, its name.
        bytes: of all files together.
        left_out: episode facts that the format has no place for.
    """

    files: tuple[str, ...]
    bytes: int
    left_out: tuple[str, ...] = ()


Exporter = Callable[[Dataset, Path, ExportOptions], ExportedFiles]


def episode_blocks(dataset: Dataset, first: int = 0, last: int | None = None) -> Iterator[tuple[int, int]]:
    """Runs of whole episodes among the first-th to last-th, of at most `BLOCK_BYTES` unless one alone is larger."""
    stop = dataset.num_episodes if last is None else last
    for start, end in block_ranges(dataset.sizes(first, stop), 1, BLOCK_BYTES):
        yield first + start, first + end


def require_columns(dataset: Dataset, known: Container[str], format: str) -> None:
    """Raises MissingColumnError, if one of `REQUIRED` is not known."""
    for name in REQUIRED:
        if name not in known:
            raise MissingColumnError(
                f"{format} has {', '.join(REQUIRED)}; the dataset's columns are {', '.join(dataset.schema.names)}",
                column=name,
                hint="export to Parquet, which needs none of them",
            )


def exported_files(destination: Path, left_out: list[str] | None = None) -> ExportedFiles:
    """Of a file, or of every file of a folder, that was written."""
    if destination.is_file():
        return ExportedFiles((destination.name,), destination.stat().st_size, tuple(left_out or ()))
    paths = sorted(path for path in destination.rglob("*") if path.is_file())
    names = tuple(path.relative_to(destination).as_posix() for path in paths)
    return ExportedFiles(names, sum(path.stat().st_size for path in paths), tuple(left_out or ()))
