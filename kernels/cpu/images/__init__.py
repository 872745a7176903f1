"""Augmenting images: resized crops, rotations and changes of colour, from uint8 to uint8; and YUV to RGB.

An augmented frame goes through its operations in planes of float32, one for each channel, with values from 0 to 255. It
is rounded once, at the end. Sums have one order, so equal arguments give equal bits on every CPU.
"""

from gear_data.kernels.cpu.images.frames import (
    BRIGHTNESS,
    CONTRAST,
    HUE,
    NUMBERS,
    RESIZED_CROP,
    ROTATION,
    SATURATION,
    augment,
)
from gear_data.kernels.cpu.images.yuv import planes_to_values

__all__ = [
    "BRIGHTNESS",
    "CONTRAST",
    "HUE",
    "NUMBERS",
    "RESIZED_CROP",
    "ROTATION",
    "SATURATION",
    "augment",
    "planes_to_values",
]
