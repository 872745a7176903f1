"""Section (j): frames of cameras, copied as YUV and converted by a kernel.

The reference is a copy of the finished array.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from gear_data.kernels.cuda.frames import RECORD, FrameArguments, convert_frames
from gear_data.video.decoding.yuv import YuvConversion, to_rgb, yuv_bytes
from gpu_sections.collection import CACHES
from gpu_sections.device import Gpu
from gpu_sections.report import Row, Section


@dataclass(frozen=True)
class FrameCase:
    """Frames of a batch.

    Attributes:
        frames: their number, all distinct.
        height, width: of a frame.
        itemsize: bytes of a number of the array: 1 for RGB, 4 for float32 with channels first.
        target: the least ratio of the time to copy the array to the time to copy and convert YUV.
    """

    frames: int
    height: int
    width: int
    itemsize: int
    target: float | None = None

    @property
    def name(self) -> str:
        kind = "uint8" if self.itemsize == 1 else "float32"
        return f"{self.frames} x {self.height} x {self.width} {kind}"

    @property
    def array_bytes(self) -> int:
        return self.frames * self.height * self.width * 3 * self.itemsize

    @property
    def yuv_bytes(self) -> int:
        return self.frames * yuv_bytes(self.height, self.width)


#: The targets follow from the bytes, with some time for the kernel.
CASES = (
    FrameCase(64, 480, 640, 1, 1.6),
    FrameCase(64, 480, 640, 4, 5.0),
    FrameCase(256, 224, 224, 1, 1.6),
    FrameCase(256, 224, 224, 4, 5.0),
    FrameCase(8, 1080, 1920, 1),
    FrameCase(32, 96, 96, 1),
)
QUICK_CASES = (CASES[0], CASES[1])
#: BT.709, limited range.
_CONVERSION = YuvConversion(128, 9539, 14686, 17305, -1747, -4366)


def frames(gpu: Gpu, quick: bool, left: Callable[[], float]) -> Section:
    """Runs (j): times to copy and convert frames.

    The first frame and the last one are compared with the CPU's before.

    Raises:
        RuntimeError: the kernel gives another frame.
    """
    section = Section([], notes=["kernel GB/s count the bytes that the kernel reads and writes"])
    for case in QUICK_CASES if quick else CASES:
        if left() < 5:
            section.left_out.append(case.name)
            continue
        with gpu.scope():
            section.rows.append(_measured(gpu, case))
    return section


def _measured(gpu: Gpu, case: FrameCase) -> Row:
    size = yuv_bytes(case.height, case.width)
    host = gpu.pinned(max(case.array_bytes, case.yuv_bytes))
    host[: case.yuv_bytes] = np.resize(
        np.random.default_rng(0).integers(0, 256, min(case.yuv_bytes, 1 << 24), np.uint8), case.yuv_bytes
    )
    records = np.zeros(case.frames, RECORD)
    records["slot"], records["conversion"] = np.arange(case.frames), _CONVERSION
    table = np.arange(256, dtype=np.float32) / np.float32(255)
    record_place, table_place = gpu.put(records.view(np.uint8)), gpu.put(table)
    # Each call has other memory, of four times the L2 together.
    sets = max(2, -(-CACHES * gpu.l2_bytes // (case.array_bytes + case.yuv_bytes)))
    places = [(gpu.device(case.array_bytes), gpu.device(case.yuv_bytes)) for _ in range(sets)]

    def convert(target: int, planes: int) -> None:
        arguments = FrameArguments(planes, size, record_place, case.frames, case.height, case.width, 0)
        convert_frames(gpu, target, arguments, None if case.itemsize == 1 else table_place, case.itemsize)

    def copy_yuv(target: int, planes: int) -> None:
        gpu.copy(planes, host.ctypes.data, case.yuv_bytes)

    def copy_and_convert(target: int, planes: int) -> None:
        copy_yuv(target, planes)
        convert(target, planes)

    def copy_array(target: int, planes: int) -> None:
        gpu.copy(target, host.ctypes.data, case.array_bytes)

    copy_and_convert(*places[0])
    for number in (0, case.frames - 1):
        rgb = to_rgb(host[number * size :][:size], case.height, case.width, _CONVERSION)
        expected = rgb if case.itemsize == 1 else table[rgb].transpose(2, 0, 1)
        at = places[0][0] + number * case.array_bytes // case.frames
        if not np.array_equal(gpu.get(at, expected.shape, expected.dtype), expected):
            raise RuntimeError(f"{case.name}: frame {number} differs from the CPU's")
    for place in places:
        copy_yuv(*place)
    kernel, both, array = (
        gpu.seconds([partial(call, *place) for place in places]) for call in (convert, copy_and_convert, copy_array)
    )
    values: dict[str, float | str | None] = {
        "MB as YUV": case.yuv_bytes / 1e6,
        "MB of the array": case.array_bytes / 1e6,
        "us kernel": kernel * 1e6,
        "kernel GB/s": (case.yuv_bytes + case.array_bytes) / kernel / 1e9,
        "us as YUV": both * 1e6,
        "us as the array": array * 1e6,
    }
    return Row(case.name, values, array / both, case.target)
