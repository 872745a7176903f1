"""LeRobotDataset against the values of the files, and its place in LeRobot's training."""

from __future__ import annotations

import copy
import importlib
import io
import json
import pickle
import runpy
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import gear_data
from gear_data.errors import (
    CorruptSourceError,
    EpisodeIndexError,
    InvalidArgumentError,
    MissingExtraError,
    UnknownArgumentError,
    UnknownNameError,
    UnsupportedColumnError,
)
from gear_data.integrations.lerobot import LeRobotDataset, use_gear_data
from gear_data.schema import DepthFormat
from gear_data.video.decoding.frame_reader import FrameReader
from gear_data.video.depth import depth_values
from tests.integrations.lerobot.conftest import Recorded
from tests.support.cameras.depth import KEY, write_depth
from tests.support.cameras.filmed import FPS
from tests.support.exports import convert_rollouts

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
DELTAS = {FRONT: [-3, 0], WRIST: [0], "action": [-1, 0, 1, 7], "frame_index": [-1, 0, 2], "next.reward": [0]}


def times(deltas: dict[str, list[int]]) -> dict[str, list[float]]:
    return {key: [step / FPS for step in steps] for key, steps in deltas.items()}


def check(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if key == "task":
            assert found[key] == value
        else:
            assert found[key].numpy().dtype == value.dtype, key
            np.testing.assert_array_equal(found[key].numpy(), value, key)


@pytest.mark.parametrize("deltas", [{}, DELTAS], ids=["single", "stacked"])
@pytest.mark.parametrize("uint8", [False, True])
def test_items_have_the_values_of_the_files(recorded: Recorded, deltas: dict[str, list[int]], uint8: bool) -> None:
    dataset = LeRobotDataset("a/b", recorded.root, delta_timestamps=times(deltas), return_uint8=uint8)
    assert len(dataset) == dataset.num_frames == recorded.last[-1]
    assert (dataset.num_episodes, dataset.episodes, dataset.absolute_to_relative_idx) == (5, None, None)
    order = np.random.default_rng(0).permutation(len(dataset)).tolist()
    for step, item in zip(order, dataset.__getitems__(order), strict=True):
        check(item, recorded.item(step, deltas, uint8=uint8))
    check(dataset[-1], recorded.item(len(dataset) - 1, deltas, uint8=uint8))


def test_some_episodes(recorded: Recorded) -> None:
    dataset = LeRobotDataset("a/b", recorded.root, episodes=[3, 1], delta_timestamps=times(DELTAS))
    steps = [*range(recorded.first[1], recorded.last[1]), *range(recorded.first[3], recorded.last[3])]
    assert (len(dataset), dataset.num_episodes, dataset.episodes) == (len(steps), 2, [3, 1])
    assert dataset.absolute_to_relative_idx == {step: number for number, step in enumerate(steps)}
    for step, item in zip(steps, dataset.__getitems__(range(len(steps))), strict=True):
        check(item, recorded.item(step, DELTAS))


@pytest.mark.parametrize(
    "names",
    [("next.done",), ("next.done", "next.truncated"), ("next.truncated",), ("discount",), ("not_done",)],
    ids="+".join,
)
@pytest.mark.parametrize("dtype", ["bool", "int64", "float32"])
def test_end_flags_are_as_in_the_files(recorded: Recorded, tmp_path: Path, names: tuple[str, ...], dtype: str) -> None:
    """Conversion completes them; LeRobot's class does not."""
    shutil.copytree(recorded.root, tmp_path / "robot")
    (file,) = (tmp_path / "robot/data").rglob("*.parquet")
    table = pq.read_table(file)
    flags = {name: np.zeros(len(table), dtype) for name in names}
    for number, values in enumerate(flags.values()):
        values[np.array(recorded.last)[number::2] - 1] = 1  # other episodes have no flag
    if names[0] in ("discount", "not_done"):
        flags = {name: (1 - values.astype(np.int8)).astype(dtype) for name, values in flags.items()}
    kept = [name for name in table.column_names if not name.startswith("next.") or name == "next.reward"]
    table = table.select(kept)
    for name, values in flags.items():
        table = table.append_column(name, pa.array(values))
    pq.write_table(table, file)
    info = json.loads((tmp_path / "robot/meta/info.json").read_text())
    features = {key: each for key, each in info["features"].items() if each["dtype"] == "video" or key in kept}
    features |= {name: {"dtype": dtype, "shape": [1], "names": None} for name in names}
    (tmp_path / "robot/meta/info.json").write_text(json.dumps(info | {"features": features}))
    items = LeRobotDataset("a/b", tmp_path / "robot").__getitems__(range(len(table)))
    for name, values in flags.items():
        found = torch.stack([item[name] for item in items]).numpy()
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_stacks_items(recorded: Recorded, workers: int) -> None:
    dataset = LeRobotDataset("a/b", recorded.root, delta_timestamps=times(DELTAS))
    loader = torch.utils.data.DataLoader(dataset, batch_size=7, num_workers=workers)
    step = 0
    for batch in loader:
        items = [recorded.item(each, DELTAS) for each in range(step, step + len(batch["task"]))]
        assert batch["task"] == [item["task"] for item in items]
        for key in items[0].keys() - {"task"}:
            np.testing.assert_array_equal(batch[key].numpy(), np.stack([item[key] for item in items]), key)
        step += len(items)
    assert step == len(dataset)


def test_slices(recorded: Recorded) -> None:
    """As of LeRobot 0.6."""
    dataset = LeRobotDataset("a/b", recorded.root, episodes=[1, 3])
    steps = [*range(recorded.first[1], recorded.last[1]), *range(recorded.first[3], recorded.last[3])]
    slices: list[slice] = [slice(2, 5), slice(-3, None), slice(None, None, -7), slice(4, 4), slice(10**6, None)]
    for index in slices:
        for step, item in zip(steps[index], dataset[index], strict=True):
            check(item, recorded.item(step, {}))
    impossible: list[slice] = [slice("a", None), slice(0, 3, 0)]
    for wrong in impossible:
        with pytest.raises(InvalidArgumentError, match="no slice of frames"):
            dataset[wrong]


def test_a_batch_decodes_each_group_of_pictures_once(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = LeRobotDataset("a/b", recorded.root, delta_timestamps=times({FRONT: [-2, -1, 0], WRIST: [-1, 0]}))
    calls = []
    read_into = FrameReader.read_into

    def counted(self: FrameReader, *arguments: Any) -> None:
        calls.append(arguments)
        read_into(self, *arguments)

    monkeypatch.setattr(FrameReader, "read_into", counted)
    dataset.__getitems__([5, 3, 4, 20])
    assert len(calls) == 2  # one for each camera
    dataset.__getitems__([1] * 40)
    assert len(calls) == 4


def test_image_transforms_are_applied_in_the_order_of_items(recorded: Recorded) -> None:
    def noise(image: torch.Tensor) -> torch.Tensor:
        return image + torch.rand(1)

    dataset = LeRobotDataset("a/b", recorded.root, image_transforms=noise)
    torch.manual_seed(3)
    found = dataset.__getitems__([2, 9])
    torch.manual_seed(3)
    plain = LeRobotDataset("a/b", recorded.root).__getitems__([2, 9])
    for item, other in zip(found, plain, strict=True):
        for key in dataset.meta.camera_keys:
            assert torch.equal(item[key], other[key] + torch.rand(1))
    dataset.clear_image_transforms()
    assert torch.equal(dataset[2][FRONT], plain[0][FRONT])
    with pytest.raises(InvalidArgumentError, match="callable"):
        dataset.set_image_transforms("blur")  # type: ignore[arg-type]


def test_copies_and_pickles_give_the_same_items(recorded: Recorded) -> None:
    dataset = LeRobotDataset("a/b", recorded.root)
    dataset[0]
    for other in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        check(other[4], recorded.item(4, {}))


def test_an_open_dataset_is_taken(recorded: Recorded, tmp_path: Any) -> None:
    gear_data.convert(recorded.root, tmp_path / "dataset", videos="link", progress=False)
    ds = gear_data.open(tmp_path / "dataset")
    check(LeRobotDataset("a/b", recorded.root, dataset=ds)[8], recorded.item(8, {}))
    with pytest.raises(InvalidArgumentError, match="view"):
        LeRobotDataset("a/b", recorded.root, dataset=ds.filter("length > 3"))


def test_arguments_of_other_versions_of_lerobot(recorded: Recorded) -> None:
    options: dict[str, Any] = {"repo_type": "dataset", "force_cache_sync": True, "video_backend": "pyav"}
    check(LeRobotDataset("a/b", recorded.root, **options)[8], recorded.item(8, {}))
    # In LeRobot's class, `force_cache_sync` is next.
    by_position: list[Any] = ["a/b", recorded.root, None, None, None, 1e-4, None, True]
    with pytest.raises(TypeError, match="positional"):
        LeRobotDataset(*by_position)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"delta_timestamps": {"acton": [0.0]}}, UnknownNameError, "action"),
        ({"delta_timestamps": {"action": []}}, InvalidArgumentError, "no times"),
        ({"delta_timestamps": {"action": [0.03]}}, InvalidArgumentError, "no multiple"),
        ({"delta_timestamps": {"task_index": [0.0]}}, InvalidArgumentError, "one task"),
        ({"episodes": [0, 5]}, UnknownNameError, "episode"),
        ({"episodes": []}, InvalidArgumentError, "empty"),
        ({"image_transforms": 3}, InvalidArgumentError, "callable"),
        ({"batch_encoding_size": 2}, UnknownArgumentError, "batch_encoding_size.*own class"),
        ({"episode_filter": len}, UnknownArgumentError, "episode_filter.*filter_episodes"),
        ({"token": "hf_"}, UnknownArgumentError, "token.*HF_TOKEN"),
        ({"repo_type": "model"}, InvalidArgumentError, "repo_type is 'model'"),
    ],
)
def test_wrong_arguments(recorded: Recorded, arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"(?s){message}"):
        LeRobotDataset("a/b", recorded.root, **arguments)


