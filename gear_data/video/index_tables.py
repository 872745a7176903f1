"""VideoIndex: the tables videos.arrow and video_packets.arrow of a dataset.

`videos.arrow` has one row for each file, and `video_packets.arrow` one row for each packet, file after file. The
episode table says for each camera which file and which first frame an episode has (`segment_columns`).

A file at a URL may be unindexed: its packets are in no table. Its row has what the file should be, and an `IndexReader`
reads the index in the file when a frame is first wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import CorruptShardError
from gear_data.video.file_index import DISCARD, ColorProperties, Packets, VideoFile, is_of_bytes
from gear_data.video.frame_groups import frame_groups
from gear_data.video.index_reader import IndexReader

#: Names of the tables in the manifest, and of their files.
FILES_TABLE, PACKETS_TABLE = "videos", "video_packets"
TABLE_FILES = {FILES_TABLE: "videos.arrow", PACKETS_TABLE: "video_packets.arrow"}

FILES_SCHEMA = pa.schema(
    [
        pa.field("file", pa.large_string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("checksum", pa.large_string(), nullable=False),
        pa.field("codec", pa.large_string(), nullable=False),
        pa.field("extradata", pa.large_binary(), nullable=False),
        pa.field("pixel_format", pa.large_string(), nullable=False),
        pa.field("height", pa.int32(), nullable=False),
        pa.field("width", pa.int32(), nullable=False),
        pa.field("color_range", pa.int32(), nullable=False),
        pa.field("color_space", pa.int32(), nullable=False),
        pa.field("color_primaries", pa.int32(), nullable=False),
        pa.field("color_transfer", pa.int32(), nullable=False),
        pa.field("time_base_numerator", pa.int64(), nullable=False),
        pa.field("time_base_denominator", pa.int64(), nullable=False),
        pa.field("packets", pa.int64(), nullable=False),
    ]
)
PACKETS_SCHEMA = pa.schema(
    [
        pa.field("pts", pa.int64(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("size", pa.int32(), nullable=False),
        pa.field("flags", pa.uint8(), nullable=False),
        pa.field("digest", pa.uint64(), nullable=False),
    ]
)
#: Columns of `FILES_SCHEMA` whose values are at least 1.
_POSITIVE = ("bytes", "height", "width", "time_base_numerator", "time_base_denominator")
#: Remedy for a table that cannot be used.
_RESTORE = "restore the table, or convert again"
#: Files whose packets a process keeps as arrays.
_FILES_KEPT = 4096


class VideoIndex:
    """The video files of a dataset, by number.

    Args:
        files: a table of `FILES_SCHEMA`.
        packets: a table of `PACKETS_SCHEMA`.
        name: name of the dataset, for errors.
        reader: reads the indexes of unindexed files. None: their packets are not asked for.

    Attributes:
        unindexed: bool [files], whether a file is unindexed.
        listed: number -> the file as the tables have it, a VideoFile; without packets if it is unindexed.
        file: number -> the file, a VideoFile. Of an unindexed file, it raises the errors of `IndexReader.read`.
        groups: number -> the groups of pictures of the file, FrameGroups. Raises as `file`.

    Raises:
        CorruptShardError: a table has other columns, or the tables disagree.
    """

    def __init__(self, files: pa.Table, packets: pa.Table, name: str, reader: IndexReader | None = None) -> None:
        for table, schema, kind in ((files, FILES_SCHEMA, FILES_TABLE), (packets, PACKETS_SCHEMA, PACKETS_TABLE)):
            if not table.schema.equals(schema):
                raise CorruptShardError(
                    f"its columns are {table.schema.names}, not {schema.names}",
                    file=f"{name}/{TABLE_FILES[kind]}",
                    hint=_RESTORE,
                )
        self.name = name
        self.files = files
        self.packets = packets.combine_chunks()
        self._columns = [self.packets.column(field.name).to_numpy() for field in PACKETS_SCHEMA]
        counts = files.column("packets").to_numpy()
        self.unindexed = counts < 0
        self._starts = np.concatenate([[0], np.cumsum(packet_counts(files))]).astype(np.int64)
        if self._starts[-1] != len(packets) or (counts == 0).any():
            raise CorruptShardError(
                f"lists {self._starts[-1]} packets, and {TABLE_FILES[PACKETS_TABLE]} has {len(packets)}",
                file=f"{name}/{TABLE_FILES[FILES_TABLE]}",
                hint=_RESTORE,
            )
        numeric = {field.name for field in FILES_SCHEMA if pa.types.is_integer(field.type)}
        numbers = {name: files.column(name).to_numpy() for name in FILES_SCHEMA.names if name in numeric}
        for column in _POSITIVE:
            if (wrong := numbers[column] < 1).any():
                row = int(np.argmax(wrong))
                raise CorruptShardError(
                    f"must be at least 1, not {numbers[column][row]}",
                    file=f"{name}/{TABLE_FILES[FILES_TABLE]}",
                    column=column,
                    row=row,
                    hint=_RESTORE,
                )
        texts = {name: files.column(name) for name in FILES_SCHEMA.names if name not in numeric}
        self._reader = reader
        # None refers to the index. A cycle would keep the tables of a generation that nobody reads, and the arrays
        # of its files, until a garbage collection.
        listed = partial(_video_file, numbers, texts, self._starts, self._columns)
        file = lru_cache(_FILES_KEPT)(partial(_indexed, listed, counts, reader))
        self.listed, self.file = listed, file
        self.groups = lru_cache(_FILES_KEPT)(lambda number: frame_groups(file(number)))

    def __reduce__(self) -> tuple[object, ...]:
        return (VideoIndex, (self.files, self.packets, self.name, self._reader))

    def __len__(self) -> int:
        """Returns the number of files."""
        return len(self.files)

    @cached_property
    def frame_counts(self) -> npt.NDArray[np.int64]:
        """int64 [files]: the number of frames of each file, as `VideoFile.num_frames`.

        Of an unindexed file, it is the number of frames that the dataset's episodes have of it.
        """
        flags = self._columns[PACKETS_SCHEMA.get_field_index("flags")]
        counts: npt.NDArray[np.int64] = -self.files.column("packets").to_numpy()
        if len(flags):
            starts = self._starts[:-1][~self.unindexed]
            counts[~self.unindexed] = np.add.reduceat(flags & DISCARD == 0, starts, dtype=np.int64)
        return counts

    def load(self, numbers: npt.NDArray[np.int64]) -> None:
        """Reads the indexes of unindexed files, many at once, so that `file` finds them on this machine.

        Args:
            numbers: int64 [n], the files; others than unindexed ones, and repeated ones, are left out.

        Raises the errors of `IndexReader.read`.
        """
        if self._reader is not None and len(wanted := self._unindexed(numbers)):
            self._reader.load(wanted)

    def expect(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Begins to read the indexes of files that later calls want, in other threads.

        Args:
            numbers: int64 [n], the files.

        Returns:
            bool [n], whether `file` finds the index of each file on this machine now.
        """
        if self._reader is None or not len(wanted := self._unindexed(numbers)):
            return np.ones(len(numbers), np.bool_)
        return ~np.isin(numbers, self._reader.expect(wanted))

    def _unindexed(self, numbers: npt.NDArray[np.int64]) -> list[int]:
        """Returns the unindexed files among some files, each once, in their order."""
        return list(dict.fromkeys(numbers[self.unindexed[numbers]].tolist()))

    @cached_property
    def num_pixels(self) -> int:
        """The pixels of all frames of all files."""
        sizes = [self.files.column(name).to_numpy().astype(np.int64) for name in ("height", "width")]
        return int((self.frame_counts * sizes[0] * sizes[1]).sum())


