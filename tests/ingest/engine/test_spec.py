"""A specification and its record in the manifest."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import msgspec
import pytest

from gear_data import EpisodeBoundaries, TableOptions, VideoStorage
from gear_data.errors import MappingError
from gear_data.ingest.engine.spec import ConversionSpec
from gear_data.ingest.mapping import load_mapping
from gear_data.ingest.source import SourceOptions

_MAPPING = {"episodes": {"groups": "demo_*"}, "columns": {"observations": "obs"}}
#: What a manifest records of a conversion without options, in this order.
_DEFAULTS = {
    "split": None,
    "format": "d4rl",
    "keep_encoded": False,
    "strict": False,
    "shard_bytes": 536870912,
    "columns": None,
    "rename": None,
    "episode_column": None,
    "step_column": None,
    "end_column": None,
    "max_episode_steps": None,
    "file_is_episode": None,
    "reset_steps": None,
    "on_bad_episode": "error",
    "mapping": None,
    "stack": None,
    "video_columns": None,
    "videos": None,
    "video_size": None,
    "dtype": None,
    "fill_null": None,
    "header": None,
}
#: The same with a value for every option.
_ALL = {
    "split": ["train", "val"],
    "format": "tree",
    "keep_encoded": True,
    "strict": True,
    "shard_bytes": 2048,
    "columns": ["a", "b"],
    "rename": {"x": "actions"},
    "episode_column": "run",
    "step_column": "t",
    "end_column": "done",
    "max_episode_steps": 7,
    "file_is_episode": None,
    "reset_steps": "drop",
    "only_episodes": [2, 5],
    "on_bad_episode": "skip",
    "mapping": _MAPPING,
    "stack": {"observations": ["a", "b"]},
    "video_columns": {"observations.images.top": "top/*.mp4"},
    "videos": "frames",
    "video_size": [24, 32],
    "depth_unit": "m",
    "dtype": {"actions": "float64"},
    "fill_null": {"force": "nan"},
    "header": False,
    "follow_links": True,
}
#: Options that exclude others of their group.
_EXCLUSIVE = ("file_is_episode",)


def test_a_record_without_options() -> None:
    spec = ConversionSpec("source", None, "d4rl", SourceOptions(), keep_encoded=False)
    assert json.dumps(spec.to_json()) == json.dumps(_DEFAULTS)
    assert ConversionSpec.from_json("source", _DEFAULTS) == spec


def test_every_option_is_recorded_and_restored() -> None:
    episodes = EpisodeBoundaries(
        episode_column="run",
        step_column="t",
        end_column="done",
        max_episode_steps=7,
        reset_steps="drop",
        only_episodes=(2, 5),
    )
    tables = TableOptions(dtype={"actions": "float64"}, fill_null={"force": float("nan")}, header=False)
    videos = VideoStorage(
        cameras={"observations.images.top": "top/*.mp4"}, mode="frames", size=(24, 32), depth_unit="m"
    )
    options = SourceOptions(
        ["a", "b"],
        {"x": "actions"},
        episodes,
        "skip",
        load_mapping(_MAPPING),
        {"observations": ["a", "b"]},
        videos,
        tables,
        follow_links=True,
    )
    for group in (episodes, videos, tables, options):
        default = type(group)()
        names = [each.name for each in fields(group) if each.name not in _EXCLUSIVE]
        assert not [name for name in names if getattr(group, name) == getattr(default, name)]
    spec = ConversionSpec("source", ("train", "val"), "tree", options, True, True, 2048)
    assert json.dumps(spec.to_json()) == json.dumps(_ALL)
    assert ConversionSpec.from_json("source", json.loads(json.dumps(_ALL))) == spec


@pytest.mark.parametrize(
    "episodes",
    [EpisodeBoundaries(file_is_episode=True), EpisodeBoundaries(episode_column=("seed", "episode"))],
)
def test_boundaries_are_recorded_and_restored(episodes: EpisodeBoundaries) -> None:
    spec = ConversionSpec("source", None, "auto", SourceOptions(episodes=episodes), keep_encoded=False)
    assert ConversionSpec.from_json("source", json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize("added", ["mapping", "stack", "video_columns", "videos", "video_size", "dtype", "header"])
def test_older_manifests_lack_later_options(added: str) -> None:
    older = {name: value for name, value in _DEFAULTS.items() if name != added}
    assert ConversionSpec.from_json("source", older).to_json() == _DEFAULTS


@pytest.mark.parametrize(
    "wrong",
    [
        {"columns": 1},
        {"columns": [1]},
        {"rename": ["a"]},
        {"shard_bytes": 10},
        {"shard_bytes": "x"},
        {"strict": None},
        {"on_bad_episode": "stop"},
        {"max_episode_steps": 0},
        {"episode_column": 3},
        {"videos": "gif"},
        {"video_size": [24, 32]},  # the files are kept as they are
        {"video_columns": {"": "x"}},
        {"stack": {"a": "b"}},
        {"dtype": {"a": "text"}},
        {"header": "yes"},
        {"file_is_episode": 1},
        {"later_option": 1},
        {"source": "x"},
    ],
)
def test_other_records_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        ConversionSpec.from_json("source", _DEFAULTS | wrong)
    with pytest.raises(MappingError):
        ConversionSpec.from_json("source", _DEFAULTS | {"mapping": {"episodes": 1}})


def test_stacked_columns_keep_their_parts() -> None:
    options = SourceOptions(columns=["actions", "both"], stack={"both": ["b", "a"]}).with_stacked_parts()
    assert options.columns == ("actions", "a", "b")
    assert replace(options, rename={"x": "y"}).with_stacked_parts() == replace(options, rename={"x": "y"})
