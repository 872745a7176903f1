"""The interface of all exporters, and how they iterate over a dataset."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gear_data.dataset.dataset import Dataset
from gear_data.dataset.episode_blocks import block_ranges
from gear_data.errors import MissingColumnError
from gear_data.exports.destination import folder_files

#: Column bytes that are read and written together. In Parquet this is the size of a row group: small enough for
#: streaming readers, large enough to compress well.
BLOCK_BYTES = 32 << 20
#: Columns that D4RL's and Minari's readers require.
REQUIRED = ("observations", "actions", "rewards")


@dataclass(frozen=True)
class ExportOptions:
    """Options of the user.

    Attributes:
        progress: show a bar; None shows one only on a terminal.
        fps: steps per second, for formats with a clock.
        videos: write columns of uint8 frames as videos, for formats with videos.
        video_codec: codec of all videos. None: copy files and packets where it is possible.
        overwrite: replace an export at the destination.
    """

    progress: bool | None = None
    fps: float | None = None
    videos: bool = False
    video_codec: str | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class ExportReport:
    """Result of an export.

    Attributes:
        files: paths relative to the destination; if the destination is a file, its name.
        bytes: size of all files together.
        episodes: number of episodes.
        steps: number of steps.
        left_out: names of episode metadata that the format cannot store.
        notes: texts for the user, such as why a video was encoded again.
    """

    files: tuple[str, ...]
    bytes: int
    episodes: int
    steps: int
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON."""
        return {**asdict(self), "files": list(self.files), "left_out": list(self.left_out), "notes": list(self.notes)}


Exporter = Callable[[Dataset, Path, ExportOptions], ExportReport]


def episode_blocks(dataset: Dataset, first: int = 0, last: int | None = None) -> Iterator[tuple[int, int]]:
    """Yields ranges of whole episodes between positions `first` and `last`.

    A range has at most `BLOCK_BYTES`, or is a single larger episode.
    """
    stop = dataset.num_episodes if last is None else last
    for start, end in block_ranges(dataset.sizes(first, stop), 1, BLOCK_BYTES):
        yield first + start, first + end


def require_columns(dataset: Dataset, names: Container[str], format: str) -> None:
    """Checks that the columns `REQUIRED` exist.

    Args:
        dataset: dataset to export.
        names: names that count as present.
        format: name of the format, for the error.

    Raises:
        MissingColumnError: a column is missing.
    """
    for name in REQUIRED:
        if name not in names:
            raise MissingColumnError(
                f"{format} needs {', '.join(REQUIRED)}; the dataset's columns are {', '.join(dataset.schema.names)}",
                column=name,
                hint="export to Parquet, which does not need them",
            )


def rename_hint(name: str, new: str = "NAME") -> str:
    """Returns the advice to rename a column of the dataset. Its source may not have the column."""
    option = shlex.quote(f"{name}={new}")
    return f"rename it: ds.rename({{{name!r}: {new!r}}}) (gear-data edit DATASET OUT --rename {option})"


def report_of(
    dataset: Dataset, destination: Path, left_out: Sequence[str] = (), notes: Sequence[str] = ()
) -> ExportReport:
    """Returns the report about the written file, or about all files of the written folder."""
    sizes = folder_files(destination)
    if destination.is_file():
        sizes = {destination.name: destination.stat().st_size}
    size = sum(size or 0 for size in sizes.values())
    return ExportReport(tuple(sizes), size, dataset.num_episodes, dataset.num_steps, tuple(left_out), tuple(notes))
