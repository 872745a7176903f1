"""Without HuggingFace `datasets`, only the sources that need it are refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import gear_data
from gear_data.errors import MissingExtraError, SourceNotFoundError
from tests.conftest import Sources
from tests.support.rollouts import Rollout


@pytest.fixture(autouse=True)
def _no_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)


def test_hdf5_and_parquet_are_converted(sources: Sources, rollouts: list[Rollout], tmp_path: Path) -> None:
    for source in (
        sources.write_d4rl(tmp_path / "source.hdf5", rollouts),
        sources.write_episodes(tmp_path / "source.parquet", rollouts),
    ):
        target = tmp_path / f"{source.suffix}-dataset"
        assert gear_data.convert(source, target, progress=False).episodes == len(rollouts)
        assert gear_data.open(target).to_polars(rows="episodes").height == len(rollouts)


@pytest.mark.parametrize(
    ("name", "text"),
    [("s.csv", "episode_id,rewards\n0,1.0\n"), ("s.jsonl", '{"episode_id": 0, "rewards": 1.0}\n')],
)
def test_text_needs_it(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(MissingExtraError, match=r"datasets cannot be imported: .*\n.*pip install datasets"):
        gear_data.convert(tmp_path / name, tmp_path / "d", progress=False)


def test_a_name_that_is_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="no such file or folder, and it cannot be read as a hub dataset"):
        gear_data.convert("some/name", tmp_path / "d", progress=False)


def test_a_dataset_of_hugging_face_needs_it(rollouts_path: Path) -> None:
    with pytest.raises(MissingExtraError, match="pip install datasets"):
        gear_data.open(rollouts_path).to_hf()
