"""Codecs of exported videos, and LeRobot's options of their encoders."""

from __future__ import annotations

from typing import get_args

from gear_data.errors import unknown_name
from gear_data.words import ExportCodec

#: The codecs that LeRobot writes, as `video_codec` takes them.
CODECS: tuple[ExportCodec, ...] = get_args(ExportCodec)
#: LeRobot's own choice.
DEFAULT_CODEC = "av1"
#: LeRobot's options: a key frame at every second frame makes random access cheap.
OPTIONS = {"g": "2", "crf": "30"}


def check_codec(codec: str) -> None:
    """Raises UnknownNameError if LeRobot does not write this codec."""
    if codec not in CODECS:
        raise unknown_name("video codec", codec, CODECS)