def packet_counts(files: pa.Table) -> npt.NDArray[np.int64]:
    """Returns int64 [files]: the packets that each file of a table of `FILES_SCHEMA` has in the table of packets."""
    counts: npt.NDArray[np.int64] = files.column("packets").to_numpy()
    return np.maximum(counts, 0)


def _indexed(
    listed: Callable[[int], VideoFile], counts: npt.NDArray[np.int64], reader: IndexReader | None, number: int
) -> VideoFile:
    """Returns a file with its packets.

    Args:
        listed: `VideoIndex.listed`.
        counts: int64 [files], the column `packets`.
        reader: reads unindexed files.
        number: of the file.
    """
    video, count = listed(number), int(counts[number])
    if count > 0:
        return video
    if reader is None:
        raise CorruptShardError("its index was not read", file=video.file, hint=_RESTORE)
    return reader.read(number, video, -count)


def _video_file(
    numbers: Mapping[str, npt.NDArray[Any]],
    texts: Mapping[str, Any],
    starts: npt.NDArray[np.int64],
    columns: Sequence[npt.NDArray[Any]],
    number: int,
) -> VideoFile:
    """Returns a file of the tables.

    Args:
        numbers, texts: name -> column of the table of files.
        starts: int64 [files + 1], the first packet of each file.
        columns: of the table of packets.
        number: of the file.
    """
    row: dict[str, Any] = {name: column[number].item() for name, column in numbers.items()}
    row |= {name: column[number].as_py() for name, column in texts.items()}
    first, last = starts[number : number + 2].tolist()
    return VideoFile(
        file=row["file"],
        size=row["bytes"],
        checksum=row["checksum"],
        codec=row["codec"],
        extradata=row["extradata"],
        pixel_format=row["pixel_format"],
        height=row["height"],
        width=row["width"],
        colors=ColorProperties(row["color_range"], row["color_space"], row["color_primaries"], row["color_transfer"]),
        time_base=Fraction(row["time_base_numerator"], row["time_base_denominator"]),
        packets=Packets(*(column[first:last] for column in columns)),
    )


