"""Camera: how the frames of a recorded camera are encoded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gear_data.common.keywords import suggest_fields
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.video.encoding.encoder import ENCODERS
from gear_data.words import CameraCodec

#: Options of FFmpeg's encoders. A key frame at every second frame makes random access cheap, as LeRobot's videos have
#: it. One thread an encoder: environments and cameras are encoded side by side.
_OPTIONS = {
    "h264": {"g": "2", "crf": "23", "preset": "veryfast", "threads": "1"},
    "av1": {"g": "2", "crf": "30", "preset": "8", "svtav1-params": "lp=1"},
    "mpeg4": {"g": "2", "qmin": "2", "qmax": "4", "threads": "1"},
}


@suggest_fields
@dataclass(frozen=True)
class Camera:
    """A column of frames that `Writer` records as video.

    Frames are uint8 [H, W, 3], RGB. Encoding is lossy.

    Attributes:
        fps: frames per second. Times in the video follow from it; the steps do not wait.
        codec: `h264`; `av1`, which is smaller and takes ten times as long; or `mpeg4`, which is larger and faster.
        options: further options of FFmpeg's encoder, such as `{"crf": "18"}` for better frames.

    Raises:
        InvalidArgumentError: `fps` is not above 0, or an option is no text.
        UnknownNameError: there is no such codec.
    """

    fps: float = 30
    codec: CameraCodec = "h264"
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.fps, int | float) or not 0 < self.fps < math.inf:
            raise InvalidArgumentError(f"fps must be above 0, not {self.fps!r}")
        if self.codec not in ENCODERS:
            raise unknown_name("video codec", str(self.codec), ENCODERS)
        if not all(isinstance(each, str) for pair in self.options.items() for each in pair):
            raise InvalidArgumentError(f"options must be text, not {dict(self.options)!r:.80}")

    @property
    def encoder_options(self) -> dict[str, str]:
        """All options of FFmpeg's encoder."""
        return {**_OPTIONS[self.codec], **self.options}
