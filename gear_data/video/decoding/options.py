"""DecodeOptions: how frames are decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gear_data.errors import InvalidArgumentError, unknown_name

Backend = Literal["auto", "pyav", "torchcodec", "nvdec"]
BACKENDS: tuple[Backend, ...] = ("auto", "pyav", "torchcodec", "nvdec")
#: Bytes of decoded frames that a process keeps by default.
CACHE_BYTES = 256 << 20


@dataclass(frozen=True)
class DecodeOptions:
    """How a `FrameReader` decodes.

    Attributes:
        threads: threads that decode, at least 1. None: the cores that this process may use. Calls at the same time
            share them, and each has one.
        backend: `pyav`, `torchcodec`, `nvdec` (a GPU decodes, through torchcodec; not run on a GPU yet), or `auto`,
            which is `pyav`.
        size: (height, width) of the frames that are read. None: as in the file.
        cache_bytes: decoded frames that the process keeps, in bytes. The limit holds for all readers of the process
            together. 0: this reader keeps nothing.
        strict: a frame in which PyAV reports damage is an error, like a frame that does not decode. FFmpeg's decoders
            notice most damage in H.264 and AV1, half of it in MPEG-4, and little in HEVC.

    Raises:
        InvalidArgumentError: a value is out of range.
        UnknownNameError: the backend does not exist.
    """

    threads: int | None = None
    backend: Backend = "auto"
    size: tuple[int, int] | None = None
    cache_bytes: int = CACHE_BYTES
    strict: bool = False

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise unknown_name("video backend", self.backend, BACKENDS)
        if self.threads is not None and self.threads < 1:
            raise InvalidArgumentError(
                f"threads is {self.threads}", hint="pass a positive number, or None for the cores"
            )
        if self.cache_bytes < 0:
            raise InvalidArgumentError(
                f"cache_bytes is {self.cache_bytes}", hint="pass 0 to keep nothing, or a positive number"
            )
        if self.size is not None and (len(self.size) != 2 or min(self.size) < 1):
            raise InvalidArgumentError(f"the size of frames is {self.size}", hint="pass (height, width), both positive")
