"""Files of mixtures, against mixtures that Python makes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

import gear_data
from gear_data import Mixture, Seconds, SequenceLoader, TopK, Uniform, Weighted
from gear_data.errors import (
    DatasetNotFoundError,
    EmptySourceError,
    GearError,
    InvalidArgumentError,
    LoaderConfigError,
    UnknownNameError,
)
from tests.support.feed.batches import same, take
from tests.support.rollouts import Rollout, write_d4rl, write_steps

TEXT = """
join: true
pad_to: {observations: 12, actions: 4}
datasets:
  - path: hopper
    share: [[0, 1.0], [20, 0.25]]
    filters:
      - filter: length >= 15
      - {filter_steps: rewards > -1, mode: all}
      - {drop_idle: actions, threshold: 0.9, seconds: 0.1, fps: 20, mode: all}
    columns: [observations, actions, rewards]
  - path: pendulum
    sampler: {name: weighted, weights: length + 1, by: step}
    stack: {observations: [observations, infos.qpos]}
    columns: [observations, actions, rewards]
    normalize: [actions]
    fps: 12.5
  - path: arm
    share: 2
    filters:
      - keep_ranges: {0: [[0, 5], [8, 15]], 2: [[1, 17]]}
    rename: {state: observations}
    columns: [observations, actions, rewards]
    sampler: shuffle
