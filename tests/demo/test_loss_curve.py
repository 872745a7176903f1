"""Loss curves: first and last losses, and the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gear_data.demo.loss_curve import loss_ends, write_loss_curve
from gear_data.errors import InvalidArgumentError


def test_loss_ends() -> None:
    assert loss_ends([4.0] * 20 + [9.0] * 60 + [1.0] * 20) == (4.0, 1.0)
    assert loss_ends([8.0, 4.0, 2.0, 1.0, 0.0]) == (8.0, 0.0)
    assert loss_ends([3.0]) == (3.0, 3.0)
    with pytest.raises(InvalidArgumentError):
        loss_ends([])


@pytest.mark.parametrize("count", [1, 200])
def test_loss_curve(tmp_path: Path, count: int) -> None:
    from PIL import Image

    losses = [1 / (i + 3) for i in range(count)]
    as_json, as_png = write_loss_curve(losses, tmp_path / "run")
    assert json.loads(as_json.read_text()) == {"loss": losses}
    with Image.open(as_png) as image:
        image.load()
        assert image.format == "PNG"
        colors = image.convert("RGB").getcolors(1 << 20)
        assert colors is not None and len(colors) > 10  # the image is not empty
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["loss.json", "loss.png"]