@pytest.mark.parametrize(("index", "error"), [(10**6, EpisodeIndexError), (-(10**6), IndexError), ("a", ValueError)])
def test_wrong_indices(recorded: Recorded, index: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        LeRobotDataset("a/b", recorded.root)[index]


def test_damaged_metadata(recorded: Recorded) -> None:
    dataset = LeRobotDataset("a/b", recorded.root)
    dataset._tasks = dataset._tasks[:1]
    with pytest.raises(CorruptSourceError, match=r"tasks\.parquet has 1 tasks"):
        dataset[recorded.first[1]]
    dataset.meta.episodes = (
        {**dict(dataset.meta.episodes.items())}
        if isinstance(dataset.meta.episodes, dict)
        else {name: dataset.meta.episodes[name] for name in ("dataset_from_index", "dataset_to_index")}
    )
    dataset.meta.episodes["dataset_to_index"] = [each + 1 for each in dataset.meta.episodes["dataset_to_index"]]
    with pytest.raises(CorruptSourceError, match="meta/episodes"):
        dataset._check_episodes()
    dataset.meta.features[FRONT]["info"]["video.is_depth_map"] = True
    with pytest.raises(UnsupportedColumnError, match="depth"):
        type(dataset._items)(dataset._dataset, dataset.meta.features, {})


@pytest.mark.parametrize("sizes", [[(5, 7), (6, 7)], [(5, 7)]], ids=["several", "one"])
def test_images_that_stay_encoded(sizes: list[tuple[int, int]], sources: Any, tmp_path: Path) -> None:
    rollouts, rng = sources.make_rollouts(3), np.random.default_rng(0)

    def png(step: int) -> bytes:
        stream = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (*sizes[step % len(sizes)], 3), dtype=np.uint8)).save(stream, "PNG")
        return stream.getvalue()

    images = [[png(step) for step in range(len(rollout))] for rollout in rollouts]
    column = pa.array(images, pa.list_(pa.binary()))
    ds = convert_rollouts(tmp_path, sources, rollouts, **{"observations.image": column})
    root = tmp_path / "robot"
    gear_data.export(ds, root, "lerobot", fps=10, progress=False)
    gear_data.convert(root, tmp_path / "kept", keep_encoded=True, progress=False)
    given: list[Any] = [gear_data.open(tmp_path / "kept")]
    if len(sizes) == 1:
        pixels = np.asarray(Image.open(io.BytesIO(images[0][0]))).transpose(2, 0, 1)
        found = LeRobotDataset("a/b", root)[0]["observation.image"].numpy()
        np.testing.assert_array_equal(found, pixels.astype(np.float32) / np.float32(255))
    else:
        given.append(None)
    for dataset in given:
        with pytest.raises(UnsupportedColumnError, match="stay encoded") as error:
            LeRobotDataset("a/b", root, dataset=dataset)
        assert error.value.column == "observation.image"


