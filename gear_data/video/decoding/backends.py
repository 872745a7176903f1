"""The libraries that decode, by name."""

from __future__ import annotations

from collections.abc import Callable

from gear_data.common.environment import current_cuda_device
from gear_data.video.decoding import nvdec, pyav, torchcodec
from gear_data.video.decoding.decoder import Decoder
from gear_data.video.decoding.options import Backend
from gear_data.video.decoding.pyav import exact_conversion
from gear_data.video.file_index import ColorProperties, VideoFile


def decoder_maker(backend: Backend) -> Callable[[VideoFile], Decoder]:
    """Returns the function that makes a decoder for files like a given one.

    Raises:
        MissingExtraError: the library is not installed, or does not load.
        DeviceError: the backend needs a GPU, and torch sees none.
    """
    decoder_version(backend)
    if backend == "nvdec":
        return nvdec.NvdecMaker(current_cuda_device())
    return torchcodec.TorchcodecDecoder if backend == "torchcodec" else pyav.PyavDecoder


def decoder_version(backend: Backend) -> str:
    """Returns the library that decodes and its version. Pixels may depend on it.

    Raises:
        MissingExtraError: the library is not installed, or does not load.
        DeviceError: the backend needs a GPU, and torch sees none.
    """
    if backend == "nvdec":
        return nvdec.version()
    return torchcodec.version() if backend == "torchcodec" else pyav.version()


def gives_planes(backend: Backend, pixel_format: str, height: int, width: int, colors: ColorProperties) -> bool:
    """Returns whether decoders give the YUV of frames with these properties.

    The answer may depend on this machine's processor.
    """
    return backend in ("auto", "pyav") and height % 2 == 0 and exact_conversion(pixel_format, width, colors) is not None