"""


def expected(folder: Path) -> Mixture:
    """Returns the mixture of `TEXT`."""
    hopper, pendulum, arm = (gear_data.open(folder / name) for name in ("hopper", "pendulum", "arm"))
    hopper = hopper.filter("length >= 15").filter_steps("rewards > -1", mode="all")
    hopper = hopper.drop_idle("actions", threshold=0.9, seconds=0.1, fps=20, mode="all")
    columns = ["observations", "actions", "rewards"]
    stack = {"observations": ["observations", "infos.qpos"]}
    weighted = Weighted("length + 1", by="step")
    return Mixture(
        [
            (hopper, [(0, 1.0), (20, 0.25)], {"columns": columns}),
            (
                pendulum,
                1,
                {"sampler": weighted, "stack": stack, "columns": columns, "normalize": ["actions"], "fps": 12.5},
            ),
            (
                arm.keep_ranges({0: [[0, 5], [8, 15]], 2: [[1, 17]]}),
                2,
                {"rename": {"state": "observations"}, "columns": columns, "sampler": "shuffle"},
            ),
        ],
        join=True,
        pad_to={"observations": 12, "actions": 4},
    )


def _loader(mixture: Mixture, prefetch: int = 0) -> SequenceLoader:
    offsets = {"rewards": Seconds([0, 0.04], fill="hold", fps=50)}
    return SequenceLoader(mixture, batch_size=6, context=4, seed=3, offsets=offsets, prefetch=prefetch)


def test_the_batches_are_those_of_the_mixture(folder: Path) -> None:
    (folder / "mix.yaml").write_text(TEXT)
    mixture, other = Mixture.from_yaml(folder / "mix.yaml"), expected(folder)
    loaders = _loader(mixture), _loader(other, prefetch=2)
    same(*(take(loader, 30) for loader in loaders))
    assert json.dumps(loaders[0].spec(), default=str) == json.dumps(loaders[1].spec(), default=str)
    resumed = _loader(mixture)
    resumed.load_state_dict(loaders[1].state_dict())
    same(take(resumed, 5), take(loaders[1], 5))


@pytest.mark.parametrize("name", ["mix.yaml", "elsewhere/mix.yaml"])
def test_a_written_mixture_is_read_again(folder: Path, name: str) -> None:
    mixture = expected(folder)
    mixture.to_yaml(folder / name)
    document = yaml.safe_load((folder / name).read_text())
    paths = [Path(each["path"]) for each in document["datasets"]]
    assert [path.is_absolute() for path in paths] == [name != "mix.yaml"] * 3
    assert [(folder / path).name for path in paths] == ["hopper", "pendulum", "arm"]
    again = Mixture.from_yaml(folder / name)
    assert again.fingerprint == mixture.fingerprint
    same(take(_loader(again), 20), take(_loader(mixture), 20))
    again.to_yaml(folder / "again.yaml")
    assert yaml.safe_load((folder / "again.yaml").read_text())["pad_to"] == {"observations": 12, "actions": 4}
    # Nothing is padded, and columns may be absent.
    Mixture([again.components[0].dataset], join=True, pad_to={}).to_yaml(folder / "absent.yaml")
    assert Mixture.from_yaml(folder / "absent.yaml").pad_to == {}


def test_equal_shares_urls_and_files_of_ranges(folder: Path, memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    for name in ("hopper", "arm"):
        files.put(str(folder / name), f"{memory_url}/data/{name}", recursive=True)
    files.pipe(f"{memory_url}/ranges.json", b'{"1": [[0, 7]]}')
    text = "datasets: [{path: data/hopper, filters: [{keep_ranges: ranges.json}]}, {path: data/arm}]"
    files.pipe(f"{memory_url}/mix.yaml", text.encode())
    mixture = Mixture.from_yaml(f"{memory_url}/mix.yaml")
    local = gear_data.open(folder / "hopper").keep_ranges({1: [[0, 7]]})
    assert mixture.fingerprint == Mixture([local, gear_data.open(folder / "arm")]).fingerprint
    assert mixture.proportions == (1, 1) and not mixture.join
    mixture.to_yaml(f"{memory_url}/again.yaml")
    assert Mixture.from_yaml(f"{memory_url}/again.yaml").fingerprint == mixture.fingerprint
    mixture.to_yaml(folder / "remote.yaml")
    assert yaml.safe_load((folder / "remote.yaml").read_text())["datasets"] == [
        {
            "path": f"{memory_url}/data/hopper",
            "share": 1,
            "filters": [{"keep_ranges": f"{memory_url}/ranges.json", "mode": "first"}],
        },
        {"path": f"{memory_url}/data/arm", "share": 1},
    ]


def test_a_file_of_ranges_is_relative_to_the_mixture(folder: Path) -> None:
    (folder / "ranges.json").write_text('{"0": [[2, 4]]}')
    (folder / "mix.yaml").write_text("datasets: [{path: arm, filters: [{keep_ranges: ranges.json}]}]")
    mixture = Mixture.from_yaml(folder / "mix.yaml")
    assert mixture.components[0].dataset.steps_left_out == 15 + 16 + 17 + 18 - 2
    mixture.to_yaml(folder / "again.yaml")
    entry = yaml.safe_load((folder / "again.yaml").read_text())["datasets"][0]
    assert entry["filters"] == [{"keep_ranges": "ranges.json", "mode": "first"}]


@pytest.mark.parametrize(
    "sampler", ["fifo", Uniform(), Uniform(by="episode"), TopK("level", k=2), Weighted([1.0, 2, 3])]
)
def test_samplers(folder: Path, sampler: Any) -> None:
    mixture = Mixture([(gear_data.open(folder / "hopper"), 1, {"sampler": sampler})])
    mixture.to_yaml(folder / "mix.yaml")
    again = Mixture.from_yaml(folder / "mix.yaml")
    same(take(_loader(again), 10), take(_loader(mixture), 10))


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("datasets: [", LoaderConfigError, ["is not YAML"]),
        ("datasets: []", LoaderConfigError, ["its datasets are []", "share: 0.7"]),
        ("- path: hopper", LoaderConfigError, ["the file is [{'path': 'hopper'}], not a mapping"]),
        (
            "datasets: [{path: hopper}]\njoined: true",
            LoaderConfigError,
            ["unknown key 'joined'", "did you mean 'join'"],
        ),
        (
            "join: true\njoin: false\ndatasets: [{path: hopper}]",
            LoaderConfigError,
            ["'join' is given twice, in line 2"],
        ),
        ("join: 'no'\ndatasets: [{path: hopper}]", InvalidArgumentError, ["join is True or False, not 'no'"]),
        ("datasets: [hopper]", LoaderConfigError, ["datasets[0] is 'hopper', not a mapping"]),
        ("datasets: [{path: hopper}, {share: 1}]", LoaderConfigError, ["the path of datasets[1] is None"]),
        ("datasets: [{path: hopper, shar: 1}]", LoaderConfigError, ["datasets[0]", "'shar'", "did you mean 'share'"]),
        ("datasets: [{path: nowhere}]", DatasetNotFoundError, ["datasets[0] of", "nowhere"]),
        ("datasets: [{path: hopper, rename: [a]}]", InvalidArgumentError, ["rename must map columns"]),
        (
            "datasets: [{path: arm}, {path: hopper, share: [[0, 1], [0, 2]]}]",
            InvalidArgumentError,
            ["the mixture of", "dataset 1 (", "hopper): the breakpoints", "step 0 after step 0"],
        ),
        (
            "datasets: [{path: arm}, {path: hopper, filters: [{keep_ranges: {1: [[0, 5], [4, 6]]}}]}]",
            InvalidArgumentError,
            ["datasets[1].filters[0] of", "hopper: the ranges [0, 5) and [4, 6) of episode 1 overlap"],
        ),
        (
            "datasets: [{path: arm}, {path: hopper, filters: [{keep_ranges: {1: [[0, 99]]}}]}]",
            InvalidArgumentError,
            ["datasets[1].filters[0] of", "hopper: the range [0, 99) of episode 1 lies beyond its steps"],
        ),
        ("datasets: [{path: hopper}]\npad_to: 3", InvalidArgumentError, ["pad_to must map columns"]),
        ("datasets: [{path: hopper, filters: {filter: x}}]", LoaderConfigError, ["the filters of datasets[0] are"]),
        (
            "datasets: [{path: hopper, filters: [length]}]",
            LoaderConfigError,
            ["'length', not one filter"],
        ),
        (
            "datasets: [{path: hopper, filters: [{filter: length > 1, filter_steps: rewards > 0}]}]",
            LoaderConfigError,
            ["datasets[0].filters[0] is", "not one filter"],
        ),
        (
            "datasets: [{path: hopper, filters: [{filter: length > 1, mode: all}]}]",
            LoaderConfigError,
            ["datasets[0].filters[0] has the unknown key 'mode'"],
        ),
        (
            "datasets: [{path: hopper, filters: [{drop_idle: actions, seconds: 1}]}]",
            LoaderConfigError,
            ["datasets[0].filters[0]", "threshold"],
        ),
        (
            "datasets: [{path: arm}, {path: hopper, filters: [{filter: lenth > 1}]}]",
            UnknownNameError,
            ["datasets[1].filters[0] of", "did you mean 'length'"],
        ),
        ("datasets: [{path: arm, filters: [{filter: length > 99}]}]", EmptySourceError, ["filters[0] of", "15 to 18"]),
        ("datasets: [{path: hopper, sampler: {name: best}}]", LoaderConfigError, ["has the name 'best'", "weighted"]),
        ("datasets: [{path: hopper, sampler: {name: topk, n: 3}}]", LoaderConfigError, ["unknown key 'n'"]),
        ("datasets: [{path: hopper, sampler: {name: topk}}]", LoaderConfigError, ["datasets[0]", "k"]),
        (None, LoaderConfigError, ["no such file"]),
    ],
)
def test_wrong_files(text: str | None, error: type[GearError], words: list[str], folder: Path) -> None:
    file = folder / "wrong.yaml"
    file.unlink(missing_ok=True)
    if text is not None:
        file.write_text(text)
    with pytest.raises(error) as raised:
        Mixture.from_yaml(file)
    assert type(raised.value) is error
    for word in [*words, "wrong.yaml"]:
        assert word in str(raised.value)


def test_what_a_file_cannot_hold(folder: Path, tmp_path: Path) -> None:
    ds = gear_data.open(folder / "hopper")
    shutil.copytree(folder / "hopper", tmp_path / "whole")
    ds.filter_steps("rewards > 0").save(tmp_path / "steps", progress=False)
    steps = gear_data.open(tmp_path / "steps")
    gear_data.merge([folder / "hopper", tmp_path / "whole"], tmp_path / "two", progress=False)
    shard = tmp_path / "two" / gear_data.open(tmp_path / "two").manifest.shards[1].entry.file
    data = shard.read_bytes()
    shard.unlink()  # a link to the shard of "whole"
    shard.write_bytes(data[:-8])
    with pytest.warns(RuntimeWarning, match="left out"):
        sound = gear_data.open(tmp_path / "two", on_bad_shard="skip")
    for entry, words in [
        ((ds, lambda step: 1.0), "a function"),
        ((ds.select([1]), 1), "Dataset.save"),
        ((sound, 1), "on_bad_shard='skip'"),
        ((sound.filter("length > 1"), 1), "on_bad_shard='skip'"),
        ((ds.with_discount(0.5), 1), "discount"),
        ((steps.all_steps(), 1), "without a saved filter"),
        ((ds.filter(pl.col("length") > 13), 1), "a file holds SQL"),
        ((ds.filter_steps(pl.col("rewards") > 0), 1), "a file holds SQL"),
        ((ds, 1, {"sampler": Weighted(pl.col("length"))}), "cannot hold sampler="),
        ((ds.drop("rewards"), 1), "edits that were not saved"),
        ((ds.with_facts({"good": [True, False, True]}).filter("length > 1"), 1), "edits that were not saved"),
    ]:
        with pytest.raises(InvalidArgumentError) as raised:
            Mixture([entry]).to_yaml(tmp_path / "mix.yaml")  # type: ignore[list-item]
        assert words in str(raised.value) and "dataset 0" in str(raised.value)
    assert not (tmp_path / "mix.yaml").exists()
    Mixture([steps]).to_yaml(tmp_path / "mix.yaml")
    again = Mixture.from_yaml(tmp_path / "mix.yaml")
    assert again.fingerprint == steps.fingerprint
    share = Mixture([(ds, np.float32(0.5))])
    share.to_yaml(tmp_path / "mix.yaml")
    assert Mixture.from_yaml(tmp_path / "mix.yaml").proportions == (0.5,)


def test_sources_in_a_file(tmp_path: Path, rollouts: list[Rollout], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path / "cache"))
    write_d4rl(tmp_path / "mix/hops.hdf5", rollouts)
    write_steps(tmp_path / "mix/steps.parquet", rollouts[:9])
    text = """
