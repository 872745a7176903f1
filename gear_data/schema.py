"""Schema of a dataset: the names, dtypes, shapes and roles of its columns."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from gear_data.common.typed_json import resolved
from gear_data.errors import ManifestError, UnsupportedColumnError, unknown_name
from gear_data.words import DepthUnit

#: Dtypes of fixed-size columns. `bool` is stored as uint8 0 or 1: Arrow packs booleans into bits, and bits cannot be
#: collected by copying bytes.
DTYPES = (
    "bool",
    "uint8", "uint16", "uint32", "uint64",
    "int8", "int16", "int32", "int64",
    "float16", "float32", "float64",
)  # fmt: skip

#: Dtypes of variable-length columns, with one value per step: text, or bytes such as an encoded image.
VARIABLE_TYPES = {"string": pa.large_string(), "binary": pa.large_binary()}


class Role(enum.StrEnum):
    """Purpose of a column. It follows from the column's name (`role_of`)."""

    OBSERVATION = "observation"
    ACTION = "action"
    REWARD = "reward"
    TERMINATED = "terminated"
    TRUNCATED = "truncated"
    RETURN_TO_GO = "return_to_go"
    INFO = "info"
    EXTRA = "extra"


_ROLES = {
    "observations": Role.OBSERVATION,
    "actions": Role.ACTION,
    "rewards": Role.REWARD,
    "terminated": Role.TERMINATED,
    "truncated": Role.TRUNCATED,
    "returns_to_go": Role.RETURN_TO_GO,
    "infos": Role.INFO,
}


def role_of(name: str) -> Role:
    """Returns the role of a canonical column name.

    `observations.image` is an observation.
    """
    return _ROLES.get(name.split(".", 1)[0], Role.EXTRA)


#: Prefix of masks. `masks.NAME` is false at steps whose source does not have the column NAME.
_MASKS = "masks."


def mask_column(name: str) -> ColumnSpec:
    """Returns the mask of a column: true at the steps whose source has the column."""
    return ColumnSpec(_MASKS + name, "bool")


@dataclass(frozen=True)
class DepthFormat:
    """The meaning of the 12-bit numbers of a depth video. `gear_data.video.depth` has the formula.

    Attributes:
        minimum, maximum: metres of the numbers 0 and 4095.
        shift: metres that are added before the logarithm.
        logarithmic: whether the numbers are linear in the logarithm of the shifted depth, not in the depth.
        unit: the unit in which frames are read.
    """

    minimum: float
    maximum: float
    shift: float
    logarithmic: bool
    unit: DepthUnit

    @property
    def sound(self) -> bool:
        """Whether the numbers have an order, and all of them a finite depth."""
        numbers = (self.minimum, self.maximum, self.shift)
        finite = all(map(math.isfinite, numbers)) and self.minimum < self.maximum
        return finite and (not self.logarithmic or self.minimum + self.shift > 0)


@dataclass(frozen=True)
class VideoFormat:
    """The frames of a camera whose steps are stored as video.

    Attributes:
        height, width, channels: of a frame.
        fps: frames per second; None if unknown.
        depth: the meaning of the numbers of a depth video, which has one channel; None: the frames are RGB.
    """

    height: int
    width: int
    channels: int = 3
    fps: float | None = None
    depth: DepthFormat | None = None


#: Axes of a step at most: an array of NumPy has 64, and a batch has two more than a step.
MAX_AXES = 62


@resolved
class VideoRecord(msgspec.Struct, frozen=True):
    """One camera in the manifest. See `VideoFormat`."""

    name: str
    source: str | None
    height: int
    width: int
    channels: int
    fps: float | None
    depth: DepthFormat | None = None


