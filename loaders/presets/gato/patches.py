"""Patches of images, and their positions.

After Reed et al., "A Generalist Agent" (2022), section 2.1 and appendix C.3. The interval of rows of a patch, as a
share of the image, becomes an interval of `positions` numbers. In training a number is drawn from the interval, in
evaluation it is the rounded mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError
from gear_data.kernels import cpu
from gear_data.loaders.presets.batch_format import Tokens
from gear_data.selection.windows import Int64Array

Pixels = npt.NDArray[np.uint8]
_WORD = np.uint64(32)


def image_shape(shape: Sequence[int], channels: int, column: str) -> tuple[int, int, int]:
    """Returns height, width and channels of images of a shape: [H, W], [H, W, C] or [C, H, W].

    Raises:
        InvalidArgumentError: another shape, or more channels than `channels`.
    """
    sides: tuple[int, ...] = tuple(shape)
    if len(sides) == 2:
        sides = (*sides, 1)
    elif len(sides) == 3 and sides[2] > 4 and sides[0] <= 4:
        sides = (sides[1], sides[2], sides[0])
    if len(sides) != 3 or sides[2] > 4:
        raise InvalidArgumentError(
            f"a step has {list(shape)}, and patches are of images [H, W], [H, W, C] or [C, H, W]",
            column=column,
            hint="give preset_options={'tokens': {'patch': 0}}: images then stay beside the tokens",
        )
    if sides[2] > channels:
        raise InvalidArgumentError(
            f"images have {sides[2]} channels, and patches have {channels}",
            column=column,
            hint=f"give preset_options={{'tokens': {{'channels': {sides[2]}}}}}",
        )
    return sides[0], sides[1], sides[2]


def patch_grid(height: int, width: int, patch: int) -> tuple[int, int]:
    """Returns the rows and columns of an image's patches; patches at its end may go beyond it."""
    return -(-height // patch), -(-width // patch)


def cut_patches(images: Pixels, tokens: Tokens, column: str) -> Pixels:
    """Returns the patches of images [n, ...], row by row: uint8 [n, patches, patch, patch, channels].

    Beyond the image, and in channels that it lacks, they hold zeros.
    """
    height, width, channels = image_shape(images.shape[1:], tokens.channels, column)
    if images.shape[1:] == (channels, height, width) and images.shape[3] != channels:
        images = images.transpose(0, 2, 3, 1)
    side, (rows, columns) = tokens.patch, patch_grid(height, width, tokens.patch)
    whole = np.zeros((len(images), rows * side, columns * side, tokens.channels), np.uint8)
    whole[:, :height, :width, :channels] = images.reshape(len(images), height, width, channels)
    cut = whole.reshape(len(images), rows, side, columns, side, tokens.channels).swapaxes(2, 3)
    return cut.reshape(len(images), rows * columns, side, side, tokens.channels)


def position_intervals(height: int, width: int, tokens: Tokens) -> tuple[Int64Array, Int64Array]:
    """Returns the first position of each patch, and the number of its positions: int64 [patches, 2].

    The last axis is row, column. Patch r of R has the positions floor(r V / R) to floor((r + 1) V / R) - 1 of V.
    """
    counts = patch_grid(height, width, tokens.patch)
    place = np.stack(np.divmod(np.arange(counts[0] * counts[1]), counts[1]), 1)
    first = place * tokens.positions // np.array(counts)
    after = (place + 1) * tokens.positions // np.array(counts)
    return first, np.maximum(after - first, 1)


def patch_positions(first: Int64Array, size: Int64Array, images: int, draws: tuple[int, int, int] | None) -> Int64Array:
    """Returns the position of each patch of images of one row: int64 [images * patches, 2].

    Args:
        first, size: see `position_intervals`.
        images: number of images.
        draws: seed, step and row of the global batch, by which positions are drawn; None: the rounded means.
    """
    if draws is None:
        return np.tile(first + size // 2, (images, 1))
    seed, step, row = draws
    random = cpu.random
    words = np.empty(images * size.size, np.int64)
    seed_of_row = np.uint64(random.word64(np.uint64(seed), random.DOMAIN_PATCHES, step, row, 0))
    random.draw_words(seed_of_row, random.DOMAIN_PATCHES, 0, words)
    high = words.view(np.uint64).reshape(images, *size.shape) >> _WORD
    drawn: Int64Array = first + ((high * size.astype(np.uint64)) >> _WORD).astype(np.int64)
    return drawn.reshape(-1, 2)
