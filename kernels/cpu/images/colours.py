"""Changes of colour, of float32 values from 0 to 255."""

from __future__ import annotations

import numpy as np
from numba import njit

_ZERO, _ONE, _TWO, _THREE, _FOUR, _FIVE, _SIX = (np.float32(value) for value in (0, 1, 2, 3, 4, 5, 6))
_SIXTH, _LARGEST = np.float32(1 / 6), np.float32(255)
#: Weights of red, green and blue in a gray image.
_RED, _GREEN, _BLUE = np.float32(0.2989), np.float32(0.587), np.float32(0.114)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _clamped(value):  # type: ignore[no-untyped-def]
    return min(max(value, _ZERO), _LARGEST)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def scale_values(values, factor, offset):  # type: ignore[no-untyped-def]
    """Multiplies values by a factor, and adds an offset."""
    for x in range(len(values)):
        values[x] = _clamped(factor * values[x] + offset)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def saturate(red, green, blue, factor):  # type: ignore[no-untyped-def]
    """Multiplies the distances of colours from gray by a factor."""
    for x in range(len(red)):
        gray = (_ONE - factor) * (_RED * red[x] + _GREEN * green[x] + _BLUE * blue[x])
        red[x] = _clamped(factor * red[x] + gray)
        green[x] = _clamped(factor * green[x] + gray)
        blue[x] = _clamped(factor * blue[x] + gray)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _channel(sixths, largest, spread):  # type: ignore[no-untyped-def]
    """Returns the value of a channel that is some sixths of the colour circle away from where it is smallest."""
    place = sixths - _SIX * np.floor(sixths * _SIXTH)
    return largest - spread * min(max(min(place, _FOUR - place), _ZERO), _ONE)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def turn_hues(red, green, blue, turns):  # type: ignore[no-untyped-def]
    """Turns hues around the colour circle. Saturation and value (HSV) stay."""
    for x in range(len(red)):
        r, g, b = red[x], green[x], blue[x]
        largest = max(r, max(g, b))
        spread = largest - min(r, min(g, b))
        difference = g - b if largest == r else (b - r if largest == g else r - g)
        sector = _ZERO if largest == r else (_TWO if largest == g else _FOUR)
        hue = sector + difference / (spread if spread > _ZERO else _ONE) + _SIX * turns
        red[x] = _channel(hue + _FIVE, largest, spread)
        green[x] = _channel(hue + _THREE, largest, spread)
        blue[x] = _channel(hue + _ONE, largest, spread)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def add_gray(red, green, blue, sums):  # type: ignore[no-untyped-def]
    for x in range(len(red)):
        sums[x] += _RED * red[x] + _GREEN * green[x] + _BLUE * blue[x]
