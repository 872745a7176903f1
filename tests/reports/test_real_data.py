"""Reports of real datasets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gear_data

#: Folder, columns to convert, sections that the page must have.
SOURCES = (
    ("hf_dt_hopper", None),
    ("d4rl/hopper_mixture-v5.hdf5", None),
    pytest.param("lerobot_v30_video", None, marks=pytest.mark.processes),
    ("lerobot_v21_g1", ["observations", "actions"]),
    ("gato_jat/babyai", None),
    ("gato_jat/atari-pong", None),
)


@pytest.mark.parametrize(("name", "columns"), SOURCES)
def test_a_page_is_small_and_has_every_episode(
    shared_data: Path, tmp_path: Path, name: str, columns: list[str] | None
) -> None:
    gear_data.convert(shared_data / name, tmp_path / "d", columns=columns, progress=False)
    dataset = gear_data.open(tmp_path / "d")
    report = dataset.report()
    assert report.save(tmp_path / "page.html").stat().st_size < 5_000_000
    assert len(report.drawings["table"]["id"]) == len(dataset)
    for column in report.facts["columns"]:
        if column["shape"] or column["dtype"] == "bool" or column["stride"] > 1:
            continue
        values = dataset.steps(column["name"], 0, len(dataset)).astype(np.float64)
        (found,) = column["dimensions"]
        assert found["quantiles"] == pytest.approx(
            np.quantile(values, report.facts["probabilities"]), rel=1e-4, abs=1e-6
        )
    viewer = report.drawings["viewer"]
    assert viewer["pictures"] == [spec.name for spec in dataset.schema.videos] or not dataset.schema.videos
    if viewer["pictures"]:
        for episode in viewer["episodes"]:
            steps, images = episode["frames"]["steps"], episode["frames"]["images"]
            assert (steps[0], steps[-1]) == (0, episode["length"] - 1)
            assert len(steps) >= min(episode["length"], 20)
            assert {len(each) for each in images} == {len(steps)}
            assert all(image.startswith("data:image/") for each in images for image in each)
