"""The videos of recorded episodes: files beside their journal."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from gear_data.storage.journal.reading import Journal, read_journal

#: The folder of all videos, in the folder of the journals.
VIDEOS = "videos"
_SUFFIX = ".mp4"
#: Tries to make a file. Another thread may remove its folder, if the folder is empty, before the file is in it.
_TRIES = 10


def video_file(camera: str, number: int) -> str:
    """Returns the path of a video, relative to the folder of the journals."""
    name = quote(camera, safe="")
    if name in (".", ".."):  # they would name other folders
        name = name.replace(".", "%2E")
    return f"{VIDEOS}/{name}/{number:06d}{_SUFFIX}"


def create_video(path: Path) -> int:
    """Makes a file and its folders, and returns its descriptor, which can only write.

    Raises:
        OSError: the file exists, or cannot be made.
    """
    for _ in range(_TRIES):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def next_number(folder: Path) -> int:
    """Returns the smallest number that no video has, nor a smaller one."""
    numbers = [int(path.stem) for path in folder.glob(f"{VIDEOS}/*/*{_SUFFIX}") if path.stem.isdecimal()]
    return max(numbers, default=-1) + 1


def remove_unnamed(folder: Path, journals: Iterable[Path]) -> int:
    """Removes the videos that no episode has: its writer died before the end of the episode.

    Args:
        folder: the folder of the journals, which no other process uses.
        journals: all journals there.

    Returns:
        The number of removed files: none if a journal has damaged bytes, which may name them, or lost episodes.

    Raises:
        CorruptSourceError: a journal cannot be read. Nothing is removed then.
    """
    found = set(folder.glob(f"{VIDEOS}/*/*"))
    if found:
        for journal in journals:
            contents = read_journal(journal)
            if contents.damaged or contents.lost:
                return 0
            found -= {folder / file for file in _videos(contents)}
        remove_videos(folder, found)
    return len(found)


def _videos(journal: Journal) -> list[str]:
    return [video.file for episode in journal.episodes for video in episode.videos.values()]


def remove_journal(journal: Path) -> None:
    """Removes a journal whose episodes are in a dataset, and their videos."""
    videos = (
        [journal.parent / file for file in _videos(read_journal(journal))] if (journal.parent / VIDEOS).exists() else []
    )
    # A journal without its videos could not be converted. Videos without a journal are removed by `remove_unnamed`.
    journal.unlink(missing_ok=True)
    remove_videos(journal.parent, videos)


def remove_videos(folder: Path, videos: Iterable[Path]) -> None:
    """Removes videos of a folder of journals, and the folders that are empty then."""
    for path in videos:
        path.unlink(missing_ok=True)
    # Folders that hold other videos stay.
    for each in (*folder.glob(f"{VIDEOS}/*"), folder / VIDEOS):
        with suppress(OSError):
            each.rmdir()
