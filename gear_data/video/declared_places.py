"""DeclaredPlaces: where metadata says that the episodes of one video file are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gear_data.video.file_index import VideoFile

#: Frames by which a declared time may differ from that of a frame. Metadata rounds times, or adds them up.
_EXACT = 0.01


@dataclass(frozen=True, eq=False)
class DeclaredPlaces:
    """The declared places of the n episodes of one file, in the order of their starts.

    Attributes:
        start: float64 [n], time of the first frame in seconds.
        stop: float64 [n], time after the last frame in seconds; NaN if unknown.
        frames: int64 [n], number of frames; -1 if unknown.
        fps: the declared frames per second; None if unknown.
    """

    start: npt.NDArray[np.float64]
    stop: npt.NDArray[np.float64]
    frames: npt.NDArray[np.int64]
    fps: float | None


def frame_ranges(video: VideoFile, places: DeclaredPlaces) -> npt.NDArray[np.int64]:
    """Returns int64 [n, 2]: the first frame of each episode, and of the next one; -1 if it is unclear.

    Episodes that have all frames of the file are counted. Otherwise the times decide. If the file has another rate than
    the metadata, the declared durations say which rate the times have.

    Args:
        video: the file.
        places: the declared places of its episodes.
    """
    first = _first_frames(video, places)
    known = np.where(first < 0, video.num_frames, first)
    following = np.minimum.accumulate(np.append(known, video.num_frames)[::-1])[::-1][1:]
    return np.column_stack([first, following])


def declared_ranges(places: DeclaredPlaces) -> npt.NDArray[np.int64] | None:
    """Returns what `frame_ranges` returns of a file with these frames; None if the metadata does not say it alone.

    It does if the numbers of frames and the times agree, from the file's beginning on.
    """
    frames, fps = places.frames, places.fps
    if fps is None or (frames < 1).any():
        return None
    stop = np.cumsum(frames)
    exact = np.abs(places.start * fps - (stop - frames)) <= _EXACT
    return np.column_stack([stop - frames, stop]) if exact.all() else None


def _first_frames(video: VideoFile, places: DeclaredPlaces) -> npt.NDArray[np.int64]:
    frames, fps = places.frames, places.fps
    if (frames >= 0).all() and frames.sum() == video.num_frames:
        return np.cumsum(frames) - frames
    timed = np.array([nearest_frame(video, start)[0] for start in places.start.tolist()], np.int64)
    seconds = float(video.times[-1] - video.times[0])
    if fps is None or not seconds:
        return timed
    rates = ((video.num_frames - 1) / seconds, fps)
    of_file, of_metadata = (np.abs((places.stop - places.start) * rate - frames).sum() for rate in rates)
    if of_file < of_metadata:
        return timed
    return np.where(timed == np.rint(places.start * fps), timed, -1)


def nearest_frame(video: VideoFile, time: float) -> tuple[int, float]:
    """Returns the frame nearest to a time in seconds, and its distance in seconds."""
    times = video.times
    frame = int(np.searchsorted(times, time))
    candidates = [each for each in (frame - 1, frame) if 0 <= each < len(times)]
    best = min(candidates, key=lambda each: abs(float(times[each]) - time))
    return best, abs(float(times[best]) - time)
