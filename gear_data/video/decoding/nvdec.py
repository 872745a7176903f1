"""Decoding by NVDEC, the video decoder of a GPU, through torchcodec.

Nothing here has run on a GPU yet. The checks say before the first frame whether the GPU decodes a file: torchcodec
itself would decode on the CPU, without a word.
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from gear_data.common.extras import import_extra
from gear_data.errors import DeviceError, MissingExtraError
from gear_data.video.decoding import torchcodec
from gear_data.video.file_index import VideoFile

#: The driver's library of NVDEC.
_LIBRARY = "libnvcuvid.so.1"
#: FFmpeg's names of codecs -> cudaVideoCodec.
_CODECS = {"mpeg4": 2, "h264": 4, "hevc": 8, "vp8": 9, "vp9": 10, "av1": 11}
#: FFmpeg's names of pixel formats -> cudaVideoChromaFormat, bits beyond 8.
_FORMATS = {
    "gray": (0, 0),
    "yuv420p": (1, 0), "yuvj420p": (1, 0), "yuv420p10le": (1, 2), "yuv420p12le": (1, 4),
    "yuv422p": (2, 0), "yuvj422p": (2, 0), "yuv422p10le": (2, 2),
    "yuv444p": (3, 0), "yuvj444p": (3, 0), "yuv444p10le": (3, 2), "yuv444p12le": (3, 4),
}  # fmt: skip
_OTHER = "pass VideoOptions(backend='pyav'), which decodes on the CPU"


class _Capabilities(ctypes.Structure):
    """CUVIDDECODECAPS: the first three fields are the question."""

    _fields_ = (
        ("codec", ctypes.c_int),
        ("chroma_format", ctypes.c_int),
        ("bit_depth_minus_8", ctypes.c_uint),
        ("reserved1", ctypes.c_uint * 3),
        ("is_supported", ctypes.c_ubyte),
        ("decoders", ctypes.c_ubyte),
        ("output_formats", ctypes.c_ushort),
        ("max_width", ctypes.c_uint),
        ("max_height", ctypes.c_uint),
        ("max_macroblocks", ctypes.c_uint),
        ("min_width", ctypes.c_ushort),
        ("min_height", ctypes.c_ushort),
        ("reserved2", ctypes.c_uint * 11),
    )


@dataclass(frozen=True)
class NvdecMaker:
    """Makes decoders on one CUDA device, in any thread.

    The current device is of a thread, and the threads of a reader begin with device 0.

    Attributes:
        device: number of the device; None: the thread's current one.
    """

    device: int | None

    def __call__(self, video: VideoFile) -> torchcodec.TorchcodecDecoder:
        return nvdec_decoder(video, self.device)


def nvdec_decoder(video: VideoFile, device: int | None = None) -> torchcodec.TorchcodecDecoder:
    """Makes a decoder of files like a given one.

    Decoded frames are copied to this machine's memory as RGB.

    Args:
        video: one of the files.
        device: number of the CUDA device; None: the current one.

    Raises:
        MissingExtraError: see `version`.
        DeviceError: CUDA does not work in this process, or NVDEC does not decode such files.
        CorruptShardError: see `TorchcodecDecoder`.
    """
    version()
    import torch

    with ExitStack() as stack:
        try:
            if device is not None:
                stack.enter_context(torch.cuda.device(device))
            # It makes the device's context current in this thread, in which the driver is asked.
            torch.cuda.synchronize()
        except (RuntimeError, AssertionError) as error:
            raise DeviceError(
                f"CUDA does not work in this process: {str(error).strip().partition(chr(10))[0]}",
                hint=f"start DataLoader workers with multiprocessing_context='spawn'; or {_OTHER}",
            ) from error
        check_capabilities(video, _open_library())
    return torchcodec.TorchcodecDecoder(video, device="cuda" if device is None else f"cuda:{device}")


def _open_library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise DeviceError(
            f"the driver's library of NVDEC cannot be loaded: {error}",
            hint=f"in a container, give it the driver's capability 'video' (NVIDIA_DRIVER_CAPABILITIES); or {_OTHER}",
        ) from error


def check_capabilities(video: VideoFile, library: Any) -> None:
    """Checks that NVDEC of the current CUDA device decodes files like a given one.

    Args:
        video: one of the files.
        library: the driver's library of NVDEC.

    Raises:
        DeviceError: it does not.
    """
    height, width = video.height, video.width
    what = f"NVDEC does not decode {video.codec} {video.pixel_format} of {height} x {width} pixels"

    def refuse(reason: str) -> DeviceError:
        return DeviceError(f"{what}: {reason}", file=video.file, hint=f"encode the videos again; or {_OTHER}")

    if video.codec not in _CODECS:
        raise refuse(f"it has no codec {video.codec}")
    if video.pixel_format not in _FORMATS:
        raise refuse(f"it has no pixel format {video.pixel_format}")
    chroma_format, more_bits = _FORMATS[video.pixel_format]
    found = _Capabilities(_CODECS[video.codec], chroma_format, more_bits)
    status = library.cuvidGetDecoderCaps(ctypes.byref(found))
    if status:
        raise refuse(f"the driver does not answer (CUDA error {status})")
    if not found.is_supported:
        raise refuse("this GPU does not know the codec with this pixel format")
    if height < found.min_height or width < found.min_width:
        raise refuse(f"frames have at least {found.min_height} x {found.min_width} pixels")
    if height > found.max_height or width > found.max_width:
        raise refuse(f"frames have at most {found.max_height} x {found.max_width} pixels")
    if -(-height // 16) * -(-width // 16) > found.max_macroblocks:
        raise refuse(f"frames have at most {found.max_macroblocks} blocks of 16 x 16 pixels")


def version() -> str:
    """Returns the name of this backend, and the version of torchcodec.

    Raises:
        MissingExtraError: torchcodec is not installed, does not load, or is older than 0.10.
        DeviceError: torch sees no GPU.
    """
    found = torchcodec.version()
    if not hasattr(torchcodec.decoders().VideoDecoder, "cpu_fallback"):
        raise MissingExtraError(
            f"{found} does not say whether a GPU decodes", hint=f"install torchcodec 0.10 or later; or {_OTHER}"
        )
    if not import_extra("torch", "torch").cuda.is_available():
        raise DeviceError("backend='nvdec' needs a GPU, and torch sees none", hint=_OTHER)
    return f"nvdec ({found})"
