"""The values of depth's numbers, against LeRobot's own code and a loop in plain Python."""

from __future__ import annotations

import math
import struct
import sys
from typing import Any

import numpy as np
import pytest
import xxhash

from gear_data.errors import ManifestError
from gear_data.schema import DepthFormat, Schema, VideoFormat, VideoRecord, video_column
from gear_data.video.depth import depth_values

#: (depth_min, depth_max, shift, use_log) -> xxh3-64 of float32 [4096] in mm, and in m. LeRobot's `dequantize_depth`
#: (commit 7427f31) gave them for all numbers as a tensor. torch's exponential may depend on the processor, so metres in
#: logarithmic form have none.
LEROBOT: dict[tuple[float, float, float, bool], tuple[str, str | None]] = {
    (0.01, 10.0, 3.5, True): ("b7e62d412fd5dd17", None),
    (0.01, 10.0, 3.5, False): ("3e800e031fc829f5", "38197a4c30692e14"),
    (0.05, 5.0, 0.0, True): ("78f1742c646b779b", None),
    (0.3, 4.0, 1.0, True): ("09bfd8447bfca356", None),
    (0.0, 2.0, 0.5, False): ("e68ef6b8147e154c", "3f8769455ac3999e"),
    (0.2, 70.0, 0.0, False): ("4452a46c8ae2c2a7", "07f0d32497a3e409"),
}


def float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def plain(number: int, depth: DepthFormat) -> float:
    """Returns LeRobot's formula, each step rounded to float32."""
    first, last = depth.minimum, depth.maximum
    if depth.logarithmic:
        first, last = math.log(first + depth.shift), math.log(last + depth.shift)
    value = float32(float32(number * float32((last - first) / 4095)) + float32(first))
    if depth.logarithmic:
        value = float32(float32(math.exp(value)) - float32(depth.shift))
    value = min(max(value, float32(depth.minimum)), float32(depth.maximum))
    return value if depth.unit == "m" else min(max(float(round(float32(value * 1000))), 0.0), 65535.0)


@pytest.mark.parametrize("form", LEROBOT)
def test_values(form: tuple[float, float, float, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    for place, unit in enumerate(("mm", "m")):
        depth = DepthFormat(*form, unit)  # type: ignore[arg-type]
        found = depth_values(depth)
        assert found.dtype == np.float32
        expected = LEROBOT[form][place]
        assert expected is None or xxhash.xxh3_64_hexdigest(found.tobytes()) == expected
        one_bit = np.spacing(np.float32(form[1] + form[2])) if expected is None else 0.0
        loop = np.array([plain(number, depth) for number in range(4096)], np.float32)
        assert np.abs(found - loop).max() <= one_bit
        if form[3]:
            monkeypatch.setitem(sys.modules, "torch", None)
            depth_values.cache_clear()
            np.testing.assert_array_equal(depth_values(depth), loop)
            monkeypatch.undo()
            depth_values.cache_clear()


def test_metres_have_the_bits_of_torch() -> None:
    torch = pytest.importorskip("torch")
    form = (0.01, 10.0, 3.5)
    first, last = (math.log(each + form[2]) for each in form[:2])
    expected = torch.arange(4096, dtype=torch.float32).mul_((last - first) / 4095).add_(first).exp_().sub_(form[2])
    expected.clamp_(*form[:2])
    np.testing.assert_array_equal(depth_values(DepthFormat(*form, True, "m")), expected.numpy())


@pytest.mark.parametrize("unit", ["mm", "m"])
@pytest.mark.parametrize("form", LEROBOT)
def test_lerobot_itself(form: tuple[float, float, float, bool], unit: Any) -> None:
    theirs = pytest.importorskip("lerobot.datasets.depth_utils", reason="LeRobot 0.6 is not installed")
    import torch

    numbers = torch.arange(4096, dtype=torch.int32).to(torch.uint16).reshape(1, 1, 64, 64)
    expected = theirs.dequantize_depth(numbers, *form, output_unit=unit).numpy().reshape(-1)
    np.testing.assert_array_equal(depth_values(DepthFormat(*form, unit)), expected)


def test_the_schema_keeps_depth() -> None:
    depth = DepthFormat(0.01, 10.0, 3.5, True, "m")
    schema = Schema((), (video_column("observations.depth", VideoFormat(4, 6, 1, 30.0, depth)),))
    assert (schema.videos[0].dtype, schema.videos[0].shape) == ("float32", (4, 6, 1))
    (plain,) = schema.videos_to_json()
    record = VideoRecord(**{**plain, "depth": DepthFormat(**plain["depth"])})
    assert Schema.from_records((), [record]) == schema
    for wrong in (DepthFormat(1.0, 1.0, 0.0, False, "m"), DepthFormat(-4.0, 1.0, 3.5, True, "m"), depth):
        channels = 3 if wrong is depth else 1
        with pytest.raises(ManifestError, match="channels can have depth"):
            Schema.from_records((), [VideoRecord("d", None, 4, 6, channels, None, wrong)])
