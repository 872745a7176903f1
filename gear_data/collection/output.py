"""Outputs: the arrays of a batch, as values.

An `Output` says which steps of a window go where in one array, and what padding holds. A preset gives a list of
outputs; a `BatchPlan` turns the list into numbers for the kernels.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError

TIMESTEPS = "timesteps"
MASK = "mask"
#: NumPy itself has no bfloat16. JAX has the same dtype.
BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)

#: `Output.camera`: uint8 [H, W, 3]; and [3, H, W], uint8, from 0 to 1 or normalised.
CHANNELS_LAST, CHANNELS_FIRST = "channels_last", "channels_first"
#: `Output.camera` of depth: unit -> the word. A step is [H, W, 1] or [1, H, W] of floats.
DEPTH: Mapping[str, str] = {"m": "depth_m", "mm": "depth_mm"}

#: Far more than any memory holds, and far below the sizes that overflow int64.
_MAX_BATCH_BYTES = 1 << 40


class Padding(enum.StrEnum):
    """The values of padding steps."""

    FILL = "fill"  # `Output.fill`
    EDGE = "edge"  # the nearest valid step
    FIRST = "first"  # the first valid step
    EXTRAPOLATE = "extrapolate"  # TIMESTEPS only: the count continues


@dataclass(frozen=True)
class NextState:
    """The n-th next state of a window's first step.

    All outputs of a batch that have one share it.

    The hop is the number of steps to it: n, or fewer up to a terminal step or the last state of the episode; 0 if
    there is none. `gear_data.kernels.cpu.transitions` says which states an episode has.

    Attributes:
        most: n, the longest hop.
        ends: the column of flags, bool, that are true at terminal steps.
        finals: a column whose final observations are states; None: no final observation is a state.
    """

    most: int
    ends: str
    finals: str | None


@dataclass(frozen=True)
class RelativeTo:
    """The values that are subtracted from the steps of an array, before they are normalised.

    Attributes:
        source: a column, whose value at the window's first step is subtracted.
        size: elements of a step of the column.
        elements: for each element of the array, the element of the column; -1: nothing is subtracted.
        delta: whether only the first valid step is relative to the column, and each later step to the step before it.
    """

    source: str
    size: int
    elements: tuple[int, ...]
    delta: bool = False


#: Fields of an `Output` that say how a column becomes values.
_OF_VALUES = frozenset(
    (
        "fill",
        "mean",
        "scale",
        "padding",
        "shift",
        "mask_column",
        "discounts",
        "next_state",
        "table",
        "real",
        "relative",
        "weights",
    )
)


@dataclass(frozen=True)
class Output:
    """One array of a batch: [B, width, *shape].

    Attributes:
        key: name in the batch.
        source: name of a column; or `TIMESTEPS` or `MASK` if `column` is False.
        dtype: NumPy name of the output's dtype.
        shape: shape of one step.
        first, width: steps to read, relative to the window's start: from first to first + width - 1.
        steps: `width` steps to read, relative to the window's start, in this order; `first` is the lowest. None: the
            range of `first` and `width`. A padded step holds what it holds in `span`, where it is at its own position.
        weights: for each of `steps`, the share of the step after it, from 0 to less than 1: see
            `gear_data.collection.listed_steps`. None: the output has the steps themselves.
        pad_left: True puts valid steps at the end. False leaves every step at its own position.
        fill: one padding step, [*shape] or a scalar. The batch holds this value; it is not normalised.
        mean, scale: output = (value - mean) * scale, float64, which broadcast to a step of the column; of a camera [C];
            with `relative`, [width, elements]. None copies (or casts).
        column: whether `source` is a column.
        within_window: True pads steps outside the window. False pads only steps outside the episode.
        padding: the values of padding steps. A window without any valid step holds `fill`.
        origin: TIMESTEPS: the number of an episode's first step.
        valid: MASK: the value at valid steps. `fill` is the value at padding.
        shift: 0, +1 or -1. With +1 each step holds the row of the next step; the last step of an episode holds the
            final observation, or padding if the episode has none. With -1 each step holds the row of the step before;
            the first step of an episode holds `fill`.
        mask_column: MASK with shift=+1: the column whose final observations count as valid.
        squeeze_time: the array is [B, *shape], without the axis of steps; `width` is 1.
        discounts: output = sum over j of discounts[j] * value[t + j], up to the episode's end, computed in float64.
            For n-step returns: 1, gamma, ..., gamma^(n - 1).
        next_state: with +1 for `shift`, a `discounts` or a `table`: how far the next state is; see `NextState`. With
            `shift`, the steps are relative to the next state, and the window is padding if there is none. The sum of
            `discounts` ends at the next state. `width` is 1, except with `shift`.
        table: numbers [2, n + 1]; output = table[last step of the hop is terminal, hop]. See `NextState`.
        camera: `CHANNELS_LAST`, `CHANNELS_FIRST`, or one of `DEPTH`: the column is a camera. A decoder writes its
            frames, not a kernel. A normalised camera of RGB has `CHANNELS_FIRST`.
        half: `float16` or `bfloat16`: the dtype to which float32 values are rounded.
        real: elements of the last axis that the column has, if `shape` has more: the others are zeros. `mean`, `scale`
            and `fill` are of these elements. None: all.
        absent: whether the dataset lacks the column: the array holds `valid` everywhere.
        relative: what is subtracted from each value first; None: nothing.
    """

    key: str
    source: str
    dtype: str
    shape: tuple[int, ...]
    first: int
    width: int
    pad_left: bool = False
    fill: Any = 0
    mean: npt.NDArray[np.float64] | None = None
    scale: npt.NDArray[np.float64] | None = None
    column: bool = True
    within_window: bool = True
    padding: Padding = Padding.FILL
    origin: int = 0
    valid: Any = 1
    shift: int = 0
    mask_column: str | None = None
    squeeze_time: bool = False
    discounts: tuple[float, ...] | None = None
    next_state: NextState | None = None
    table: npt.NDArray[Any] | None = None
    half: str | None = None
    steps: tuple[int, ...] | None = None
    weights: tuple[float, ...] | None = None
    camera: str | None = None
    real: int | None = None
    absent: bool = False
    relative: RelativeTo | None = None

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """The dtype of the array."""
        if self.half == "bfloat16":
            return BFLOAT16
        return np.dtype(self.half or self.dtype)

    @property
    def without_zeros(self) -> Output:
        """The output of the column's own elements; itself if no zeros are behind them."""
        if self.real is None:
            return self
        return dataclasses.replace(self, shape=(*self.shape[:-1], self.real), real=None)

    @property
    def array_shape(self) -> tuple[int, ...]:
        """The shape of one row (one window) of the array."""
        return self.shape if self.squeeze_time else (self.width, *self.shape)

    @property
    def span(self) -> Output:
        """The output of the range of the listed steps; itself if it has no list.

        The range also has the window's first step. So it always has a valid step, as the nearest one of any other. It
        has the steps after steps of weights.
        """
        if self.steps is None:
            return self
        weights = self.weights or (0.0,) * len(self.steps)
        after = (step + (weight > 0) for step, weight in zip(self.steps, weights, strict=True))
        first, last = min(0, *self.steps), max(0, *after)
        span = dataclasses.replace(self, first=first, width=last - first + 1, steps=None, weights=None)
        if self.relative is None or self.mean is None or self.scale is None:
            return span
        # The numbers of a step stay with the step. Those between the listed steps are not read. If steps are
        # interpolated, all have the same numbers.
        places = slice(None) if self.weights is not None else [step - first for step in self.steps]
        numbers = np.ones((3, span.width, self.mean.shape[1]))
        for own, each in zip(numbers, (self.mean, self.scale, np.asarray(self.fill)), strict=True):
            of_steps = np.broadcast_to(each, self.mean.shape)
            own[places] = of_steps[0] if self.weights is not None else of_steps
        return dataclasses.replace(span, mean=numbers[0], scale=numbers[1], fill=numbers[2])

    @property
    def span_mask(self) -> Output:
        """The mask of the steps of `span` that are no padding."""
        own: dict[str, Any] = {each.name: each.default for each in dataclasses.fields(self) if each.name in _OF_VALUES}
        own |= {"shift": self.shift, "next_state": self.next_state}
        column = self.source if self.shift > 0 else None
        return dataclasses.replace(
            self.span, source=MASK, dtype="bool", shape=(), column=False, half=None, **{**own, "mask_column": column}
        )

    def as_absent(self) -> Output:
        """Returns the output of a dataset that lacks the column: an array of the same layout, of zeros.

        A mask says that all steps are padding. A constant says of a present column that it is there: it is zero, too.
        """
        own: dict[str, Any] = {each.name: each.default for each in dataclasses.fields(self) if each.name in _OF_VALUES}
        value = 0 if self.column or np.array_equal(self.valid, self.fill) else self.fill
        return dataclasses.replace(self, **{**own, "valid": value, "fill": value, "absent": True})

    @property
    def places(self) -> tuple[int, ...]:
        """The positions of all steps in `span`."""
        steps = range(self.first, self.first + self.width) if self.steps is None else self.steps
        first = self.span.first
        return tuple(step - first for step in steps)

    @property
    def step_bytes(self) -> int:
        """Bytes of one step in the array."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.array_dtype.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one row (one window) in the array."""
        return self.width * self.step_bytes