def files_fact(mode: str, size: int, files: pa.Table) -> dict[str, Any]:
    """Returns the fact `videos` of a dataset's provenance.

    Args:
        mode: `keep` or `link`.
        size: bytes of the files in the dataset's folder.
        files: a table of `FILES_SCHEMA`. Files that were not read are counted as `unread`, and those of them that are
            not indexed as `unindexed`.
    """
    counts = {
        "unread": sum(not is_of_bytes(each) for each in files.column("checksum").to_pylist()),
        "unindexed": int((files.column("packets").to_numpy() < 0).sum()),
    }
    return {"mode": mode, "bytes": size, **{name: count for name, count in counts.items() if count}}


def index_tables(videos: Sequence[VideoFile], unindexed: Mapping[int, int] | None = None) -> tuple[pa.Table, pa.Table]:
    """Returns the tables of `FILES_SCHEMA` and `PACKETS_SCHEMA` of some files.

    Args:
        videos: the files.
        unindexed: place of an unindexed file in `videos` -> the frames that the dataset's episodes have of it. Such a
            file is described as its index should, without packets.
    """
    rows = [
        {
            "file": video.file,
            "bytes": video.size,
            "checksum": video.checksum,
            "codec": video.codec,
            "extradata": video.extradata,
            "pixel_format": video.pixel_format,
            "height": video.height,
            "width": video.width,
            "color_range": video.colors.range,
            "color_space": video.colors.space,
            "color_primaries": video.colors.primaries,
            "color_transfer": video.colors.transfer,
            "time_base_numerator": video.time_base.numerator,
            "time_base_denominator": video.time_base.denominator,
            "packets": -unindexed[place] if unindexed and place in unindexed else len(video.packets),
        }
        for place, video in enumerate(videos)
    ]
    files = pa.Table.from_pylist(rows, schema=FILES_SCHEMA)
    parts = [
        pa.table([getattr(video.packets, field.name) for field in PACKETS_SCHEMA], schema=PACKETS_SCHEMA)
        for video in videos
    ]
    packets = pa.concat_tables(parts).combine_chunks() if parts else PACKETS_SCHEMA.empty_table()
    return files, packets
