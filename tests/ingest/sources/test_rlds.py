"""Tests of RLDS, written by tensorflow_datasets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import BadEpisodeError, CorruptSourceError, MissingExtraError
from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.registry import open_source
from gear_data.storage.episode_block import BEGIN, END
from tests.support.checks import warning_codes


@pytest.fixture(scope="module")
def tfds() -> Any:
    pytest.importorskip("tensorflow", reason="the extra 'rlds' is not installed")
    return pytest.importorskip("tensorflow_datasets", reason="the extra 'rlds' is not installed")


def rlds_steps(rollout: Any) -> list[dict[str, Any]]:
    """Returns T + 1 steps. The last has the final observation, and invalid values."""
    length = len(rollout)
    steps = []
    for t in range(length + 1):
        final = t == length
        steps.append(
            {
                "observation": {
                    "state": rollout.final if final else rollout.columns["observations"][t],
                    "image": np.full((4, 4, 3), t, np.uint8),
                },
                "action": np.full(2, 99, np.float32) if final else rollout.columns["actions"][t],
                "reward": np.float32(99) if final else rollout.columns["rewards"][t],
                "is_first": t == 0,
                "is_last": final,
                "is_terminal": final and bool(rollout.columns["terminated"][-1]),
                "language_instruction": f"step {t}é",
            }
        )
    return steps


def write_rlds(tfds: Any, folder: Path, episodes: list[list[dict[str, Any]]]) -> Path:
    """Writes a dataset folder with three episodes per shard."""
    features = tfds.features.FeaturesDict(
        {
            "steps": tfds.features.Dataset(
                {
                    "observation": {
                        "state": tfds.features.Tensor(shape=(3,), dtype=np.float32),
                        "image": tfds.features.Image(shape=(4, 4, 3), encoding_format="png"),
                    },
                    "action": tfds.features.Tensor(shape=(2,), dtype=np.float32),
                    "reward": tfds.features.Scalar(dtype=np.float32),
                    "is_first": tfds.features.Scalar(dtype=np.bool_),
                    "is_last": tfds.features.Scalar(dtype=np.bool_),
                    "is_terminal": tfds.features.Scalar(dtype=np.bool_),
                    "language_instruction": tfds.features.Text(),
                }
            ),
            "episode_metadata": {"file_path": tfds.features.Text(), "seed": tfds.features.Scalar(dtype=np.int64)},
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    identity = tfds.core.DatasetIdentity(
        name="arm", version=tfds.core.Version("1.0.0"), data_dir=str(folder), module_name=__name__
    )
    info = tfds.core.DatasetInfo(builder=identity, description="arm rollouts", features=features)
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=3)
    writer.initialize_splits(["train"])
    for i, steps in enumerate(episodes):
        example = {"steps": steps, "episode_metadata": {"file_path": f"/raw/{i}", "seed": i + 7}}
        writer.add_examples({"train": [example]})
    writer.close_all()
    return folder


@pytest.fixture(scope="module")
def rollouts_and_folder(tfds: Any, sources: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    rollouts = sources.make_rollouts(11)
    folder = tmp_path_factory.mktemp("rlds") / "1.0.0"
    return rollouts, write_rlds(tfds, folder, [rlds_steps(rollout) for rollout in rollouts])


def test_steps_ends_finals_and_facts(rollouts_and_folder: tuple[Any, Path], tmp_path: Path) -> None:
    rollouts, folder = rollouts_and_folder
    report = gear_data.convert(folder.parent, tmp_path / "out")
    assert report.format == "rlds"
    assert not warning_codes(report)
    dataset = gear_data.open(tmp_path / "out")
    assert dataset.num_episodes == len(rollouts)
    for i, rollout in enumerate(rollouts):
        episode, final = dataset.episode(i), dataset.final(i) or {}
        for name in ("actions", "rewards", "terminated", "truncated"):
            np.testing.assert_array_equal(episode[name], rollout.columns[name], err_msg=f"{i} {name}")
        np.testing.assert_array_equal(episode["observations"], rollout.columns["observations"])
        np.testing.assert_array_equal(final["observations"], rollout.final)
        assert episode["observations.image"][:, 0, 0, 0].tolist() == list(range(len(rollout)))
        assert final["observations.image"][0, 0, 0] == len(rollout)
        assert list(episode["language_instruction"]) == [f"step {t}é" for t in range(len(rollout))]
    assert dataset.episodes["episode_metadata.file_path"].to_list() == [f"/raw/{i}" for i in range(len(rollouts))]
    assert dataset.episodes["episode_metadata.seed"].to_list() == [i + 7 for i in range(len(rollouts))]


def test_the_same_dataset_as_from_memory(rollouts_and_folder: tuple[Any, Path], tmp_path: Path) -> None:
    rollouts, folder = rollouts_and_folder
    columns = ["observations", "actions", "rewards"]
    report = gear_data.convert(folder, tmp_path / "out", columns=columns)
    episodes = [
        {
            "observations": np.concatenate([r.columns["observations"], r.final[None]]),
            **{name: r.columns[name] for name in ("actions", "rewards", "terminated", "truncated")},
        }
        for r in rollouts
    ]
    assert report.fingerprint == gear_data.convert(episodes, tmp_path / "memory").fingerprint


def test_units_are_the_whole_in_order(rollouts_and_folder: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import gear_data.ingest.sources.rlds as module

    monkeypatch.setattr(module, "UNIT_BYTES", 1)
    rollouts, folder = rollouts_and_folder
    source, _, _ = open_source(locate(folder, None), "auto", SourceOptions())
    units = [unit.position for unit in source.units()]
    assert [position.row for position in units] == [0, 3, 6, 9]
    blocks = [b for a, z in zip(units, [*units[1:], END], strict=True) for b in source.blocks(a, z)]
    assert units[0] == BEGIN
    expected = np.concatenate([r.columns["rewards"] for r in rollouts])
    np.testing.assert_array_equal(np.concatenate([b.columns["rewards"] for b in blocks]), expected)
    assert np.concatenate([b.rows for b in blocks]).tolist() == list(range(11))


def test_an_episode_cut_off_keeps_all_its_steps(tfds: Any, sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(3, short=False)
    episodes = [rlds_steps(rollout) for rollout in rollouts]
    episodes[1] = episodes[1][:-1]
    gear_data.convert(write_rlds(tfds, tmp_path / "in", episodes), tmp_path / "out")
    dataset = gear_data.open(tmp_path / "out")
    assert dataset.final(1) is None
    assert dataset.final(2) is not None
    np.testing.assert_array_equal(dataset.episode(1)["rewards"], rollouts[1].columns["rewards"])
    assert dataset.episode(1)["truncated"].tolist() == [False] * (len(rollouts[1]) - 1) + [True]


def test_bad_episodes(tfds: Any, sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(3, short=False)
    episodes = [rlds_steps(rollout) for rollout in rollouts]
    episodes[1] = [*episodes[1], *episodes[1]]
    folder = write_rlds(tfds, tmp_path / "in", episodes)
    with pytest.raises(BadEpisodeError, match=r"'is_last', row 1: is set at step"):
        gear_data.convert(folder, tmp_path / "out")
    assert gear_data.convert(folder, tmp_path / "skipped", on_bad_episode="skip").episodes == 2


def test_a_damaged_record_is_a_typed_error(tfds: Any, sources: Any, tmp_path: Path) -> None:
    folder = write_rlds(tfds, tmp_path / "in", [rlds_steps(rollout) for rollout in sources.make_rollouts(3)])
    record = next(folder.glob("*.tfrecord*"))
    data = bytearray(record.read_bytes())
    data[len(data) // 2] ^= 0xFF
    record.write_bytes(bytes(data))
    with pytest.raises(CorruptSourceError, match="tensorflow_datasets cannot read it"):
        gear_data.convert(folder, tmp_path / "out")


def fake_folder(folder: Path, class_name: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text("{}")
    features = {"pythonClassName": class_name, "featuresDict": {"features": {"steps": {"pythonClassName": class_name}}}}
    (folder / "features.json").write_text(json.dumps(features))
    return folder


def test_a_class_of_another_package_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil_module.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CorruptSourceError, match=r"evil_module\.Class"):
        gear_data.convert(fake_folder(tmp_path / "in", "evil_module.Class"), tmp_path / "out")
    assert not (tmp_path / "ran").exists()


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorflow", None)
    folder = fake_folder(tmp_path / "in", "tensorflow_datasets.core.features.features_dict.FeaturesDict")
    with pytest.raises(MissingExtraError, match=r"gear-data\[rlds\]"):
        gear_data.convert(folder, tmp_path / "out")
