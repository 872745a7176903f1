"""Checks that frames.cu converts YUV as the CPU does, on any runner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gear_data.kernels.cuda import frames as launches
from gear_data.kernels.cuda.frames import RECORD, FrameArguments
from gear_data.video.decoding.yuv import to_rgb, yuv_bytes, yuv_conversion
from tests.support.cuda.runner import Runner


class Case:
    """Random frames of one size, and a batch of them.

    The batch has repeated frames and padding. `rgb` is the batch, uint8 [frames, H, W, 3]; `padding` says which frames
    are padding.
    """

    def __init__(self, height: int, width: int, *, slots: int = 3, frames: int = 5, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.height, self.width = height, width
        self.slot_bytes = -(-yuv_bytes(height, width) // 16) * 16
        self.planes = rng.integers(0, 256, (slots, self.slot_bytes), np.uint8)
        # The ends of the range are where results are limited.
        self.planes[0, : yuv_bytes(height, width)] = rng.choice([0, 255, 16, 235], yuv_bytes(height, width))
        conversions = [yuv_conversion("yuv420p", *kind) for kind in ((1, 1), (5, 2), (9, 1))]
        self.records = np.zeros(frames, RECORD)
        self.records["slot"] = np.resize(np.append(rng.permutation(slots), -1), frames)
        self.padding = self.records["slot"] < 0
        self.rgb = np.zeros((frames, height, width, 3), np.uint8)
        for number, slot in enumerate(self.records["slot"].tolist()):
            if slot >= 0:
                conversion = conversions[slot % 3]
                assert conversion is not None
                self.records["conversion"][number] = conversion
                self.rgb[number] = to_rgb(
                    self.planes[slot, : yuv_bytes(height, width)], height, width, conversion
                )  # fmt: skip

    def arguments(self, runner: Runner, fill: int) -> FrameArguments:
        return FrameArguments(
            runner.put(self.planes, align=16), self.slot_bytes, runner.put(self.records.view(np.uint8), align=16),
            len(self.records), self.height, self.width, fill,
        )  # fmt: skip


#: Widths of 4 * n and 4 * n + 2; a frame of less than a block, of several pieces, and of the smallest size.
SIZES = [(2, 2), (6, 10), (4, 4), (48, 62), (90, 130), (128, 160)]


class FramesChecks:
    """Checks for the fixture `runner`."""

    @pytest.fixture(autouse=True)
    def _cleared(self, runner: Runner) -> Any:
        yield
        runner.clear()

    @pytest.mark.parametrize("size", SIZES)
    def test_bytes(self, runner: Runner, size: tuple[int, int]) -> None:
        case = Case(*size)
        target = runner.put(np.full(case.rgb.nbytes, 77, np.uint8), align=16)
        launches.convert_frames(runner, target, case.arguments(runner, 9))
        expected = np.where(case.padding[:, None, None, None], 9, case.rgb)
        assert np.array_equal(runner.get(target, case.rgb.shape, np.uint8), expected)

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    @pytest.mark.parametrize("size", [(2, 2), (6, 10), (90, 130)])
    def test_values(self, runner: Runner, size: tuple[int, int], dtype: str) -> None:
        case = Case(*size, seed=1)
        table = (np.arange(256).astype(dtype) / np.dtype(dtype).type(255)).astype(dtype)
        bits = np.dtype(f"u{table.itemsize}")
        fill = int(np.array(-0.5, dtype).view(bits))
        target = runner.put(np.full(case.rgb.nbytes * table.itemsize, 77, np.uint8), align=16)
        launches.convert_frames(
            runner, target, case.arguments(runner, fill), runner.put(table, align=16), table.itemsize
        )
        expected = np.where(case.padding[:, None, None, None], table.dtype.type(-0.5), table[case.rgb])
        expected = expected.transpose(0, 3, 1, 2)
        assert np.array_equal(runner.get(target, expected.shape, dtype), expected)

    def test_every_number(self, runner: Runner) -> None:
        """All y, u and v by themselves, and all pairs of u and v."""
        case = Case(512, 512, slots=1, frames=1)
        pairs = np.arange(1 << 16)
        case.planes[0, 1 << 18 : 3 << 17] = np.concatenate([pairs >> 8, pairs & 255])
        conversion = yuv_conversion("yuv420p", 1, 1)
        assert conversion is not None
        case.records["conversion"], case.records["slot"] = conversion, 0
        expected = to_rgb(case.planes[0, : 3 << 17], 512, 512, conversion)
        target = runner.put(np.zeros(expected.nbytes, np.uint8), align=16)
        launches.convert_frames(runner, target, case.arguments(runner, 0))
        assert np.array_equal(runner.get(target, expected.shape, np.uint8), expected)

    def test_no_frames(self, runner: Runner) -> None:
        launches.convert_frames(runner, 0, FrameArguments(0, 16, 0, 0, 4, 4, 0))
