"""SVT-AV1 run by root asks for real-time threads, which stop all other processes (root runs CI)."""

from __future__ import annotations

import os
from pathlib import Path

import av

from gear_data.video.encoding.encoder import VideoEncoder, open_encoder
from tests.support.cameras.filmed import moving_bar


def policies() -> set[int]:
    """Returns the scheduling policies of this process's threads."""
    return {os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")}


def test_threads_of_an_opened_encoder(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "bar.mp4"), "w") as container:
        stream = container.add_stream("libsvtav1", 10)
        stream.height, stream.width, stream.pix_fmt = 64, 64, "yuv420p"
        begun = len(os.listdir("/proc/self/task"))
        open_encoder(stream.codec_context)
        assert len(os.listdir("/proc/self/task")) > begun
        assert policies() == {os.SCHED_OTHER}
        for frame in moving_bar(9, 64, 64):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
        assert policies() == {os.SCHED_OTHER}


def test_threads_of_an_export(tmp_path: Path) -> None:
    encoder = VideoEncoder(tmp_path / "bar.mp4", "av1", 10, 64, 64, {"g": "2"})
    encoder.add(moving_bar(9, 64, 64), begins=True)
    assert policies() == {os.SCHED_OTHER}
    encoder.finish()
