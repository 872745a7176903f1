"""FileRequest: the frames of one file that a call wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError
from gear_data.video.file_index import VideoFile
from gear_data.video.index_tables import VideoIndex

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class FileRequest:
    """The frames of one file that a call wants.

    Attributes:
        number: of the file.
        video: the file.
        times: number of a frame -> its presentation time.
        rows: presentation time of a frame -> the rows of the result that show the frame.
        expected: presentation times of frames that later calls want.
    """

    number: int
    video: VideoFile
    times: Mapping[int, int]
    rows: Mapping[int, list[int]]
    expected: frozenset[int]


def file_requests(
    index: VideoIndex,
    file: Int64Array,
    frame: Int64Array,
    rows: Int64Array,
    ahead: tuple[Int64Array, Int64Array] | None,
) -> list[FileRequest]:
    """Returns the requests of a call by file. See `FrameReader.read`.

    Raises:
        InvalidArgumentError: a file or frame does not exist.
        CorruptShardError, RemoteError: the index of a file cannot be read.
    """
    check_frames(index, file, frame)
    index.load(file)
    later: dict[int, list[int]] = {}
    if ahead is not None:
        check_frames(index, *ahead)
        kept = np.isin(ahead[0], file)
        later = _by_file(ahead[0][kept], ahead[1][kept])
    wanted: dict[int, dict[int, list[int]]] = {}
    for number, each, row in zip(file.tolist(), frame.tolist(), rows.tolist(), strict=True):
        wanted.setdefault(number, {}).setdefault(each, []).append(row)
    requests = []
    for number, of_file in wanted.items():
        video = index.file(number)
        pts = video.packets.pts
        times = dict(zip(of_file, pts[video.frames[list(of_file)]].tolist(), strict=True))
        requests.append(
            FileRequest(
                number,
                video,
                times,
                {times[each]: shown for each, shown in of_file.items()},
                frozenset(pts[video.frames[later[number]]].tolist() if number in later else ()),
            )
        )
    return requests


def _by_file(file: Int64Array, frame: Int64Array) -> dict[int, list[int]]:
    frames: dict[int, list[int]] = {}
    for number, each in zip(file.tolist(), frame.tolist(), strict=True):
        frames.setdefault(number, []).append(each)
    return frames


def check_frames(index: VideoIndex, file: Int64Array, frame: Int64Array) -> None:
    """Raises InvalidArgumentError if one of some frames does not exist."""
    if file.shape != frame.shape or file.ndim != 1:
        raise InvalidArgumentError(
            f"files have shape {file.shape} and frames {frame.shape}", hint="pass two int64 arrays of one length"
        )
    if not len(file):
        return
    if file.min() < 0 or file.max() >= len(index):
        raise InvalidArgumentError(
            f"file {file.max() if file.min() >= 0 else file.min()} does not exist", hint=f"there are {len(index)} files"
        )
    counts = index.frame_counts[file]
    wrong = (frame < 0) | (frame >= counts)
    if wrong.any():
        at = int(wrong.argmax())
        raise InvalidArgumentError(
            f"frame {frame[at]} does not exist",
            file=index.listed(int(file[at])).file,
            hint=f"the file has {counts[at]} frames",
        )
