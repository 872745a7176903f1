"""The index of a source's video files while a conversion runs.

All files are indexed, and placed in the dataset, before the first episode is read. `.progress/` then has a few tables,
each of the files of one part. A killed run continues after the last part, and worker processes read the parts.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa

from gear_data.common.private_folder import scratch_folder
from gear_data.common.progress import progress_bar
from gear_data.errors import GearError, ResumeError
from gear_data.ingest.findings.log import FindingLog
from gear_data.ingest.findings.video_files import DeclaredVideo, video_findings
from gear_data.ingest.location import SourceFile
from gear_data.ingest.source import SourceVideos
from gear_data.ingest.videos.placing import kept_names, linked_name, place
from gear_data.ingest.videos.storage_options import KEEP
from gear_data.storage.arrow_files import write_ipc
from gear_data.storage.atomic import checksum, typed_write_errors
from gear_data.storage.remote.range_reader import RangeReader
from gear_data.storage.videos.file_parts import fetch_index
from gear_data.storage.writing.file_store import FileStore
from gear_data.storage.writing.progress_files import (
    PROGRESS,
    START_OVER,
    read_progress_file,
    read_progress_table,
    write_progress_file,
)
from gear_data.video.declared_places import declared_ranges
from gear_data.video.file_index import NO_PACKETS, VideoFile
from gear_data.video.index_tables import (
    FILES_SCHEMA,
    FILES_TABLE,
    PACKETS_SCHEMA,
    PACKETS_TABLE,
    VideoIndex,
    index_tables,
)
from gear_data.video.indexing.indexer import index_files

#: A part ends with this many files, or bytes of files.
_PART_FILES, _PART_BYTES = 64, 256 << 20
#: Files at URLs that are fetched at once, in parts and whole.
_IN_PARTS, _WHOLE = 32, 4
#: Frames by which the frames of a camera's first file may differ from the declared rate.
_LATE_FRAMES = 0.25
#: 30000 / 1001 frames per second have the denominator 1001.
_LARGEST_DENOMINATOR = 10**6


@dataclass(frozen=True, eq=False)
class StagedVideos:
    """The indexed files of a source.

    Attributes:
        index: the files that could be indexed.
        rows: number of a file in the source -> its number in the index.
        problems: number of a file in the source -> why it could not be indexed.
    """

    index: VideoIndex
    rows: Mapping[int, int]
    problems: Mapping[int, str]

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return int(self.index.files.column("bytes").to_numpy().sum())


def stage_videos(
    videos: SourceVideos, store: FileStore, mode: str, findings: FindingLog, *, jobs: int, progress: bool | None,
    whole: bool = True, late: bool = False,
) -> None:  # fmt: skip
    """Indexes all video files of a source, and places them in the dataset's folder.

    Parts that an earlier run finished are left as they are.

    Args:
        videos: the cameras of the source.
        store: the dataset's folder.
        mode: `KEEP` places the files. For other modes they are only indexed.
        findings: receives the findings about the files.
        jobs: number of processes that index files.
        progress: show a bar; None shows one on a terminal.
        whole: whether files at URLs are read whole. Otherwise only their indexes are, where `fetch_index` can.
        late: whether the indexes of files at URLs are read when a frame is first wanted, where metadata says which
            frames the episodes have.

    Raises:
        MissingExtraError: PyAV is not installed.
        SourceChangedError: a file changes meanwhile.
        StorageFullError, UnwritableError: the folder cannot be written to.
        ResumeError: files of an earlier run cannot be used.
    """
    parts = enumerate(_parts(videos.files))
    missing = {each: part for each, part in parts if read_progress_file(store, _part_file(each)) is None}
    names = kept_names(videos.files)
    numbers = [number for part in missing.values() for number in part]
    total = sum(videos.files[number].size for number in numbers)
    with progress_bar(total, "videos", "B", progress) as bar, scratch_folder() as folder:
        known = _known_files(videos, numbers, folder, jobs) if late else {}
        indexed = _indexed([videos.files[number] for number in numbers if number not in known], folder, jobs, whole)
        for each, part in missing.items():
            found: dict[int, VideoFile] = {}
            problems: dict[int, str] = {}
            for number in part:
                file = videos.files[number]
                path, result = (Path(file.path), known[number]) if number in known else next(indexed)
                if isinstance(result, GearError):
                    problems[number] = result.message
                elif result.was_read and videos.declared[number].checksum not in (None, result.checksum):
                    problems[number] = "differs from its checksum"
                elif mode == KEEP:
                    place(store, path, names[number], result)
                    found[number] = replace(result, file=names[number])
                else:
                    found[number] = replace(result, file=linked_name(file))
                if file.filesystem is not None and number not in known:
                    path.unlink(missing_ok=True)
                bar.update(file.size)
            _write_part(store, each, found, problems, videos)
    staged = read_staged_videos(store, videos)
    for number, declared in enumerate(videos.declared):
        if number in staged.rows and not staged.index.unindexed[staged.rows[number]]:
            findings.extend(video_findings(staged.index.file(staged.rows[number]), declared))


def _known_files(
    videos: SourceVideos, numbers: Sequence[int], folder: Path, jobs: int
) -> dict[int, VideoFile | GearError]:
    """Returns the files whose indexes are read when a frame is first wanted, and the first files of their cameras.

    The former are files at URLs whose servers have names for their contents, and of which metadata says which frames
    the episodes have. They are as the first such file of which the source declares the same camera, which is indexed
    now: it must have a separate index, and the declared rate.

    Args:
        videos: the cameras of the source.
        numbers: the files that are not indexed yet.
        folder: for temporary files.
        jobs: number of processes that index files.

    Returns:
        Number of a file -> the file, without packets if its index is read later; or the error of a first file.
    """
    first: dict[Hashable, int] = {}
    placed = [number for number in range(len(videos.files)) if _is_placed(videos, number)]
    for number in placed:
        first.setdefault(_kind(videos.declared[number]), number)
    firsts = set(first.values())
    wanted = {*numbers} - firsts
    late = [number for number in placed if number in wanted]
    firsts = {first[_kind(videos.declared[number])] for number in late}
    result: dict[int, VideoFile | GearError] = {}
    for number, (path, found) in zip(
        sorted(firsts),
        _indexed([videos.files[each] for each in sorted(firsts)], folder, jobs, whole=False),
        strict=True,
    ):
        result[number] = found
        path.unlink(missing_ok=True)
    for number in late:
        declared, file = videos.declared[number], videos.files[number]
        camera = result[first[_kind(declared)]]
        if isinstance(camera, VideoFile) and not camera.was_read and _has_rate(camera, declared):
            result[number] = replace(
                camera,
                file=linked_name(file),
                size=file.size,
                checksum=file.contents,
                extradata=b"",
                time_base=1 / _rate(declared),
                packets=NO_PACKETS,
            )
    return result


def _kind(declared: DeclaredVideo) -> Hashable:
    """Returns the camera of a file, and the frames that the source declares. Sources may have a camera of one name."""
    return declared.camera, declared.height, declared.width, declared.fps, declared.codec


def _is_placed(videos: SourceVideos, number: int) -> bool:
    """Returns whether a file is at a URL, and metadata alone says where its episodes are."""
    file, places = videos.files[number], videos.declared[number].places
    if file.filesystem is None or not file.contents or places is None:
        return False
    return declared_ranges(places) is not None


def _rate(declared: DeclaredVideo) -> Fraction:
    places = declared.places
    rate = 0.0 if places is None or places.fps is None else places.fps
    return Fraction(rate).limit_denominator(_LARGEST_DENOMINATOR)


def _has_rate(video: VideoFile, declared: DeclaredVideo) -> bool:
    """Returns whether a file has the declared frames per second, for all its frames."""
    rate = _rate(declared)
    if not rate:
        return False
    late = np.abs(video.times - np.arange(video.num_frames) / float(rate)) * float(rate)
    return bool(late.max() < _LATE_FRAMES)


def _indexed(
    files: Sequence[SourceFile], folder: Path, jobs: int, whole: bool
) -> Iterator[tuple[Path, VideoFile | GearError]]:
    """Yields a local path of each file, and its index.

    Remote files, or their parts, are fetched into a folder first, several at once.
    """
    places: list[tuple[Path, str]] = []

    def inputs() -> Iterator[tuple[Path, str, str]]:
        pending: deque[Future[tuple[Path, str, str]]] = deque()
        ahead = _WHOLE if whole else _IN_PARTS
        threads = ThreadPoolExecutor(ahead, "gear-fetch")
        try:
            for number, file in enumerate(files):
                pending.append(threads.submit(_fetched, file, folder / str(number), whole))
                if len(pending) > ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            threads.shutdown(cancel_futures=True)

    def listed() -> Iterator[tuple[Path, str, str]]:
        for each in inputs():
            places.append((each[0], each[2]))
            yield each

    for number, result in enumerate(index_files(listed(), jobs)):
        path, contents = places[number]
        if contents and isinstance(result, GearError):
            # FFmpeg may need more of it than its first packets. If it is damaged, the whole file says how.
            (result,) = index_files([_fetched(files[number], path, whole=True)], 1)
        yield path, result


def _fetched(file: SourceFile, path: Path, whole: bool) -> tuple[Path, str, str]:
    """Returns a local path of a file, its name, and the name of its contents if it was fetched in parts."""
    if file.filesystem is None:
        return Path(file.path), file.name, ""
    if not whole and file.contents and fetch_index(_reader(file), path):
        return path, file.name, file.contents
    with file.open() as source, typed_write_errors(path), open(path, "wb") as target:
        shutil.copyfileobj(source, target, 8 << 20)
    return path, file.name, ""


def _reader(file: SourceFile) -> RangeReader:
    return RangeReader(file.filesystem, file.path, file.size, file.name, file.contents)


def _parts(files: Sequence[SourceFile]) -> list[range]:
    """Returns the numbers of the files of each part.

    They depend only on the sizes of the files.
    """
    parts: list[range] = []
    first = size = 0
    for number, file in enumerate(files):
        size += file.size
        if number + 1 - first == _PART_FILES or size >= _PART_BYTES or number + 1 == len(files):
            parts.append(range(first, number + 1))
            first, size = number + 1, 0
    return parts


def _part_file(number: int) -> str:
    return f"{PROGRESS}/videos/{number:06d}.json"


def _write_part(
    store: FileStore, part: int, found: Mapping[int, VideoFile], problems: Mapping[int, str], videos: SourceVideos
) -> None:
    checksums = {}
    file = _part_file(part)
    unindexed = {
        place: videos.declared[number].frames or 0
        for place, (number, video) in enumerate(found.items())
        if not len(video.packets)
    }
    for kind, table in zip((FILES_TABLE, PACKETS_TABLE), index_tables(list(found.values()), unindexed), strict=True):
        with store.writing(f"{file.removesuffix('.json')}.{kind}") as path:
            write_ipc(path, table)
            checksums[kind] = checksum(path)
    numbered = [[number, text] for number, text in problems.items()]
    write_progress_file(store, file, {"tables": checksums, "files": list(found), "problems": numbered})


def read_staged_videos(store: FileStore, videos: SourceVideos) -> StagedVideos:
    """Reads the index that `stage_videos` wrote.

    Args:
        store: the dataset's folder.
        videos: the cameras of the source.

    Raises:
        ResumeError: a part is missing, or was changed.
    """
    tables: dict[str, list[pa.Table]] = {FILES_TABLE: [], PACKETS_TABLE: []}
    rows: dict[int, int] = {}
    problems: dict[int, str] = {}
    parts = 0
    while (part := read_progress_file(store, file := _part_file(parts))) is not None:
        parts += 1
        try:
            for each in part["files"]:
                rows[int(each)] = len(rows)
            problems.update({int(each): str(text) for each, text in part["problems"]})
        except (KeyError, TypeError, ValueError) as error:
            raise ResumeError(f"cannot be read: {error}", file=f"{store.name}/{file}", hint=START_OVER) from error
        for kind, found in tables.items():
            found.append(read_progress_table(store, file, kind))
    if sorted([*rows, *problems]) != list(range(len(videos.files))):
        raise ResumeError(
            f"has {len(rows) + len(problems)} of {len(videos.files)} video files in {parts} parts",
            file=f"{store.name}/{PROGRESS}/videos",
            hint=START_OVER,
        )
    index = VideoIndex(
        pa.concat_tables([FILES_SCHEMA.empty_table(), *tables[FILES_TABLE]]).combine_chunks(),
        pa.concat_tables([PACKETS_SCHEMA.empty_table(), *tables[PACKETS_TABLE]]).combine_chunks(),
        store.name,
    )
    return StagedVideos(index, rows, problems)
