"""The checks before NVDEC decodes, with stand-ins for torchcodec and the driver.

No GPU is here. The stand-in for torchcodec decodes the container that it gets by PyAV.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
import torch

from gear_data.errors import CorruptShardError, DeviceError, DeviceMemoryError, MissingExtraError
from gear_data.video.decoding import nvdec, torchcodec
from gear_data.video.decoding.backends import decoder_version
from gear_data.video.decoding.frame_reader import FrameReader
from gear_data.video.decoding.options import DecodeOptions
from gear_data.video.file_index import VideoFile
from tests.support.cameras.encoded import ENCODINGS, decoded, encode, index_of, local_packets, video_index


class VideoDecoder:
    """torchcodec's, as far as the adapter uses it."""

    cpu_fallback: Any = ""
    devices: list[str] = []  # noqa: RUF012

    def __init__(self, data: bytes, *, dimension_order: str, num_ffmpeg_threads: int, device: str) -> None:
        assert (dimension_order, num_ffmpeg_threads) == ("NHWC", 1)
        self.devices.append(device)
        with av.open(io.BytesIO(data)) as container:
            self._frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]

    def get_frame_at(self, number: int) -> Any:
        return SimpleNamespace(data=torch.from_numpy(self._frames[number]))


class Library:
    """The driver's library of NVDEC. It knows H.264 4:2:0 of 8 bits."""

    def __init__(self, status: int = 0) -> None:
        self.status = status

    def cuvidGetDecoderCaps(self, place: Any) -> int:
        found = place._obj
        found.is_supported = (found.codec, found.chroma_format, found.bit_depth_minus_8) == (4, 1, 0)
        found.min_height, found.min_width, found.max_height, found.max_width = 16, 48, 4096, 8192
        found.max_macroblocks = 65536
        return self.status


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which every check passes."""
    monkeypatch.setattr(VideoDecoder, "devices", [])
    module = SimpleNamespace(__version__="0.13.0", decoders=SimpleNamespace(VideoDecoder=VideoDecoder))
    monkeypatch.setattr(torchcodec, "_torchcodec", lambda: module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(nvdec, "_open_library", Library)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nvdec") / "file.mp4"
    encode(path, ENCODINGS["h264 with B frames"], frames=12)
    return path


@pytest.fixture(scope="module")
def video(path: Path) -> VideoFile:
    return index_of(path)


def test_frames_come_from_the_device(gpu: None, path: Path) -> None:
    reader = FrameReader(video_index([path]), local_packets([path]), DecodeOptions(1, "nvdec", cache_bytes=0))
    out = np.empty((12, 48, 64, 3), np.uint8)
    reader.read(np.zeros(12, np.int64), np.arange(12), out)
    assert np.array_equal(out, decoded(path))
    assert set(VideoDecoder.devices) == {"cuda"}
    assert not reader.gives_planes(np.zeros(1, np.int64))


def test_the_device_on_which_a_reader_was_made_decodes(gpu: None, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads that decode begin with device 0."""
    entered: list[int] = []

    def enter(device: int) -> nullcontext[None]:
        entered.append(device)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "device", enter)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    reader = FrameReader(video_index([path]), local_packets([path]), DecodeOptions(2, "nvdec", cache_bytes=0))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    out = np.empty((12, 48, 64, 3), np.uint8)
    reader.read(np.zeros(12, np.int64), np.arange(12), out)
    assert np.array_equal(out, decoded(path))
    assert set(VideoDecoder.devices) == {"cuda:1"}
    assert set(entered) == {1}


def test_the_version_names_the_backend(gpu: None) -> None:
    assert decoder_version("nvdec") == "nvdec (torchcodec 0.13.0)"


def no_torchcodec(patch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise MissingExtraError("torchcodec cannot be imported: a reason")

    patch.setattr(torchcodec, "_torchcodec", refuse)


def old_torchcodec(patch: pytest.MonkeyPatch) -> None:
    patch.delattr(VideoDecoder, "cpu_fallback")


def no_gpu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.cuda, "is_available", lambda: False)


