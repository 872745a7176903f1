"""Augmenting images: resized crops, rotations and changes of colour, from uint8 to uint8.

A frame goes through its operations in planes of float32, one for each channel, with values from 0 to 255. It is rounded
once, at the end. Sums have one order, so equal arguments give equal bits on every CPU.
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

__all__ = ["BRIGHTNESS", "CONTRAST", "HUE", "NUMBERS", "RESIZED_CROP", "ROTATION", "SATURATION", "augment"]
