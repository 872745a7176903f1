"""Tests of RLDS, written by tensorflow_datasets."""

from __future__ import annotations

import json
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    EmptySourceError,
    InvalidArgumentError,
    MissingExtraError,
    UnknownFormatError,
)
from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.registry import open_source
from gear_data.storage.episode_block import BEGIN, END
from tests.fuzz.damage_formats import masked_crc
from tests.support.advice.libraries import with_sequence
from tests.support.checks import warning_codes
from tests.support.encoded_images import encode_image


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


Episodes = list[list[dict[str, Any]]]


def write_rlds(tfds: Any, folder: Path, episodes: Episodes, val: Episodes | None = None, encoded: bool = False) -> Path:
    """Writes a dataset folder with three episodes per shard, and perhaps `val`."""
    splits = {"train": episodes} if val is None else {"train": episodes, "val": val}
    features = tfds.features.FeaturesDict(
        {
            "steps": tfds.features.Dataset(
                {
                    "observation": {
                        "state": tfds.features.Tensor(shape=(3,), dtype=np.float32),
                        "image": tfds.features.Tensor(shape=(), dtype=np.object_)
                        if encoded
                        else tfds.features.Image(shape=(4, 4, 3), encoding_format="png"),
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
    writer.initialize_splits(list(splits))
    for name, written in splits.items():
        for i, steps in enumerate(written):
            example = {"steps": steps, "episode_metadata": {"file_path": f"/raw/{i}", "seed": i + 7}}
            writer.add_examples({name: [example]})
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


@pytest.fixture(scope="module")
def two_splits(tfds: Any, sources: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a dataset with 11 episodes in `train` and 4 in `val`."""
    train, val = sources.make_rollouts(11, seed=1), sources.make_rollouts(4, seed=2)
    folder = tmp_path_factory.mktemp("splits") / "arm/1.0.0"
    return write_rlds(tfds, folder, [rlds_steps(r) for r in train], [rlds_steps(r) for r in val])


def rewards_by_tfds(tfds: Any, folder: Path, split: str) -> list[Any]:
    """Returns the rewards of each episode as TFDS reads the split."""
    builder = tfds.builder_from_directory(str(folder))
    config = tfds.ReadConfig(interleave_cycle_length=1)
    episodes = builder.as_dataset(split=split, shuffle_files=False, read_config=config)
    return [np.array([step["reward"] for step in tfds.as_numpy(e["steps"])])[:-1] for e in episodes]


@pytest.mark.parametrize(
    "split",
    ["train", "val", "train+val", "train[:10%]", "train[45%:55%]", "train[-1%:]", "train[4:9]", "val[-2:]+train[3:]"],
)
def test_a_split_is_the_one_of_tfds(split: str, tfds: Any, two_splits: Path, tmp_path: Path) -> None:
    # One per cent of 11 episodes is none, and 45% to 55% are the episodes 5 to 6: per cent are rounded.
    expected = rewards_by_tfds(tfds, two_splits, split)
    if not expected:
        with pytest.raises(EmptySourceError, match=r"no episode\n.*train \(11\), val \(4\)"):
            gear_data.convert(two_splits, tmp_path / "out", split=split)
        return
    gear_data.convert(two_splits.parent, tmp_path / "out", split=split)
    dataset = gear_data.open(tmp_path / "out")
    assert dataset.num_episodes == len(expected)
    for i, rewards in enumerate(expected):
        np.testing.assert_array_equal(dataset.episode(i)["rewards"], rewards)


def test_units_of_a_part_of_both_splits(sources: Any, two_splits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gear_data.ingest.sources.rlds as module

    monkeypatch.setattr(module, "UNIT_BYTES", 1)
    location = locate(two_splits, "train[2:10]+val[1:]")
    units = open_source(location, "auto", SourceOptions())[0].units()
    assert [unit.position.row for unit in units] == [0, 1, 4, 7, 8, 10]  # shards have three episodes
    assert sources.check_units(lambda: open_source(location, "auto", SourceOptions())[0]) == 6


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (None, r"several splits: train, val(.|\n)*--split"),
        ("test", r"no split 'test': (.|\n)*its splits: train, val"),
        ("train[", r"no split 'train\['"),
        ("train[:99]", r"(.|\n)*incompatible with 11 examples"),
        ("train[:101%]", r"100"),
        ("train[3]", r"slice syntax"),
    ],
)
def test_a_split_that_does_not_exist(split: str | None, message: str, two_splits: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        gear_data.convert(two_splits, tmp_path / "out", split=split)


def test_several_versions_are_named(tfds: Any, sources: Any, tmp_path: Path) -> None:
    steps = [rlds_steps(rollout) for rollout in sources.make_rollouts(3)]
    for version in ("1.0.0", "1.1.0"):
        write_rlds(tfds, tmp_path / "arm" / version, steps)
    with pytest.raises(UnknownFormatError, match=r"versions of one: 1\.0\.0, 1\.1\.0\n.*arm/1\.1\.0$"):
        gear_data.convert(tmp_path / "arm", tmp_path / "out")
    assert gear_data.convert(tmp_path / "arm/1.1.0", tmp_path / "out").episodes == 3


def test_the_splits_of_a_real_dataset(tfds: Any, shared_data: Path, tmp_path: Path) -> None:
    """Its episodes are cut off after ten rows, so that no row has `is_last`."""
    folder = shared_data / "octo_bridge_rlds/bridge_dataset/1.0.0"
    with pytest.raises(InvalidArgumentError, match="several splits: train, val"):
        gear_data.convert(folder, tmp_path / "out")
    builder = tfds.builder_from_directory(str(folder))
    for split in ("val", "train[10%:30%]"):
        gear_data.convert(folder, tmp_path / split, split=split)
        dataset, count = gear_data.open(tmp_path / split), 0
        for i, episode in enumerate(tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False))):
            rows = list(episode["steps"])
            steps = dataset.episode(i)
            assert dataset.final(i) is None
            np.testing.assert_array_equal(steps["actions"], [row["action"] for row in rows])
            np.testing.assert_array_equal(steps["observations"], [row["observation"]["state"] for row in rows])
            np.testing.assert_array_equal(steps["rewards"], [row["reward"] for row in rows])
            assert steps["language_instruction"][0] == rows[0]["language_instruction"].decode()
            assert (steps["truncated"][-1], steps["terminated"].any()) == (True, False)
            count += 1
        assert dataset.num_episodes == count


def test_an_episode_cut_off_keeps_all_its_steps(tfds: Any, sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(3, short=False)
    episodes = [rlds_steps(rollout) for rollout in rollouts]
    episodes[1] = episodes[1][:-1]
    report = gear_data.convert(write_rlds(tfds, tmp_path / "in", episodes), tmp_path / "out")
    assert "unfinished-episode" in warning_codes(report)
    dataset = gear_data.open(tmp_path / "out")
    assert dataset.final(1) is None
    assert dataset.final(2) is not None
    np.testing.assert_array_equal(dataset.episode(1)["rewards"], rollouts[1].columns["rewards"])
    assert dataset.episode(1)["truncated"].tolist() == [False] * (len(rollouts[1]) - 1) + [True]


def test_final_images_that_tfds_does_not_decode(tfds: Any, sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(3)
    episodes = [rlds_steps(rollout) for rollout in rollouts]
    for step in chain.from_iterable(episodes):
        step["observation"]["image"] = encode_image(step["observation"]["image"])
    gear_data.convert(write_rlds(tfds, tmp_path / "in", episodes, encoded=True), tmp_path / "out")
    dataset = gear_data.open(tmp_path / "out")
    for i, rollout in enumerate(rollouts):
        assert dataset.episode(i)["observations.image"][:, 0, 0, 0].tolist() == list(range(len(rollout)))
        assert (dataset.final(i) or {})["observations.image"][0, 0, 0] == len(rollout)


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


@pytest.mark.parametrize("length", [1 << 40, (1 << 63) - 1, 1 << 63, 100_000])
def test_a_record_longer_than_its_file_is_a_typed_error(
    length: int, rollouts_and_folder: tuple[Any, Path], tmp_path: Path
) -> None:
    """TensorFlow crashes at such a record, if the checksum of the length is right."""
    folder = tmp_path / "in"
    shutil.copytree(rollouts_and_folder[1], folder)
    record = next(folder.glob("*.tfrecord*"))
    data = record.read_bytes()
    at = 16 + int.from_bytes(data[:8], "little")  # the second record
    size = length.to_bytes(8, "little")
    record.write_bytes(data[:at] + size + masked_crc(size) + data[at + 12 :])
    with pytest.raises(CorruptSourceError, match=rf"a record at byte {at} claims {length} bytes"):
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


@pytest.mark.usefixtures("tfds")
def test_other_values_of_steps_with_lists_of_several_lengths(tmp_path: Path) -> None:
    gear_data.convert(with_sequence(tmp_path), tmp_path / "out", columns=["observation", "instruction"], progress=False)
    episode = gear_data.open(tmp_path / "out").episode(1)
    assert list(episode["instruction"]) == ["go\0"] * 6
    assert episode["observations"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]