datasets:
  - {path: hops.hdf5, columns: [actions, rewards]}
  - path: steps.parquet
    convert: {columns: [actions, rewards], episodes: {episode_column: episode_index}}
    columns: [actions, rewards]
"""
    (tmp_path / "mix/mix.yaml").write_text(text)
    mixture = Mixture.from_yaml(tmp_path / "mix/mix.yaml")

    def batches(mixed: Mixture) -> list[Any]:
        return take(SequenceLoader(mixed, batch_size=4, context=3, prefetch=0), 5)

    direct = [tmp_path / "hops", tmp_path / "steps"]
    gear_data.convert(tmp_path / "mix/hops.hdf5", direct[0])
    gear_data.convert(tmp_path / "mix/steps.parquet", direct[1])
    columns = {"columns": ["actions", "rewards"]}
    expected = Mixture([(gear_data.open(path), 1, columns) for path in direct])
    same(batches(mixture), batches(expected))
    # What is written names the sources, not the cache.
    mixture.to_yaml(tmp_path / "mix/again.yaml")
    written = yaml.safe_load((tmp_path / "mix/again.yaml").read_text())["datasets"]
    assert [entry["path"] for entry in written] == ["hops.hdf5", "steps.parquet"]
    assert written[1]["convert"] == {
        "columns": ["actions", "rewards"],
        "episodes": {"episode_column": "episode_index"},
    }
    same(batches(Mixture.from_yaml(tmp_path / "mix/again.yaml")), batches(expected))
    in_memory = gear_data.open([rollout.columns for rollout in rollouts])
    with pytest.raises(InvalidArgumentError, match="list in memory, and a file holds one path"):
        Mixture([(in_memory, 1)]).to_yaml(tmp_path / "mix/bad.yaml")


def test_wrong_options_of_a_conversion(tmp_path: Path) -> None:
    (tmp_path / "mix.yaml").write_text("datasets: [{path: hops.hdf5, convert: {colums: [a]}}]")
    with pytest.raises(InvalidArgumentError, match=r"datasets\[0\] of .*'colums'"):
        Mixture.from_yaml(tmp_path / "mix.yaml")