@resolved
class ColumnRecord(msgspec.Struct, frozen=True):
    """One column in the manifest. See `ColumnSpec`; the manifest's `role` is ignored."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    derived: bool
    source: str | None
    has_final: bool
    element_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class ColumnSpec:
    """Description of one step column.

    Attributes:
        name: canonical name, such as `observations` or `infos.qpos`.
        dtype: NumPy name of the element type, one of `DTYPES`; for a variable-length column one of `VARIABLE_TYPES`.
        shape: shape of one step; `()` for scalars and variable-length columns.
        derived: whether conversion computed the column (return-to-go). Exports and the fingerprint leave it out.
        source: name of the column in the source; None if the name is the same.
        has_final: whether the final observation, which follows the last step, has this column.
        video: the frames, if the steps are stored as video; None: the steps are in the shards. A video's steps have
            shape (height, width, channels) and dtype `uint8`, or `float32` if they are depth.
        element_names: names of the elements of a scalar or vector, such as a robot's joints; empty if unknown. The
            fingerprint leaves them out.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    derived: bool = False
    source: str | None = None
    has_final: bool = False
    video: VideoFormat | None = None
    element_names: tuple[str, ...] = ()

    @property
    def role(self) -> Role:
        """Returns the role that follows from the name."""
        return role_of(self.name)

    @property
    def source_name(self) -> str:
        """The name of the column in the source."""
        return self.source or self.name

    @property
    def depth(self) -> DepthFormat | None:
        """The meaning of the numbers of a depth video; None of all other columns."""
        return None if self.video is None else self.video.depth

    @property
    def variable_length(self) -> bool:
        """Whether the values are text or encoded bytes.

        They are stored as offsets and bytes.
        """
        return self.dtype in VARIABLE_TYPES

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype that users see.

        A variable-length column has `object`; its values are str or bytes.
        """
        return np.dtype(object) if self.variable_length else np.dtype(self.dtype)

    @property
    def storage_dtype(self) -> np.dtype[Any]:
        """The dtype in the shard: `numpy_dtype`, but uint8 for bool.

        Raises:
            UnsupportedColumnError: the column has a variable length. `row_bytes` raises it too.
        """
        if self.variable_length:
            raise UnsupportedColumnError(
                f"holds {self.dtype} values of variable length, but rows of a fixed size are needed",
                column=self.name,
                hint="leave the column out",
            )
        return np.dtype("uint8") if self.dtype == "bool" else np.dtype(self.dtype)

    @property
    def size(self) -> int:
        """Number of elements of one step."""
        return math.prod(self.shape)

    @cached_property
    def row_bytes(self) -> int:
        """Number of bytes of one step in the shard."""
        return self.size * self.storage_dtype.itemsize

    def reorders(self, other: ColumnSpec) -> bool:
        """Returns whether two columns have the same named elements in another order."""
        mine, others = self.element_names, other.element_names
        return mine != others and sorted(mine) == sorted(others)

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type in the shard.

        Scalars have a primitive type. Other fixed-size columns have one flat `FixedSizeList`, and their shape is in
        the field's metadata. Variable-length columns have `large_string` or `large_binary`.
        """
        if self.variable_length:
            return VARIABLE_TYPES[self.dtype]
        value = pa.from_numpy_dtype(self.storage_dtype)
        return pa.list_(pa.field("item", value, nullable=False), self.size) if self.shape else value

    @property
    def arrow_field(self) -> pa.Field:
        """Returns the Arrow field of the column in a shard."""
        shape = ",".join(str(n) for n in self.shape)
        metadata = {"gear.dtype": self.dtype, "gear.shape": shape, "gear.role": self.role.value}
        return pa.field(self.name, self.arrow_type, nullable=False, metadata=metadata)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a JSON-able mapping."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "role": self.role.value,
            "derived": self.derived,
            "source": self.source,
            "has_final": self.has_final,
            **({"element_names": list(self.element_names)} if self.element_names else {}),
        }

    @staticmethod
    def from_record(record: ColumnRecord) -> ColumnSpec:
        """Checks a record and returns its column.

        Raises:
            ManifestError: no column can have this dtype and shape, or there are more or fewer names than elements.
        """
        fixed = record.dtype in DTYPES and len(record.shape) <= MAX_AXES and all(size > 0 for size in record.shape)
        variable = record.dtype in VARIABLE_TYPES and record.shape == () and not record.has_final
        if not fixed and not variable:
            raise ManifestError(
                f"no column can have dtype {record.dtype!r} and shape {record.shape!r}", column=record.name
            )
        if record.element_names and len(record.element_names) != math.prod(record.shape):
            raise ManifestError(
                f"{len(record.element_names)} names do not fit the shape {record.shape!r}", column=record.name
            )
        return ColumnSpec(
            name=record.name,
            dtype=record.dtype,
            shape=record.shape,
            derived=record.derived,
            source=record.source,
            has_final=record.has_final,
            element_names=record.element_names,
        )


def video_column(name: str, frames: VideoFormat, source: str | None = None) -> ColumnSpec:
    """Returns the column of a camera whose steps are stored as video."""
    shape = (frames.height, frames.width, frames.channels)
    return ColumnSpec(name, "uint8" if frames.depth is None else "float32", shape, source=source, video=frames)


def split_cameras(columns: Iterable[ColumnSpec]) -> tuple[tuple[ColumnSpec, ...], tuple[ColumnSpec, ...]]:
    """Returns the columns that are no cameras, and the cameras."""
    found = tuple(columns)
    return tuple(each for each in found if each.video is None), tuple(each for each in found if each.video is not None)