def test_a_damaged_file(recorded: Recorded, tmp_path: Path) -> None:
    root = shutil.copytree(recorded.root, tmp_path / "robot")
    (root / "meta/info.json").write_text("{")
    with pytest.raises(CorruptSourceError, match=r"(?s)LeRobot cannot read it: .*download the damaged file again"):
        LeRobotDataset("a/b", root)


def test_rows_of_lerobots_class_are_of_the_same_commit(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It downloads rows again if a video of the episodes is not there."""
    dataset = LeRobotDataset("a/b", shutil.copytree(recorded.root, tmp_path / "snapshots" / ("f" * 40)))
    given: list[Any] = []

    def reader(repo_id: str, **options: Any) -> Any:
        given.append((repo_id, options["revision"]))
        return SimpleNamespace(hf_dataset="rows")

    monkeypatch.setattr(importlib.import_module("lerobot.datasets.lerobot_dataset"), "LeRobotDataset", reader)
    assert dataset.hf_dataset == "rows" and given == [("a/b", "f" * 40)]


@pytest.mark.parametrize("unit", ["mm", "m"])
def test_depth_has_the_unit(unit: Any, tmp_path: Path) -> None:
    folder, numbers = write_depth(tmp_path / "reach", (6, 4))
    deltas = {KEY: [-1 / 30, 0.0]}
    dataset = LeRobotDataset(
        "a/b", folder, delta_timestamps=deltas, image_transforms=lambda image: image * 0, depth_output_unit=unit
    )
    values = depth_values(DepthFormat(0.01, 10.0, 3.5, True, unit))
    for step in (0, 6, 8):
        item, before = dataset[step], max(step - 1, 0 if step < 6 else 6)
        expected = values[np.concatenate(numbers)[[before, step], None]]
        assert (item[KEY].dtype, item["task"]) == (torch.float32, "reach")
        np.testing.assert_array_equal(item[KEY].numpy(), expected)
    assert dataset.depth_output_unit == getattr(dataset.meta, "depth_unit_of_stats", unit) == unit
    with pytest.raises(UnknownNameError, match="unit of depth"):
        LeRobotDataset("a/b", folder, depth_output_unit="cm")  # type: ignore[arg-type]


def test_statistics_of_depth_are_rescaled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LeRobot's class, which downloads rows, has rescaled the ones of its own metadata."""
    folder, _ = write_depth(tmp_path / "reach", (6, 4))
    module = importlib.import_module("lerobot.datasets.lerobot_dataset")
    rescaled: list[tuple[Any, str]] = []

    def reader(repo_id: str, **options: Any) -> Any:
        meta = module.LeRobotDatasetMetadata(repo_id, root=options["root"], revision=options["revision"])
        meta.rescale_depth_stats("mm")
        return SimpleNamespace(meta=meta)

    def absent(meta: Any, camera: str | None = None) -> list[str]:
        return ["data/file"] if camera is None else []

    def rescale(meta: Any, unit: str) -> None:
        rescaled.append((meta, unit))

    monkeypatch.setattr(module, "LeRobotDataset", reader)
    monkeypatch.setattr(module.LeRobotDatasetMetadata, "rescale_depth_stats", rescale, raising=False)
    monkeypatch.setattr("gear_data.integrations.lerobot.dataset._absent_files", absent)
    dataset = LeRobotDataset("a/b", folder, depth_output_unit="m")
    assert [unit for meta, unit in rescaled if meta is dataset.meta] == ["m"]


def test_training_makes_datasets_of_gear_data(monkeypatch: pytest.MonkeyPatch) -> None:
    factory = importlib.import_module("lerobot.datasets.factory")
    monkeypatch.setattr(factory, "LeRobotDataset", None, raising=False)
    arguments = []
    train: Any = ModuleType("lerobot.scripts.lerobot_train")
    train.main = lambda: arguments.append((list(sys.argv), factory.LeRobotDataset))
    monkeypatch.setitem(sys.modules, "lerobot.scripts", ModuleType("lerobot.scripts"))
    monkeypatch.setitem(sys.modules, train.__name__, train)
    monkeypatch.setattr(sys, "argv", ["program", "train", "--steps=3"])
    runpy.run_module("gear_data.integrations.lerobot", run_name="__main__")
    assert [given[1:] for given, _ in arguments] == [["--steps=3"]]
    assert [made for _, made in arguments] == [LeRobotDataset]
    monkeypatch.setattr(sys, "argv", ["program", "record"])
    with pytest.raises(SystemExit, match="usage"):
        runpy.run_module("gear_data.integrations.lerobot", run_name="__main__")


def test_lerobot_is_missing() -> None:
    # Undone before the fixture of LeRobot's modules ends.
    with pytest.MonkeyPatch.context() as patch:
        for name in ("lerobot", "lerobot.datasets.factory", "lerobot.datasets.lerobot_dataset"):
            patch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtraError, match="pip install"):
            use_gear_data()
        with pytest.raises(MissingExtraError, match="pip install"):
            LeRobotDataset("a/b")
