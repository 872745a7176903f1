"""TorchcodecDecoder: decodes groups of pictures by torchcodec."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import DeviceError, DeviceMemoryError, GearError, MissingExtraError
from gear_data.video.decoding.decoder import DecodeError, EncodedPacket, NoPlanesError, Picture, undecodable
from gear_data.video.decoding.matroska import CODECS, in_matroska
from gear_data.video.decoding.yuv import YuvConversion
from gear_data.video.file_index import VideoFile


@cache
def _torchcodec() -> Any:
    try:
        importlib.import_module("torchcodec.decoders")
        return importlib.import_module("torchcodec")
    except Exception as error:
        # It raises ImportError, OSError or RuntimeError. The first line has the reason.
        reason = str(error).strip().partition("\n")[0]
        raise MissingExtraError(
            f"torchcodec cannot be imported: {reason}",
            hint="install the torchcodec that fits torch, and FFmpeg's libraries; or pass VideoOptions(backend='pyav')",
        ) from error


def decoders() -> Any:
    """Returns the module `torchcodec.decoders`.

    Raises:
        MissingExtraError: torchcodec is not installed, or does not load.
    """
    return _torchcodec().decoders


class TorchcodecDecoder:
    """Decodes packets by torchcodec. See `Decoder`.

    torchcodec opens whole files. So it gets each group of pictures in a small container.

    Args:
        video: one of the files.
        device: torch's name of the device that decodes.

    Raises:
        MissingExtraError: torchcodec is not installed, or does not load.
        CorruptShardError: no container for the codec.
    """

    def __init__(self, video: VideoFile, device: str = "cpu") -> None:
        self._decoders = decoders()
        self._video, self._device = video, device
        if video.codec not in CODECS:
            raise undecodable(video, None, f"the backend torchcodec does not know codec '{video.codec}'")

    def decode(self, packets: Sequence[EncodedPacket], since: int) -> Iterator[Picture]:
        times = sorted(each.pts for each in packets)
        try:
            decoder = self._decoders.VideoDecoder(
                in_matroska(self._video, packets), dimension_order="NHWC", num_ffmpeg_threads=1, device=self._device
            )
            for number, pts in enumerate(times):
                if pts >= since:
                    image = decoder.get_frame_at(number).data.cpu().numpy()
                    # torchcodec knows after the first frame.
                    if self._device != "cpu" and decoder.cpu_fallback:
                        raise DeviceError(
                            f"torchcodec decodes on the CPU, not on {self._device}: {decoder.cpu_fallback}",
                            file=self._video.file,
                            hint="install FFmpeg's libraries with NVDEC; or pass VideoOptions(backend='pyav')",
                        )
                    yield Picture(pts, image, image.shape[0], image.shape[1], image.nbytes)
        except DeviceError:  # a RuntimeError, too
            raise
        except (RuntimeError, ValueError, IndexError) as error:
            reason = f"torchcodec says: {str(error).partition(chr(10))[0]}"
            of_device = None if self._device == "cpu" else _error_of_device(reason, self._video.file)
            raise of_device or DecodeError(reason) from error

    def write(self, picture: Picture, out: npt.NDArray[np.uint8]) -> None:
        if picture.image.shape == out.shape:
            np.copyto(out, picture.image)
            return
        import torch

        image = torch.from_numpy(picture.image).permute(2, 0, 1)[None].float()
        scaled = torch.nn.functional.interpolate(image, out.shape[:2], mode="bilinear", antialias=True)
        np.copyto(out, scaled[0].permute(1, 2, 0).round().clamp(0, 255).byte().numpy())

    def write_planes(self, picture: Picture, out: npt.NDArray[np.uint8]) -> YuvConversion:
        raise NoPlanesError("torchcodec gives RGB only")


def _error_of_device(reason: str, file: str) -> GearError | None:
    """Returns the error of a GPU that fails, or None if the GPU does not decode a frame."""
    if "out of memory" in reason.lower().replace("_", " "):
        hint = "decode with fewer threads, end other GPU processes, or pass VideoOptions(backend='pyav')"
        return DeviceMemoryError(f"the GPU has too little memory to decode: {reason}", file=file, hint=hint)
    if "CUDA error" in reason:
        return DeviceError(reason, file=file, hint="run `gear-data doctor`; this process may have to be restarted")
    return None


def version() -> str:
    """Returns the version of torchcodec and of the FFmpeg that it loaded.

    Raises:
        MissingExtraError: torchcodec is not installed, or does not load.
    """
    torchcodec = _torchcodec()
    return f"torchcodec {torchcodec.__version__}"
