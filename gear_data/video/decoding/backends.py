"""The libraries that decode, by name."""

from __future__ import annotations

from collections.abc import Callable

from gear_data.video.decoding.decoder import Decoder
from gear_data.video.decoding.options import Backend
from gear_data.video.decoding.pyav import PyavDecoder, version
from gear_data.video.file_index import VideoFile


def decoder_maker(backend: Backend) -> Callable[[VideoFile], Decoder]:
    """Returns the function that makes a decoder for files with the parameters of one file."""
    return PyavDecoder


def decoder_version(backend: Backend) -> str:
    """Returns the library that decodes and its version. Pixels may depend on it.

    Raises:
        MissingExtraError: the library is not installed, or does not load.
    """
    return version()