def forked(patch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess.\nand more")

    patch.setattr(torch.cuda, "synchronize", refuse)


def no_library(patch: pytest.MonkeyPatch) -> None:
    # This machine has no such driver.
    patch.undo()
    patch.setattr(nvdec, "version", lambda: "")
    patch.setattr(torch.cuda, "synchronize", lambda: None)
    patch.setattr(nvdec, "_LIBRARY", "libnvcuvid-missing.so.1")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (no_torchcodec, MissingExtraError, "torchcodec cannot be imported"),
        (old_torchcodec, MissingExtraError, r"torchcodec 0.13.0 does not say .*\n.*0.10 or later"),
        (no_gpu, DeviceError, r"torch sees none\n.*backend='pyav'"),
        (forked, DeviceError, r"CUDA does not work .*forked subprocess.\n.*'spawn'"),
        (no_library, DeviceError, r"libnvcuvid-missing.*\n.*NVIDIA_DRIVER_CAPABILITIES"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_the_machine_lacks(
    gpu: None,
    video: VideoFile,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[pytest.MonkeyPatch], None],
    error: type[Exception],
    message: str,
) -> None:
    change(monkeypatch)
    with pytest.raises(error, match=message):
        nvdec.nvdec_decoder(video)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codec": "mjpeg"}, "no codec mjpeg"),
        ({"pixel_format": "gbrp"}, "no pixel format gbrp"),
        ({"codec": "av1"}, "does not know the codec"),
        ({"pixel_format": "yuv420p10le"}, "does not know the codec"),
        ({"pixel_format": "yuv444p"}, "does not know the codec"),
        ({"height": 15}, "at least 16 x 48"),
        ({"width": 47}, "at least 16 x 48"),
        ({"height": 4097}, "at most 4096 x 8192"),
        ({"height": 4096, "width": 4112}, "at most 65536 blocks"),
    ],
    ids=str,
)
def test_what_the_gpu_does_not_decode(gpu: None, video: VideoFile, changes: dict[str, Any], message: str) -> None:
    nvdec.nvdec_decoder(replace(video, height=4096, width=4096))
    wanted = replace(video, **changes)
    what = f"NVDEC does not decode {wanted.codec} {wanted.pixel_format} of {wanted.height} x {wanted.width} pixels"
    with pytest.raises(DeviceError, match=rf"{what}: .*{message}.*\n.*backend='pyav'") as caught:
        nvdec.nvdec_decoder(wanted)
    assert caught.value.file == video.file


def test_a_driver_that_does_not_answer(video: VideoFile) -> None:
    with pytest.raises(DeviceError, match="CUDA error 201"):
        nvdec.check_capabilities(video, Library(201))


def test_a_fallback_to_the_cpu_is_an_error(gpu: None, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VideoDecoder, "cpu_fallback", "Falling back due to: NVcuvid unavailable")
    reader = FrameReader(video_index([path]), local_packets([path]), DecodeOptions(1, "nvdec"))
    with pytest.raises(DeviceError, match=r"on the CPU, not on cuda: .*NVcuvid unavailable") as caught:
        reader.read(np.zeros(1, np.int64), np.zeros(1, np.int64), np.empty((1, 48, 64, 3), np.uint8))
    assert caught.value.file == str(path)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("CUDA out of memory. Tried to allocate 2 MiB", DeviceMemoryError),
        ("cuvidCreateDecoder: CUDA_ERROR_OUT_OF_MEMORY", DeviceMemoryError),
        ("CUDA error: an illegal memory access was encountered", DeviceError),
        ("Could not decode the packet", CorruptShardError),
    ],
)
def test_a_gpu_that_fails_does_not_make_a_file_corrupt(
    gpu: None, path: Path, monkeypatch: pytest.MonkeyPatch, text: str, error: type[Exception]
) -> None:
    def fail(decoder: VideoDecoder, number: int) -> Any:
        raise RuntimeError(f"{text}\nand more")

    monkeypatch.setattr(VideoDecoder, "get_frame_at", fail)
    reader = FrameReader(video_index([path]), local_packets([path]), DecodeOptions(1, "nvdec", cache_bytes=0))
    with pytest.raises(error, match=f"torchcodec says: {text}"):
        reader.read(np.zeros(1, np.int64), np.zeros(1, np.int64), np.empty((1, 48, 64, 3), np.uint8))


def test_capabilities_have_the_drivers_layout() -> None:
    fields = {name: getattr(nvdec._Capabilities, name).offset for name, _ in nvdec._Capabilities._fields_}
    assert (fields["is_supported"], fields["max_width"], fields["min_width"], fields["min_height"]) == (24, 28, 40, 42)
    assert nvdec.ctypes.sizeof(nvdec._Capabilities) == 88
