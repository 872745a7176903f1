"""A wrong mapping is refused with the key, the value found, and what to do."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gear_data.errors import MappingError
from gear_data.ingest.mapping import load_mapping, parse_mapping

GROUPS = {"groups": "demo_*"}
FLAT = {"ends": "meta/episode_ends", "ends_are": "exclusive"}


def mapping(episodes: Any = None, columns: Any = None, **more: Any) -> dict[str, Any]:
    chosen = {"actions": "action"} if columns is None else columns
    return {"episodes": GROUPS if episodes is None else episodes, "columns": chosen, **more}


def test_a_mapping_is_read_and_written_alike(tmp_path: Path) -> None:
    text = """
    episodes: {groups: /data/demo_*/}
    columns:
      actions: {path: action, dtype: float32}
      observations: {path: obs, next: next_obs}
      observations.image: {path: rgb, role: with-final}
      rewards: {path: reward, role: after-reset}
      success: {path: "@success", role: episode}
    splits:
      train: {files: train_*.h5}
      val: {groups: data/demo_9*}
    """
    file = tmp_path / "mapping.yaml"
    file.write_text(text)
    read = load_mapping(file)
    assert read.episodes.paths == ("data/demo_*",)
    assert [(c.name, c.path, c.dtype, c.role, c.next) for c in read.columns] == [
        ("actions", "action", "float32", "step", None),
        ("observations", "obs", None, "step", "next_obs"),
        ("observations.image", "rgb", None, "with-final", None),
        ("rewards", "reward", None, "after-reset", None),
        ("success", "@success", None, "episode", None),
    ]
    assert [split.name for split in read.splits] == ["train", "val"]
    assert parse_mapping(read.to_json(), "again") == read


@pytest.mark.parametrize("text", ["[E, T, ...]", "[T, E]"])
def test_padded_axes_are_read_and_written_alike(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mapping.yaml"
    file.write_text(f"episodes: {{padded: {text}, mask: /valid}}\ncolumns: {{actions: act}}\n")
    read = load_mapping(file)
    assert (read.episodes.paths, read.episodes.steps_first) == (("valid",), text.startswith("[T"))
    assert parse_mapping(read.to_json(), "again") == read


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, "the mapping: is empty"),
        ([], "the mapping: is []"),
        ({"columns": {"actions": "action"}}, "episodes: is missing"),
        (mapping(sources="x"), "sources: is not a key"),
        (mapping({"groups": "a", "ids": "b"}), "episodes: has groups and ids"),
        (mapping({}), "episodes: does not say where"),
        (mapping({"groups": 3}), "episodes.groups: is 3"),
        (mapping({"groups": "/"}), "episodes.groups: is '/'"),
        (mapping({"datasets": "actions"}), "episodes.datasets: is 'actions', without one '*'"),
        (mapping({"ends": "e"}), "episodes.ends_are: is missing"),
        (mapping({"ends": "e", "ends_are": "last"}), "episodes.ends_are: is 'last', which is no choice"),
        (mapping({"ends": ["e", "f"], "ends_are": "inclusive"}), "episodes.ends: lists 2 arrays"),
        (mapping({"groups": "a", "ends_are": "flags"}), "episodes.ends_are: is 'flags', but"),
        (mapping({"groups": "a", "lengths": "n"}), "episodes.lengths: is given, but the episodes are groups"),
        (mapping({"padded": "act", "lengths": "n"}), "episodes.padded: is 'act', which names no two axes"),
        (mapping({"padded": ["T", "T"], "lengths": "n"}), "episodes.padded: is ['T', 'T']"),
        (mapping({"padded": ["E", "T"]}), "episodes: does not say which steps are padding"),
        (mapping({"padded": ["E", "T"], "lengths": "n", "mask": "m"}), "episodes: has lengths and mask"),
        (mapping(columns={}), "columns: has no column"),
        (mapping(columns={"a": {"path": "x", "role": "episode"}}), "columns: has no column"),
        (mapping(columns={True: "action"}), "columns.True: True is not a name"),
        (mapping(columns={"a..b": "action"}), "columns.a..b: 'a..b' is not a name"),
        (mapping(columns={"action": "action"}), "columns.action: is a source's name"),
        (mapping(columns={"actions": None}), "columns.actions: is empty"),
        (mapping(columns={"actions": {"dtype": "float32"}}), "columns.actions.path: is missing"),
        (mapping(columns={"actions": {"path": "a", "type": "f4"}}), "columns.actions.type: is not a key"),
        (mapping(columns={"actions": {"path": "a", "dtype": "f4"}}), "columns.actions.dtype: is 'f4'"),
        (mapping(columns={"actions": {"path": "a", "role": "final"}}), "columns.actions.role: is 'final'"),
        (mapping(columns={"x": {"path": "a", "role": "with-final", "next": "b"}}), "columns.x.next: is given together"),
        (mapping(columns={"x": "a", "y": "a"}), "columns.y: has the path 'a', as 'x' has"),
        (mapping(columns={"x": "@a"}), "columns.x: is the attribute '@a'"),
        (mapping(FLAT, {"x": {"path": "a", "role": "with-final"}}), "columns.x.role: is 'with-final', but all"),
        (mapping({"datasets": "actions_*"}, {"x": "states"}), "columns.x: has the path 'states', without one '*'"),
        (mapping(splits={"train": {}}), "splits.train: does not say"),
        (mapping(FLAT, splits={"train": {"groups": "a"}}), "splits.train.groups: is given, but"),
    ],
)
def test_each_wrong_key_is_named(data: Any, expected: str) -> None:
    with pytest.raises(MappingError) as error:
        parse_mapping(data, "m.yaml")
    assert error.value.message.startswith(expected)
    assert error.value.file == "m.yaml"
    assert error.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("episodes: [", "is not YAML"),
        ("episodes: {groups: a}\nepisodes: {groups: b}", "the key 'episodes' is given twice, in line 2"),
        ("columns: !!python/object/apply:os.system [ls]", "is not YAML"),
        ("a" * (2 << 20), "has more than"),
        ("[" * 10_000, "is not YAML"),
        ("a: &x [*x]\nb: *x", "a: is not a key"),
        ("\x00", "is not YAML"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(text)
    with pytest.raises(MappingError, match=r"m\.yaml") as error:
        load_mapping(file)
    assert expected in str(error.value)


#: Nested aliases: a short text, and a value of 10^9 elements.
BOMB = "[&a [x, x, x, x, x, x, x, x, x, x]"
for before, name in pairwise("abcdefghi"):
    BOMB += f", &{name} [{', '.join([f'*{before}'] * 10)}]"
BOMB += "]"
LONG = f"0x{'f' * 20_000}"


@pytest.mark.parametrize("value", [BOMB, LONG, f"{{? {LONG} : x}}", "[[E], [T]]", "[E, 3]", ".inf", "!!set {a, b}"])
@pytest.mark.parametrize(
    "place",
    [
        "%s",
        "episodes: %s\ncolumns: {a: b}",
        "episodes: {groups: %s}\ncolumns: {a: b}",
        "episodes: {padded: %s, lengths: n}\ncolumns: {a: b}",
        "episodes: {ends: %s, ends_are: flags}\ncolumns: {a: b}",
        "episodes: {groups: x}\ncolumns: %s",
        "episodes: {groups: x}\ncolumns: {a: {path: %s}}",
        "episodes: {groups: x}\ncolumns: {a: {path: x, dtype: %s}}",
        "episodes: {groups: x}\ncolumns: {? %s : b}",
        "episodes: {groups: x}\ncolumns: {a: b}\nsplits: {t: {groups: %s}}",
    ],
)
def test_any_value_anywhere_is_refused_in_a_short_message(place: str, value: str, tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(place % value)
    with pytest.raises(MappingError) as error:
        load_mapping(path)
    assert len(str(error.value)) < 1000


def test_a_missing_file_and_another_type_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MappingError, match=r"none.yaml: cannot be read: No such file"):
        load_mapping(tmp_path / "none.yaml")
    with pytest.raises(MappingError, match="must be the path of a YAML file or a dict, not int"):
        load_mapping(3)  # type: ignore[arg-type]