def pixel_values(output: Output) -> npt.NDArray[Any]:
    """Returns [C, 256]: the value of each number of a frame with `CHANNELS_FIRST`, for each channel.

    They have the array's dtype. Floats that are not normalised are divided by 255 in the dtype before rounding, as
    LeRobot divides them in float32.
    """
    numbers, channels = np.arange(256), output.shape[0]
    if output.dtype == "uint8":
        values = np.tile(numbers.astype(output.dtype), (channels, 1))
    elif output.mean is None or output.scale is None:
        values = np.tile(numbers.astype(output.dtype) / np.dtype(output.dtype).type(255), (channels, 1))
    else:
        values = ((numbers - output.mean[:, None]) * output.scale[:, None]).astype(output.dtype)
    with_half: npt.NDArray[Any] = values.astype(output.array_dtype)
    return with_half


def output_to_json(output: Output) -> dict[str, Any]:
    """Returns the fields that are not the default, as types of JSON."""
    plain: dict[str, Any] = {}
    for item in dataclasses.fields(output):
        value = getattr(output, item.name)
        if isinstance(value, np.ndarray | np.generic):
            value = value.tolist()
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(value).items()}
        if value is not item.default:
            # A list, because a saved specification is compared with a new one, and JSON has no tuples.
            plain[item.name] = list(value) if isinstance(value, tuple) else value
    return plain


