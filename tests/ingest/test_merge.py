"""`merge` of datasets, with equal and with different columns."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gear_data
from gear_data.cli import main
from gear_data.errors import (
    CorruptShardError,
    DatasetNotFoundError,
    DestinationExistsError,
    InvalidArgumentError,
    ResumeError,
    UnsupportedColumnError,
)
from gear_data.ingest import merge
from gear_data.storage import atomic, recomputation
from gear_data.storage.writing import placing
from gear_data.storage.writing.shard_writer import ShardWriter
from tests.support.checks import folder_contents
from tests.support.manifests import edited_manifest
from tests.support.rollouts import Rollout, make_rollouts

SHARD_BYTES = 1024


def _converted(folder: Path, rollouts: Sequence[Rollout], **options: Any) -> Path:
    """Converts rollouts, with final observations, to the dataset `folder`."""
    episodes = [
        {**rollout.columns, "observations": np.concatenate([rollout.columns["observations"], rollout.final[None]])}
        for rollout in rollouts
    ]
    gear_data.convert(episodes, folder, shard_bytes=SHARD_BYTES, progress=False, **options)
    return folder


@pytest.fixture
def rollouts() -> list[list[Rollout]]:
    return [make_rollouts(count, seed=count) for count in (17, 5, 11)]


@pytest.fixture
def parts(rollouts: list[list[Rollout]], tmp_path: Path) -> list[Path]:
    return [_converted(tmp_path / name, part) for name, part in zip("abc", rollouts, strict=True)]


def _check_steps(dataset: gear_data.Dataset, rollouts: Sequence[Rollout]) -> None:
    assert len(dataset) == len(rollouts)
    for episode, rollout in zip(dataset, rollouts, strict=True):
        for name, values in rollout.columns.items():
            np.testing.assert_array_equal(episode[name], values)


def test_a_merge_has_all_episodes_in_order(
    parts: list[Path], rollouts: list[list[Rollout]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = gear_data.merge(parts, tmp_path / "out", progress=False)
    every = [rollout for part in rollouts for rollout in part]
    dataset = gear_data.open(tmp_path / "out")
    _check_steps(dataset, every)
    for index, rollout in enumerate(every):
        final = dataset.final(index)
        assert final is not None
        np.testing.assert_array_equal(final["observations"], rollout.final)
    assert dataset.episodes["episode_id"].to_list() == list(range(33))
    assert dataset.episodes["embodiment"].to_list() == ["a"] * 17 + ["b"] * 5 + ["c"] * 11
    assert report.episodes == 33 and report.steps == sum(map(len, every)) == dataset.num_steps
    shards = [len(gear_data.open(part).manifest.shards) for part in parts]
    assert max(shards) > 1
    assert report.shards == report.linked == sum(shards)
    monkeypatch.setattr(recomputation, "_TOLERANCE", 0.0)
    verified = gear_data.verify(tmp_path / "out", deep=True)
    assert verified.ok, verified


def test_a_merge_equals_one_conversion(parts: list[Path], rollouts: list[list[Rollout]], tmp_path: Path) -> None:
    report = gear_data.merge(parts, tmp_path / "out", progress=False)
    whole = gear_data.open(_converted(tmp_path / "whole", [rollout for part in rollouts for rollout in part]))
    assert report.fingerprint == whole.fingerprint
    merged = gear_data.open(tmp_path / "out")
    for name, expected in whole.statistics.items():
        found = merged.statistics[name]
        np.testing.assert_array_equal(found.count, expected.count)
        np.testing.assert_array_equal(found.min, expected.min)
        np.testing.assert_array_equal(found.max, expected.max)
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found.std, expected.std, rtol=1e-9, atol=1e-12)


def test_links_share_the_bytes_and_outlive_the_parts(parts: list[Path], tmp_path: Path) -> None:
    gear_data.merge(parts[:2], tmp_path / "out", progress=False)
    first = next((parts[0] / "shards").iterdir())
    assert first.stat().st_nlink == 2
    for part in parts:
        shutil.rmtree(part)
    assert gear_data.verify(tmp_path / "out", deep=True).ok


def test_shards_are_copied_where_links_are_impossible(
    parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(18, os.strerror(18))

    monkeypatch.setattr(atomic.os, "link", refuse)
    report = gear_data.merge(parts, tmp_path / "out", progress=False)
    assert report.linked == 0 and report.shards > 3
    assert gear_data.verify(tmp_path / "out", deep=True).ok
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_a_copy_of_a_damaged_shard_is_refused(
    parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "link_file", lambda source, path: False)
    shard = sorted((parts[1] / "shards").iterdir())[0]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CorruptShardError, match=r"b/shards/0.*checksum"):
        gear_data.merge(parts, tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_a_missing_shard_is_refused_and_nothing_stays(parts: list[Path], tmp_path: Path) -> None:
    sorted((parts[2] / "shards").iterdir())[-1].unlink()
    with pytest.raises(CorruptShardError, match=r"c/shards"):
        gear_data.merge(parts, tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_merges_of_merges(parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gear_data.merge(parts[:2], tmp_path / "ab", progress=False)
    report = gear_data.merge([tmp_path / "ab", parts[2]], tmp_path / "abc", progress=False)
    flat = gear_data.merge(parts, tmp_path / "flat", progress=False)
    assert report.fingerprint == flat.fingerprint
    dataset = gear_data.open(tmp_path / "abc")
    assert dataset.episodes["embodiment"].to_list() == ["a"] * 17 + ["b"] * 5 + ["c"] * 11
    monkeypatch.setattr(recomputation, "_TOLERANCE", 0.0)
    assert gear_data.verify(tmp_path / "abc", deep=True).ok


def test_wrong_statistics_of_a_merge_are_found(parts: list[Path], tmp_path: Path) -> None:
    gear_data.merge(parts, tmp_path / "out", progress=False)
    with edited_manifest(tmp_path / "out") as manifest:
        manifest["statistics"]["actions"]["mean"][0] += 1e-3
    (found,) = gear_data.verify(tmp_path / "out", deep=True).differences
    assert (found.column, found.value) == ("actions", "mean[0]")


def test_damaged_provenance_counts_as_one_task(parts: list[Path], tmp_path: Path) -> None:
    gear_data.merge(parts, tmp_path / "out", progress=False)
    for wrong in ([], "x", [{"shards": 1, "provenance": {}}], [{"shards": 0, "provenance": {}}]):
        with edited_manifest(tmp_path / "out") as manifest:
            manifest["provenance"]["merged"] = wrong
        assert gear_data.verify(tmp_path / "out", deep=True).ok


def test_final_observations_of_one_dataset_only(rollouts: list[list[Rollout]], tmp_path: Path) -> None:
    first = _converted(tmp_path / "a", rollouts[0])
    source = [dict(rollout.columns) for rollout in rollouts[1]]
    gear_data.convert(source, tmp_path / "b", progress=False)
    for order in ([first, tmp_path / "b"], [tmp_path / "b", first]):
        gear_data.merge(order, tmp_path / "out", overwrite=(tmp_path / "out").exists(), progress=False)
        dataset = gear_data.open(tmp_path / "out")
        ids = dataset.episodes.filter(embodiment="a")["episode_id"].to_list()
        for index in range(len(dataset)):
            final = dataset.final(index)
            assert (final is not None) is (index in ids)
            if final is not None:
                np.testing.assert_array_equal(final["observations"], rollouts[0][ids.index(index)].final)
        assert gear_data.verify(tmp_path / "out", deep=True).ok


def test_facts_and_text_keep_their_values(tmp_path: Path) -> None:
    """Each table has another dictionary of texts. A missing fact is null."""
    step = {"observations": np.zeros((2, 1), np.float32), "actions": np.ones((2, 1)), "rewards": np.ones(2)}
    first = [{**step, "task": task, "seed": i} for i, task in enumerate(["push", "pull", "push"])]
    second = [{**step, "task": task, "success": True} for task in ["lift", "push"]]
    gear_data.convert(first, tmp_path / "a", progress=False)
    gear_data.convert(second, tmp_path / "b", progress=False)
    gear_data.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", progress=False)
    table = gear_data.open(tmp_path / "out").episodes
    assert table["task"].cast(str).to_list() == ["push", "pull", "push", "lift", "push"]
    assert table["seed"].to_list() == [0, 1, 2, None, None]
    assert table["success"].to_list() == [None, None, None, True, True]
    (tmp_path / "c").mkdir()
    gear_data.convert([{**step, "seed": "seven"}], tmp_path / "c", overwrite=False, progress=False)
    with pytest.raises(UnsupportedColumnError, match=r"column 'seed'.*mixed type"):
        gear_data.merge([tmp_path / "a", tmp_path / "c"], tmp_path / "other", progress=False)


def test_episodes_of_two_datasets_that_repeat_are_reported(parts: list[Path], tmp_path: Path) -> None:
    shutil.copytree(parts[0], tmp_path / "copy")
    report = gear_data.merge([parts[0], tmp_path / "copy"], tmp_path / "out", progress=False)
    (repeated,) = [line for line in report.warnings if line.startswith("duplicate-episode")]
    assert "17x" in repeated


@pytest.mark.parametrize(("change", "found", "known"), [
    ({"actions": np.float64}, r"float64 \[2\]", r"float32 \[2\]"),
    ({"observations": np.float64}, r"float64 \[3\]", r"float32 \[3\]"),
])  # fmt: skip
def test_other_dtypes_are_refused(change: dict[str, Any], found: str, known: str, tmp_path: Path) -> None:
    rollouts = make_rollouts(3)
    _converted(tmp_path / "a", rollouts)
    ((name, dtype),) = change.items()
    episodes = [{**r.columns, name: r.columns[name].astype(dtype)} for r in rollouts]
    gear_data.convert(episodes, tmp_path / "b", progress=False)
    with pytest.raises(UnsupportedColumnError, match=rf"b, column '{name}'.*{found} here, but {known} in .*/a"):
        gear_data.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_other_shapes_are_refused(tmp_path: Path) -> None:
    _converted(tmp_path / "a", make_rollouts(3))
    _converted(tmp_path / "b", make_rollouts(3, states=4))
    with pytest.raises(UnsupportedColumnError, match=r"'observations'.*\[4\] here, but .*\[3\]"):
        gear_data.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", progress=False)


def test_a_destination_that_exists(parts: list[Path], tmp_path: Path) -> None:
    gear_data.merge(parts[:2], tmp_path / "out", progress=False)
    with pytest.raises(DestinationExistsError):
        gear_data.merge(parts, tmp_path / "out", progress=False)
    again = gear_data.merge(parts[:2], tmp_path / "out", resume=True, progress=False)
    assert again.episodes == 22
    with pytest.raises(ResumeError, match="source"):
        gear_data.merge(parts, tmp_path / "out", resume=True, progress=False)
    assert gear_data.merge(parts, tmp_path / "out", overwrite=True, progress=False).episodes == 33
    assert len(gear_data.open(tmp_path / "out")) == 33
    with pytest.raises(InvalidArgumentError, match="contain each other"):
        gear_data.merge(parts, parts[0], overwrite=True, progress=False)
    with pytest.raises(InvalidArgumentError, match="contain each other"):
        gear_data.merge(parts, parts[0] / "out", progress=False)
    with pytest.raises(InvalidArgumentError, match="overwrite and resume"):
        gear_data.merge(parts, tmp_path / "out", overwrite=True, resume=True)


def test_wrong_arguments(parts: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    for wrong in (str(parts[0]), parts[0], 7, [parts[0]], []):
        with pytest.raises(InvalidArgumentError):
            gear_data.merge(wrong, out)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="given twice"):
        gear_data.merge([parts[0], f"{parts[0]}/"], out)
    (tmp_path / "none").mkdir()
    with pytest.raises(DatasetNotFoundError):
        gear_data.merge([parts[0], tmp_path / "none"], out)
    with pytest.raises(InvalidArgumentError, match="not Dataset"):
        gear_data.merge([parts[0], gear_data.open(parts[1])], out)  # type: ignore[list-item]
    assert not out.exists()


def test_remote_datasets_and_destinations(parts: list[Path], rollouts: list[list[Rollout]], tmp_path: Path) -> None:
    import fsspec

    fsspec.filesystem("memory").put(str(parts[0]), "/merge-test/a", recursive=True)
    report = gear_data.merge(["memory://merge-test/a", parts[1]], "memory://merge-test/out", progress=False)
    assert report.linked == 0
    dataset = gear_data.open("memory://merge-test/out")
    _check_steps(dataset, rollouts[0] + rollouts[1])
    assert dataset.episodes["embodiment"].to_list() == ["a"] * 17 + ["b"] * 5
    assert gear_data.verify("memory://merge-test/out", deep=True).ok


def test_the_command(parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(part) for part in parts]
    assert main(["merge", *names, str(tmp_path / "out"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["episodes"], report["linked"]) == (33, report["shards"])
    assert main(["merge", *names, str(tmp_path / "out")]) == 1
    assert main(["merge", *names, str(tmp_path / "out"), "--overwrite"]) == 0
    assert "33 episodes" in capsys.readouterr().out
    assert main(["merge", names[0], str(tmp_path / "one")]) == 2


def test_repair_says_where_to_repair(parts: list[Path], tmp_path: Path) -> None:
    gear_data.merge(parts, tmp_path / "out", progress=False)
    shard = sorted((tmp_path / "out/shards").iterdir())[0]
    shard.unlink()
    with pytest.raises(gear_data.GearError, match="merge"):
        gear_data.repair(tmp_path / "out", tmp_path / "x.hdf5")


@pytest.fixture
def differing(tmp_path: Path) -> tuple[Path, Path]:
    """Two datasets that share some columns, with texts, flags and final observations."""
    rng = np.random.default_rng(5)
    for name, own in (("a", "infos.force"), ("b", "observations.extra")):
        episodes: list[dict[str, Any]] = []
        for index, rollout in enumerate(make_rollouts(9, seed=ord(name))):
            steps = len(rollout)
            columns: dict[str, Any] = {"actions": rollout.columns["actions"], own: rng.random((steps, 2)) + 1}
            columns |= {"terminated": rollout.columns["terminated"], "truncated": rollout.columns["truncated"]}
            if name == "a":
                columns |= {"rewards": rollout.columns["rewards"], "prompt": [f"{index} {t}" for t in range(steps)]}
                columns["infos.touch"] = rng.random(steps) < 0.5
            else:
                columns[own] = np.concatenate([columns[own], np.full((1, 2), 9.0)])
            episodes.append({**columns, "task": f"task {index % 2}", "seed": index})
        gear_data.convert(episodes, tmp_path / name, shard_bytes=SHARD_BYTES, progress=False)
    return tmp_path / "a", tmp_path / "b"


def test_different_columns_are_united(
    differing: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = gear_data.merge(differing, tmp_path / "out", progress=False)
    assert report.linked == 0
    parts = [gear_data.open(path) for path in differing]
    merged = gear_data.open(tmp_path / "out")
    names = {name for part in parts for name in part.schema.names}
    masked = names - set(parts[0].schema.names) | names - set(parts[1].schema.names)
    assert set(merged.schema.names) == names | {f"masks.{name}" for name in masked - {"returns_to_go"}}
    episode_ids = iter(range(len(merged)))
    for part in parts:
        for own in part:
            index = next(episode_ids)
            episode = merged.episode(index)
            for name in names:
                if name in part.schema:
                    np.testing.assert_array_equal(episode[name], own[name])
                else:
                    assert all(not np.any(value) for value in episode[name])
                if name in masked - {"returns_to_go"}:
                    assert (episode[f"masks.{name}"] == (name in part.schema)).all()
            final = merged.final(index)
            assert (final is not None) is (part is parts[1])
            if final is not None:
                np.testing.assert_array_equal(final["observations.extra"], [9.0, 9.0])
    recorded = [part["metadata"]["dataset"] for part in merged.manifest.provenance["parts"]]
    assert [each["fingerprint"] for each in recorded] == [part.fingerprint for part in parts]
    assert recorded[0]["provenance"] == parts[0].manifest.provenance
    table = merged.episodes
    assert table["embodiment"].to_list() == ["a"] * 9 + ["b"] * 9
    assert table["seed"].to_list() == [*range(9), *range(9)]
    assert table["task"].cast(str).to_list() == [f"task {i % 2}" for i in range(9)] * 2
    assert table["return"].is_null().to_list() == [False] * 9 + [True] * 9
    for name in ("infos.force", "rewards", "returns_to_go"):
        for kind in ("count", "min", "max"):
            found, expected = (getattr(each.statistics[name], kind) for each in (merged, parts[0]))
            np.testing.assert_array_equal(found, expected)
    monkeypatch.setattr(recomputation, "_TOLERANCE", 0.0)
    verified = gear_data.verify(tmp_path / "out", deep=True)
    assert verified.ok, verified


def test_facts_of_united_datasets_keep_their_types(differing: tuple[Path, Path], tmp_path: Path) -> None:
    times = [1_700_000_000_123_456_789 + number for number in range(9)]
    facts = pa.table({
        "recorded": pa.array(times, pa.timestamp("ns")),
        "level": pa.array(range(9), pa.int8()),
        "score": pa.array([0.1] * 9, pa.float32()),
    })  # fmt: skip
    gear_data.open(differing[0]).with_facts(facts).save(tmp_path / "dated", progress=False)
    assert gear_data.merge([tmp_path / "dated", differing[1]], tmp_path / "out", progress=False).linked == 0
    table = gear_data.open(tmp_path / "out").episode_table
    for name in facts.column_names:
        assert table.column(name).slice(0, 9).equals(facts.column(name)), name
        assert table.column(name).slice(9).null_count == 9


def test_a_united_dataset_is_merged_again(differing: tuple[Path, Path], tmp_path: Path) -> None:
    """The masks of the first merge stay, and a dataset that has the column gets true."""
    gear_data.merge(differing, tmp_path / "ab", progress=False)
    shutil.copytree(differing[0], tmp_path / "c")
    gear_data.merge([tmp_path / "ab", tmp_path / "c"], tmp_path / "out", progress=False)
    merged = gear_data.open(tmp_path / "out")
    assert merged.schema.names == gear_data.open(tmp_path / "ab").schema.names
    assert merged.episodes["embodiment"].to_list() == ["a"] * 9 + ["b"] * 9 + ["c"] * 9
    for index, has_force in enumerate([True] * 9 + [False] * 9 + [True] * 9):
        assert (merged.episode(index)["masks.infos.force"] == has_force).all()
        assert (merged.episode(index)["masks.observations.extra"] != has_force).all()
    assert gear_data.verify(tmp_path / "out", deep=True).ok


def test_columns_in_another_order(tmp_path: Path) -> None:
    first, second = make_rollouts(4, seed=1), make_rollouts(4, seed=2)
    for name, rollouts, order in (("a", first, 1), ("b", second, -1)):
        episodes = [dict(list(rollout.columns.items())[::order]) for rollout in rollouts]
        gear_data.convert(episodes, tmp_path / name, progress=False)
    a, b = (gear_data.open(tmp_path / name).schema.names for name in "ab")
    assert a != b and set(a) == set(b)
    report = gear_data.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", progress=False)
    assert report.linked == 0 and not any("missing-column" in line for line in report.warnings)
    _check_steps(gear_data.open(tmp_path / "out"), first + second)
    assert gear_data.verify(tmp_path / "out", deep=True).ok


def test_a_united_merge_is_resumed_and_repaired(
    differing: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "SHARD_BYTES", SHARD_BYTES)
    gear_data.merge(differing, tmp_path / "whole", progress=False)
    expected = folder_contents(tmp_path / "whole")
    write = ShardWriter._write_shard

    def fail(writer: ShardWriter) -> Any:
        if writer.finished_shards == 1:
            raise KeyboardInterrupt
        return write(writer)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ShardWriter, "_write_shard", fail)
        gear_data.merge(differing, tmp_path / "out", progress=False)
    with pytest.raises(DatasetNotFoundError):
        gear_data.open(tmp_path / "out")
    gear_data.open(differing[0]).with_discount(0.5)  # writes a sidecar into the folder
    gear_data.merge(differing, tmp_path / "out", resume=True, progress=False)
    assert folder_contents(tmp_path / "out") == expected
    sorted((tmp_path / "out/shards").iterdir())[0].unlink()
    gear_data.repair(tmp_path / "out", differing, progress=False)
    assert folder_contents(tmp_path / "out") == expected


def test_a_damaged_shard_is_not_written_again(differing: tuple[Path, Path], tmp_path: Path) -> None:
    shard = sorted((differing[1] / "shards").iterdir())[0]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CorruptShardError, match=r"b/shards/0.*checksum"):
        gear_data.merge(differing, tmp_path / "out", progress=False)
    assert not (tmp_path / "out/manifest.json").exists()
