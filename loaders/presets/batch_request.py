"""BatchRequest: the arguments of a loader for its preset, and columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gear_data.collection.output import RelativeTo
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.presets.offsets import ColumnSteps, ColumnWeights
from gear_data.schema import ColumnSpec, Schema

Normalization = Mapping[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]


@dataclass(frozen=True)
class BatchRequest:
    """A loader's arguments for its preset.

    Attributes:
        schema: schema of the dataset.
        context: steps of a sequence.
        columns: columns to add to the preset's own. For a preset of all columns: the columns of the batch. None: none
            added, or all. `next_X`, if the dataset has no such column, is column X of the next step.
        offsets: column -> steps relative to the window's first step: a range, or a tuple of listed steps.
        normalize: column -> (mean, std), float64 [elements] or [1]; of images also [channels]; of relative columns also
            [steps, elements].
        float_dtype: dtype of float columns; None: the preset's.
        n_step: if not None, the batch has `n_step_returns`, discounted sums of this many rewards.
        discount: discount of `n_step`.
        relative: column -> what is subtracted from it.
        weights: column of `offsets` -> for each listed step, the share of the step after it; others hold their steps.
        chosen: key -> the columns or facts, of which each window has one.
    """

    schema: Schema
    context: int
    columns: tuple[str, ...] | None
    offsets: ColumnSteps
    normalize: Normalization
    float_dtype: str | None
    n_step: int | None = None
    discount: float = 1.0
    relative: Mapping[str, RelativeTo] = field(default_factory=dict)
    weights: ColumnWeights = field(default_factory=dict)
    chosen: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class BatchColumn:
    """One column of a batch.

    Attributes:
        spec: the column that is read.
        name: the requested name: `spec.name`, or `next_` and `spec.name`.
        key: key in the batch.
        own: whether the batch format itself has the column, and a request did not add it.
    """

    spec: ColumnSpec
    name: str
    key: str
    own: bool

    @property
    def next_step(self) -> bool:
        """Whether each step has the value of the next step."""
        return self.name != self.spec.name


def affine(
    request: BatchRequest, name: str, *, epsilon: float, steps: int | None = None
) -> tuple[npt.NDArray[np.float64] | None, npt.NDArray[np.float64] | None]:
    """Returns (mean, 1 / (std + epsilon)); a std of 0 without epsilon counts as 1.

    They have the shape of a step; of images with numbers for each channel, a shape that broadcasts to it.

    Args:
        request: the arguments for the preset.
        name: the column.
        epsilon: is added to the std.
        steps: number of steps of a relative column, which may have numbers for each step: the result is
            [steps, elements]. None: of other columns.
    """
    if name not in request.normalize:
        return None, None
    mean, std = request.normalize[name]
    spec = request.schema[name]
    shape, channels = spec.shape or (1,), _channels(spec)
    by_channel = {np.size(mean), np.size(std)} <= {1, math.prod(channels)}
    if channels and (by_channel or spec.video is not None):
        shape = channels
    size = math.prod(shape)
    if steps is not None and steps * size in (np.size(mean), np.size(std)):
        shape, size = (steps, size), steps * size
        mean, std = (np.broadcast_to(each, shape) if np.size(each) in (1, shape[1]) else each for each in (mean, std))
    if np.size(mean) not in (1, size) or np.size(std) not in (1, size):
        raise InvalidArgumentError(
            f"normalize has {np.size(mean)} means and {np.size(std)} deviations for {size} elements", column=name
        )
    mean, std = (np.broadcast_to(np.ravel(a), size).astype(np.float64) for a in (mean, std))
    std = std + epsilon
    inverse = 1.0 / np.where(std == 0, 1.0, std)
    mean, inverse = mean.reshape(shape), inverse.reshape(shape)
    if steps is None:
        return mean, inverse
    wide = (steps, mean.shape[-1])
    return np.broadcast_to(mean, wide).copy(), np.broadcast_to(inverse, wide).copy()


def _channels(spec: ColumnSpec) -> tuple[int, ...]:
    """Returns the shape of one number for each channel of an image, which broadcasts to a step; () of others."""
    if len(spec.shape) != 3:
        return ()
    if spec.shape[-1] <= 4:
        return (spec.shape[-1],)
    return (spec.shape[0], 1, 1) if spec.shape[0] <= 4 else ()