def output_from_json(plain: Mapping[str, Any]) -> Output:
    """Returns the output of `output_to_json`.

    Raises:
        InvalidArgumentError: a field is unknown, missing or of another type.
    """
    fields = dict(plain)
    try:
        for name in ("mean", "scale"):
            if fields.get(name) is not None:
                fields[name] = np.array(fields[name], np.float64)
        if fields.get("table") is not None:
            fields["table"] = np.array(fields["table"])
        if fields.get("next_state") is not None:
            fields["next_state"] = NextState(**fields["next_state"])
        if fields.get("relative") is not None:
            own = dict(fields["relative"])
            fields["relative"] = RelativeTo(**{**own, "elements": tuple(own["elements"])})
        fields["shape"] = tuple(int(size) for size in fields["shape"])
        for name in ("discounts", "steps", "weights"):
            if fields.get(name) is not None:
                fields[name] = tuple(fields[name])
        fields["padding"] = Padding(fields.get("padding", Padding.FILL))
        return Output(**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"not an output of a batch: {error}", hint="give what SequenceLoader.spec() returned"
        ) from error


def check_batch_bytes(outputs: Sequence[Output], rows: int) -> None:
    """Checks that a batch of `rows` windows has at most 1 TiB.

    Raises:
        InvalidArgumentError: the batch would be larger.
    """
    # Python's integers do not overflow.
    size = rows * sum(output.span.row_bytes for output in outputs)
    if size > _MAX_BATCH_BYTES:
        widest = max(output.span.width for output in outputs)
        raise InvalidArgumentError(
            f"a batch of {rows:,} windows of up to {widest:,} steps would be {size / 2**30:,.0f} GiB",
            hint=f"choose batch_size, context and offsets so that it is less than {_MAX_BATCH_BYTES >> 30:,} GiB",
        )


def check_alike(outputs: Sequence[Output], others: Sequence[Output]) -> None:
    """Checks that windows of two datasets fit in one batch.

    Raises:
        InvalidArgumentError: the outputs differ in a key, the number of steps, a shape or a dtype.
    """
    left, right = (
        {o.key: (o.width, o.shape, o.half or o.dtype, o.squeeze_time, o.camera) for o in each}
        for each in (outputs, others)
    )
    for key in {**left, **right}:
        if left.get(key) != right.get(key):
            raise InvalidArgumentError(
                f"the datasets' batches differ in '{key}': (steps, shape, dtype, squeeze_time, camera) are "
                f"{left.get(key)} and {right.get(key)}",
                hint="choose common columns, give cameras one size with resize=(H, W), or batches of one dataset each",
            )
