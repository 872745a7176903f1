"""IndexedSource: a source whose cameras' files are indexed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gear_data.ingest.findings.log import Finding
from gear_data.ingest.pipeline.mapped_source import MappedSource, without
from gear_data.ingest.source import EpisodeSource, SourceVideos, source_videos
from gear_data.ingest.videos.staged_index import StagedVideos, read_staged_videos
from gear_data.schema import ColumnSpec, VideoFormat, video_column
from gear_data.storage.episode_block import EpisodeBlock
from gear_data.storage.writing.file_store import FileStore
from gear_data.video.declared_places import declared_ranges, frame_ranges, nearest_frame
from gear_data.video.file_index import VideoFile
from gear_data.video.segments import VideoSegments, segment_digests

#: Seconds by which the time of an episode's first frame may differ from a frame: LeRobot's own `tolerance_s`.
_TOLERANCE = 1e-4
#: The end of the message about frames of two sizes, and its advice.
_SCALED = "(--videos frames with --video-size scales all of them)"
LEAVE_OUT = "leave such episodes out with --on-bad-episode skip, or leave the camera out with --columns"
_SCALE = "scale all frames with --videos frames --video-size (videos=VideoStorage(mode='frames', size=...))"
_RESTORE = "restore the file"
_ENCODE = "restore the file, or encode the video again (ffmpeg -i OLD -c:v libx264 -g 2 NEW.mp4)"


def indexed_source(source: EpisodeSource, store: FileStore, *, skip_bad: bool, one_size: bool = True) -> EpisodeSource:
    """Returns a source whose files `stage_videos` indexed.

    A source without cameras, or an indexed source, is returned as it is.

    Args:
        source: the source.
        store: the dataset's folder.
        skip_bad: whether malformed episodes are left out.
        one_size: whether all frames of a camera must have one size.

    Raises:
        ResumeError: the index is missing, or was changed.
    """
    videos = source_videos(source)
    if not videos.columns or isinstance(source, IndexedSource):
        return source
    return IndexedSource(source, read_staged_videos(store, videos), skip_bad=skip_bad, one_size=one_size)


class IndexedSource(MappedSource):
    """A source whose blocks say which frames of which indexed file an episode has.

    See `EpisodeSource`.

    An episode whose video is missing, unreadable or too short is malformed. With `one_size`, so is an episode whose
    frames have another size than the camera's first file.

    Args:
        source: the source.
        staged: the index of its files.
        skip_bad: whether malformed episodes are left out.
        one_size: whether all frames of a camera must have one size.

    Attributes:
        staged: the index of the source's files.
        videos: the cameras, with the size and rate of the frames that their files have.
    """

    def __init__(self, source: EpisodeSource, staged: StagedVideos, *, skip_bad: bool, one_size: bool) -> None:
        declared = source_videos(source)
        videos = replace(declared, columns=_columns(declared, staged))
        super().__init__(source, videos=videos, skip_bad=skip_bad)
        self._one_size = one_size
        self.staged = staged
        #: The frames of the episodes of the file that was read last.
        self._ranges: dict[int, npt.NDArray[np.int64]] = {}

    def _mapped(self, piece: EpisodeBlock) -> Iterator[EpisodeBlock]:
        clips = {spec.name: self._clips(spec, piece) for spec in self.videos.columns}
        names = {spec.name: spec.source_name for spec in self.videos.columns}
        bad = np.zeros(len(piece), np.bool_)
        for episode in range(len(piece)):
            for name, found in clips.items():
                if (problem := found.problems[episode]) is not None:
                    # A whole file may be unfit, too, such as one with two video streams.
                    unfit = int(piece.video_times[name].file[episode]) in self.staged.problems
                    way = _SCALE if problem.endswith(_SCALED) else _ENCODE if unfit else _RESTORE
                    self._report_bad(piece, episode, problem, names[name], f"{way}, {LEAVE_OUT}")
                    bad[episode] = True
                    break
        segments = {name: VideoSegments(found.file, found.first_frame) for name, found in clips.items()}
        whole = replace(piece, videos=segments, video_times={})
        for run in without(whole, bad):
            digests = {name: segment_digests(each, run.lengths, self.staged.index) for name, each in run.videos.items()}
            yield replace(run, videos={name: replace(run.videos[name], digests=each) for name, each in digests.items()})

    def _clips(self, spec: ColumnSpec, block: EpisodeBlock) -> _Clips:
        """Returns the frames of a block's episodes in one camera, with problems."""
        times, staged = block.video_times[spec.name], self.staged
        clips = _Clips(np.zeros(len(block), np.int64), np.zeros(len(block), np.int64), [None] * len(block))
        lengths = block.lengths.tolist()
        places = zip(times.file.tolist(), times.start.tolist(), times.place.tolist(), strict=True)
        for episode, (number, start, place) in enumerate(places):
            name = times.names[episode]
            if number not in staged.rows:
                reason = staged.problems.get(number, "is missing")
                clips.problems[episode] = f"its video {name} {reason}"
                continue
            row = staged.rows[number]
            first, last = self._frames(number, place, start)
            clips.file[episode], clips.first_frame[episode] = row, max(first, 0)
            if first < 0:
                clips.problems[episode] = (
                    f"its first frame in {name} is unclear: the metadata gives {start:.6g} s, the file has another "
                    "number of frames per second, and it has not as many frames as its episodes"
                )
                continue
            clips.problems[episode] = self._problem(spec, row, name, (first, last), lengths[episode])
            if staged.index.unindexed[row] or clips.problems[episode] is not None:
                continue
            distance = abs(float(staged.index.file(row).times[first]) - start)
            if distance > _TOLERANCE:
                message = (
                    f"an episode should begin at {start:.6g} s, and its first frame, the nearest or by its number, is "
                    f"{distance:.2g} s away"
                )
                self.findings.add(Finding("video-time-differs", message, 1, name, None, spec.source_name))
        return clips

    def _frames(self, number: int, place: int, start: float) -> tuple[int, int]:
        """Returns an episode's first frame, -1 if it is unclear, and the first frame of the next episode.

        Args:
            number: number of the file in the source.
            place: number of the episode among the declared places of the file, if there are any.
            start: the time of the first frame in seconds.
        """
        index, row, places = self.staged.index, self.staged.rows[number], self.videos.declared[number].places
        if places is None:
            return nearest_frame(index.file(row), start)[0], index.file(row).num_frames
        if number not in self._ranges:
            ranges = declared_ranges(places) if index.unindexed[row] else None
            self._ranges = {number: frame_ranges(index.file(row), places) if ranges is None else ranges}
        first, last = self._ranges[number][place].tolist()
        return first, last

    def _problem(self, spec: ColumnSpec, row: int, name: str, frames: tuple[int, int], length: int) -> str | None:
        """Returns why an episode cannot have its frames of a file of the index; None if it can."""
        video = self.staged.index.listed(row)
        if self._one_size and (video.height, video.width) != spec.shape[:2]:
            return (
                f"its video {name} has frames of {video.height} x {video.width}, and the camera's first file has "
                f"{spec.shape[0]} x {spec.shape[1]} {_SCALED}"
            )
        first, last = frames
        if last - first < length:
            is_last = last == self.staged.index.frame_counts[row]
            end = "from its start on" if is_last else "before the next episode begins"
            return f"its video {name} has {last - first} frames {end}, and the episode has {length} steps"
        return None


@dataclass(frozen=True, eq=False)
class _Clips:
    """The frames of n episodes: file and first frame, int64 [n].

    An episode without frames has a problem.
    """

    file: npt.NDArray[np.int64]
    first_frame: npt.NDArray[np.int64]
    problems: list[str | None]


def _columns(videos: SourceVideos, staged: StagedVideos) -> tuple[ColumnSpec, ...]:
    """Returns the cameras, with the frames of their first indexed file."""
    first: dict[str, VideoFile] = {}
    for number, declared in enumerate(videos.declared):
        if number in staged.rows and declared.camera not in first:
            first[declared.camera] = staged.index.file(staged.rows[number])
    columns = []
    for spec in videos.columns:
        video = first.get(spec.source_name)
        if video is not None:
            channels = 3 if spec.depth is None else 1
            frames = VideoFormat(video.height, video.width, channels, video.fps, spec.depth)
            spec = video_column(spec.name, frames, spec.source)
        columns.append(spec)
    return tuple(columns)