@dataclass(frozen=True)
class Schema:
    """The step columns of a dataset, in order.

    Iteration, `len`, `columns` and `index` are about the columns in the shards. `name in schema`, `schema[name]` and
    `names` are also about videos.

    Attributes:
        columns: the columns in the shards.
        videos: the columns whose steps are stored as video.
    """

    columns: tuple[ColumnSpec, ...]
    videos: tuple[ColumnSpec, ...] = ()

    def __iter__(self) -> Iterator[ColumnSpec]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __contains__(self, name: object) -> bool:
        return any(column.name == name for column in (*self.columns, *self.videos))

    def __getitem__(self, name: str) -> ColumnSpec:
        """Returns a column or a video by name.

        Raises:
            UnknownNameError: no column has this name. The error lists the columns.
        """
        video = next((column for column in self.videos if column.name == name), None)
        return self.columns[self.index(name)] if video is None else video

    def index(self, name: str) -> int:
        """Returns the position of a column in the shards.

        Raises:
            UnknownNameError: no column has this name.
            UnsupportedColumnError: the column is a video.
        """
        for i, column in enumerate(self.columns):
            if column.name == name:
                return i
        if any(video.name == name for video in self.videos):
            raise UnsupportedColumnError(
                "is stored as video, and numbers in the shards are needed here",
                column=name,
                hint="leave the column out, or convert with --videos frames",
            )
        raise unknown_name("column", name, self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the columns, then of the videos."""
        return tuple(column.name for column in (*self.columns, *self.videos))

    def mask_of(self, name: str) -> str | None:
        """Returns the name of a column's mask; None if all steps have values.

        The mask of computed returns-to-go is the mask of the rewards.
        """
        column = self[name]
        mask = mask_column("rewards" if column.role is Role.RETURN_TO_GO and column.derived else name)
        found = next((each for each in self.columns if each.name == mask.name), None)
        return mask.name if found is not None and (found.dtype, found.shape) == (mask.dtype, mask.shape) else None

    @property
    def step_bytes(self) -> int:
        """Number of bytes of one step over all fixed-size columns."""
        return sum(column.row_bytes for column in self.fixed_columns)

    @property
    def fixed_columns(self) -> tuple[ColumnSpec, ...]:
        """The fixed-size columns."""
        return tuple(column for column in self.columns if not column.variable_length)

    @property
    def variable_columns(self) -> tuple[ColumnSpec, ...]:
        """The variable-length columns: text and encoded bytes."""
        return tuple(column for column in self.columns if column.variable_length)

    @property
    def source_columns(self) -> tuple[ColumnSpec, ...]:
        """The columns in the shards that came from the source, not derived ones."""
        return tuple(column for column in self.columns if not column.derived)

    @property
    def final_columns(self) -> tuple[ColumnSpec, ...]:
        """The columns of the final observation."""
        return tuple(column for column in self.columns if column.has_final)

    def to_arrow(self) -> pa.Schema:
        """Returns the Arrow schema of a shard."""
        return pa.schema([column.arrow_field for column in self.columns])

    def to_json(self) -> list[dict[str, Any]]:
        """Returns the columns as JSON-able mappings."""
        return [column.to_json() for column in self.columns]

    def videos_to_json(self) -> list[dict[str, Any]]:
        """Returns the videos as JSON-able mappings, in the form of `VideoRecord`."""
        return [
            {
                "name": column.name,
                "source": column.source,
                "height": column.video.height,
                "width": column.video.width,
                "channels": column.video.channels,
                "fps": column.video.fps,
                **({} if column.depth is None else {"depth": asdict(column.depth)}),
            }
            for column in self.videos
            if column.video is not None
        ]

    @staticmethod
    def from_records(records: Iterable[ColumnRecord], videos: Iterable[VideoRecord] = ()) -> Schema:
        """Returns the schema of a manifest's columns and videos.

        Raises ManifestError as `ColumnSpec.from_record` does.
        """
        return Schema(tuple(map(ColumnSpec.from_record, records)), tuple(map(_video_of, videos)))


def _video_of(record: VideoRecord) -> ColumnSpec:
    """Returns the column of a record. Raises ManifestError if a frame has no pixels, or its depth no meaning."""
    if min(record.height, record.width, record.channels) < 1:
        raise ManifestError(
            f"no video can have frames of {record.height} x {record.width} x {record.channels}", column=record.name
        )
    if record.depth is not None and not (record.depth.sound and record.channels == 1):
        raise ManifestError(
            f"no video of {record.channels} channels can have depth of {record.depth}", column=record.name
        )
    frames = VideoFormat(record.height, record.width, record.channels, record.fps, record.depth)
    return video_column(record.name, frames, record.source)
