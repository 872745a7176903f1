"""Tests of TorchRL's memory maps, written by tensordict and torchrl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import CorruptSourceError, GearError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.registry import open_source
from gear_data.storage.episode_block import BEGIN, END
from tests.support.checks import warning_codes
from tests.support.running.imported_when_used import ImportedWhenUsed

torch = pytest.importorskip("torch")
tensordict = ImportedWhenUsed("tensordict")


def ted(rollouts: Any, **more: Any) -> Any:
    """Returns rollouts in TorchRL's episode data format.

    The outcome of a step is under `next`; root flags belong to the previous step.
    """
    flat = {name: torch.from_numpy(np.concatenate([r.columns[name] for r in rollouts])) for name in rollouts[0].columns}
    following = torch.from_numpy(np.concatenate([r.next_observations for r in rollouts]))
    flags = {name: flat[name][:, None] for name in ("terminated", "truncated")}
    steps = len(following)
    numbers = np.repeat(np.arange(len(rollouts)) + 5, [len(r) for r in rollouts])
    return tensordict.TensorDict(
        {
            "observation": flat["observations"],
            "action": flat["actions"],
            **{name: torch.zeros(steps, 1, dtype=torch.bool) for name in ("done", *flags)},
            "next": {
                "observation": following,
                "reward": flat["rewards"][:, None],
                "done": flags["terminated"] | flags["truncated"],
                **flags,
            },
            "collector": {"traj_ids": torch.from_numpy(numbers)},
            **more,
        },
        batch_size=[steps],
    )


def test_memory_map(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts()
    ted(rollouts, note=tensordict.NonTensorData("seen", batch_size=[sum(map(len, rollouts))])).memmap(tmp_path / "in")
    report = gear_data.convert(tmp_path / "in", tmp_path / "out")
    assert report.format == "torchrl"
    assert not warning_codes(report)
    sources.check_dataset(tmp_path / "out", rollouts, final=True)
    assert gear_data.open(tmp_path / "out").episodes["collector.traj_ids"].to_list() == [
        i + 5 for i in range(len(rollouts))
    ]
    sources.write_d4rl(tmp_path / "a.hdf5", rollouts)
    assert report.fingerprint == gear_data.convert(tmp_path / "a.hdf5", tmp_path / "d4rl").fingerprint


@pytest.mark.parametrize("left_out", [["collector"], ["collector", ("next", "done")], [("next", "terminated")]])
def test_fewer_end_markers(sources: Any, tmp_path: Path, left_out: list[Any]) -> None:
    rollouts = sources.make_rollouts()
    ted(rollouts).exclude(*left_out).memmap(tmp_path / "in")
    gear_data.convert(tmp_path / "in", tmp_path / "out")
    sources.check_dataset(tmp_path / "out", rollouts, final=True)


def test_trajectories_below_each_other(sources: Any, tmp_path: Path) -> None:
    """In a batch of [trajectories, steps], the end of a row ends an episode."""
    rollouts = [r for r in sources.make_rollouts(60, max_length=6) if len(r) == 6][:4]
    unflagged = [r.with_columns(terminated=np.zeros(6, bool), truncated=np.zeros(6, bool)) for r in rollouts]
    ted(unflagged).exclude("collector").reshape(4, 6).memmap(tmp_path / "in")
    gear_data.convert(tmp_path / "in", tmp_path / "out")
    expected = [r.with_columns(terminated=np.zeros(6, bool), truncated=np.arange(6) == 5) for r in rollouts]
    sources.check_dataset(tmp_path / "out", expected, final=True)


@pytest.mark.parametrize("in_collector", [True, False])
def test_padding_of_trajectories_is_left_out(in_collector: bool, sources: Any, tmp_path: Path) -> None:
    """`split_trajectories` and collectors pad trajectories with zeros, and add a mask."""
    rollouts = sources.make_rollouts()
    unended = rollouts[1].with_columns(truncated=np.zeros(len(rollouts[1]), bool))
    data = ted([rollouts[0], unended, *rollouts[2:]])
    if not in_collector:
        data = data.exclude("collector")
    data[("collector", "mask") if in_collector else "mask"] = torch.ones(len(data), dtype=torch.bool)
    longest = max(map(len, rollouts))
    parts = data.split([len(r) for r in rollouts], 0)
    padded = torch.stack([tensordict.pad(part, [0, longest - len(part)]) for part in parts], 0)
    padded.contiguous().memmap(tmp_path / "in")
    report = gear_data.convert(tmp_path / "in", tmp_path / "out")
    sources.check_dataset(tmp_path / "out", rollouts, final=True)
    assert "padding-left-out" in warning_codes(report)


def test_several_observations(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts(4)
    data = ted(rollouts)
    pixels = torch.arange(len(data), dtype=torch.uint8)[:, None, None].expand(-1, 2, 2)
    data["pixels"], data["next", "pixels"] = pixels, pixels + 1
    data["sample_log_prob"] = torch.zeros(len(data))
    data.memmap(tmp_path / "in")
    gear_data.convert(tmp_path / "in", tmp_path / "out")
    dataset = gear_data.open(tmp_path / "out")
    first = len(rollouts[0])
    assert dataset.episode(1)["observations.pixels"][0].tolist() == [[first] * 2] * 2
    assert (dataset.final(0) or {})["observations.pixels"].tolist() == [[first] * 2] * 2
    assert "sample_log_prob" in dataset.schema


def buffer(tmp_path: Path, capacity: int, batches: list[Any]) -> Path:
    torchrl = pytest.importorskip("torchrl.data")
    storage = torchrl.LazyMemmapStorage(capacity, scratch_dir=tmp_path / "scratch")
    replay = torchrl.TensorDictReplayBuffer(storage=storage)
    for batch in batches:
        replay.extend(batch)
    replay.dumps(tmp_path / "buffer")
    return tmp_path / "buffer"


def test_replay_buffer_partly_filled(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts()
    folder = buffer(tmp_path, 500, [ted(rollouts)])
    report = gear_data.convert(folder, tmp_path / "out")
    sources.check_dataset(tmp_path / "out", rollouts, final=True)
    assert set(warning_codes(report)) == {"pickle-left-out"}
    assert gear_data.convert(folder / "storage", tmp_path / "storage").fingerprint == report.fingerprint


def test_full_ring_buffer_begins_with_its_oldest_step(sources: Any, tmp_path: Path) -> None:
    rollouts = sources.make_rollouts()
    data = ted(rollouts)
    capacity = 40
    batches = [data[i : i + 10] for i in range(0, len(data) - len(data) % 10, 10)]
    assert len(batches) > 4
    assert (len(batches) * 10) % capacity
    report = gear_data.convert(buffer(tmp_path, capacity, batches), tmp_path / "out")
    assert any(warning.startswith("ring-buffer") for warning in report.warnings)
    dataset = gear_data.open(tmp_path / "out")
    rewards = np.concatenate([dataset.episode(i)["rewards"] for i in range(dataset.num_episodes)])
    newest = len(batches) * 10
    expected = data["next", "reward"][newest - capacity : newest, 0].numpy()
    np.testing.assert_array_equal(rewards, expected)


def test_units_are_the_whole_in_order(sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gear_data.ingest.sources.arrays.source as module

    monkeypatch.setattr(module, "UNIT_BYTES", 1000)
    rollouts = sources.make_rollouts(40)
    ted(rollouts).memmap(tmp_path / "in")
    open_again = lambda: open_source(locate(tmp_path / "in", None), "auto", SourceOptions())[0]  # noqa: E731
    assert sources.check_units(open_again) > 3
    expected = np.concatenate([r.columns["observations"] for r in rollouts])
    blocks = open_again().blocks(BEGIN, END)
    np.testing.assert_array_equal(np.concatenate([b.columns["observations"] for b in blocks]), expected)


def test_unsupported_dtype_is_named(sources: Any, tmp_path: Path) -> None:
    data = ted(sources.make_rollouts())
    data["value"] = torch.zeros(len(data), dtype=torch.bfloat16)
    data.memmap(tmp_path / "in")
    with pytest.raises(UnsupportedColumnError, match=r"value.*bfloat16"):
        gear_data.convert(tmp_path / "in", tmp_path / "out")
    columns = ["observations", "actions", "rewards"]
    gear_data.convert(tmp_path / "in", tmp_path / "out", columns=columns)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda meta: meta["observation"].update(shape=[10**15, 3]), CorruptSourceError, "'observation'"),
        (lambda meta: meta["observation"].update(shape=[-1, 3]), GearError, "."),
        (lambda meta: meta.update(shape=[10**15]), CorruptSourceError, "."),
        (lambda meta: meta.update(shape="x"), UnknownFormatError, "contiguous"),
        (
            lambda meta: meta.update({"../../x": {"dtype": "torch.float32", "shape": [1]}}),
            UnsupportedColumnError,
            "name",
        ),
        (lambda meta: meta["next"].update(type="Other"), GearError, "."),
    ],
)
def test_claims_are_checked(sources: Any, tmp_path: Path, change: Any, error: Any, words: str) -> None:
    ted(sources.make_rollouts()).exclude("collector").memmap(tmp_path / "in")
    path = tmp_path / "in/meta.json"
    meta = json.loads(path.read_text())
    change(meta)
    path.write_text(json.dumps(meta))
    with pytest.raises(error, match=words):
        gear_data.convert(tmp_path / "in", tmp_path / "out", format="torchrl")


def test_names_cannot_leave_the_folder(sources: Any, tmp_path: Path) -> None:
    """Renaming the key does not help either."""
    ted(sources.make_rollouts()).memmap(tmp_path / "in" / "buffer")
    path = tmp_path / "in/buffer/meta.json"
    meta = json.loads(path.read_text())
    (tmp_path / "x.memmap").write_bytes(bytes(4 * 10_000))
    path.write_text(json.dumps(meta | {"../../x": meta["observation"]}))
    with pytest.raises(CorruptSourceError, match="its file is missing"):
        gear_data.convert(tmp_path / "in/buffer", tmp_path / "out", rename={"../../x": "x"})


def test_a_short_file_is_refused(sources: Any, tmp_path: Path) -> None:
    ted(sources.make_rollouts()).memmap(tmp_path / "in")
    path = tmp_path / "in/next/reward.memmap"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CorruptSourceError, match=r"next/reward\.memmap.*its file has"):
        gear_data.convert(tmp_path / "in", tmp_path / "out")
