"""LZF, the compression of h5py's filter `lzf`.

Importing this module needs Numba, which takes a second. Format: `lzf_d.c` of LibLZF 3.6, by Marc Lehmann.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gear_data.kernels.cpu.native import cached_njit


def unpack(data: bytes, limit: int) -> bytes:
    """Returns at most `limit` bytes of an LZF stream; none if the stream is damaged."""
    unpacked: npt.NDArray[np.uint8] = np.empty(limit, np.uint8)
    return unpacked[: _unpack(np.frombuffer(data, np.uint8), unpacked)].tobytes()


@cached_njit
def _unpack(data, out):  # type: ignore[no-untyped-def]
    """Unpacks a stream until its end, or until the output is full.

    Args:
        data: uint8 [n], the stream.
        out: uint8 [m], receives the bytes.

    Returns:
        The number of bytes; 0 if the stream is damaged.
    """
    at, done = np.int64(0), np.int64(0)
    while at < len(data) and done < len(out):
        control = np.int64(data[at])
        at += 1
        if control < 32:  # a run of control + 1 bytes
            length, distance = control + 1, np.int64(0)
            if at + length > len(data):
                return 0
        else:  # a run that the output has, up to 8192 bytes back; it may overlap itself
            length = (control >> 5) + 2
            if length == 9 and at < len(data):
                length += np.int64(data[at])
                at += 1
            if at >= len(data):
                return 0
            distance = ((control & 31) << 8) + np.int64(data[at]) + 1
            at += 1
            if distance > done:
                return 0
        length = min(length, len(out) - done)
        for i in range(length):
            out[done + i] = out[done + i - distance] if distance else data[at + i]
        at += 0 if distance else length
        done += length
    return done
