"""Batches of a dataset that LeRobot wrote, against LeRobot's own reading."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

import gear_data
from gear_data import BatchOptions, SequenceLoader

FRONT = "observations.images.front"


@pytest.mark.processes
def test_batches_have_the_frames_that_lerobot_reads(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "lerobot_v30_video"
    gear_data.convert(source, tmp_path / "dataset", videos="link", progress=False)
    wanted = json.loads((source / "golden_frames.json").read_text())["torchcodec"]
    golden = {(each["episode_index"], each["frame_index"]): each["front"] for each in wanted}
    loader = SequenceLoader(
        gear_data.open(tmp_path / "dataset"), 64, preset="lerobot", columns=[FRONT], offsets={FRONT: [-3, 0]},
        sampler="shuffle", epochs=1, batch=BatchOptions(window_ids=True),
    )  # fmt: skip
    found = {}
    for batch in loader:
        rows = zip(
            batch["episode_id"].tolist(), batch["start"].tolist(), batch["observation.images.front"], strict=True
        )
        for episode, step, frames in rows:
            if (episode, step) in golden:
                numbers = (frames * 255).round().byte().permute(0, 2, 3, 1).contiguous()
                found[episode, step] = hashlib.sha256(numbers.numpy().tobytes()).hexdigest()
    assert found == golden
