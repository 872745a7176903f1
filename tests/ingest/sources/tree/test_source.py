"""Conversion with a mapping, and what does not fit it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import gear_data
from gear_data import EpisodeBoundaries
from gear_data.cli import main
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    EmptySourceError,
    GearError,
    InvalidArgumentError,
    UnknownFormatError,
    UnknownNameError,
    UnsupportedColumnError,
)
from gear_data.ingest.sources.tree.view import natural_order
from tests.support.makers.ideas import write_zarr

LENGTHS = (3, 5, 2, 4)


def rows(count: int, *shape: int, start: float = 0) -> Any:
    return start + np.arange(count * int(np.prod(shape)), dtype=np.float64).reshape(count, *shape)


def write(path: Path, **arrays: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name.replace("__", "/")] = values
    return path


def groups(path: Path, **changes: Any) -> Path:
    """Writes four groups; changes replace arrays, and None removes them."""
    arrays: dict[str, Any] = {}
    for i, steps in enumerate(LENGTHS):
        arrays |= {f"demo_{i}__act": rows(steps, 2, start=i), f"demo_{i}__obs": rows(steps + 1, 3, start=i)}
    return write(path, **{name: values for name, values in (arrays | changes).items() if values is not None})


MAPPING: dict[str, Any] = {
    "episodes": {"groups": "demo_*"},
    "columns": {"actions": "act", "observations": {"path": "obs", "role": "with-final"}},
}


def test_digits_that_are_no_numbers_in_names() -> None:
    """Python calls ² a digit, and cannot read it as a number."""
    assert sorted(["²", "a10²", "a2²3"], key=natural_order) == ["a2²3", "a10²", "²"]


def convert(source: Path, tmp_path: Path, mapping: Any = MAPPING, **options: Any) -> gear_data.Dataset:
    gear_data.convert(source, tmp_path / "d", mapping=mapping, progress=False, **options)
    return gear_data.open(tmp_path / "d")


def flat(path: Path, **more: Any) -> Path:
    total = sum(LENGTHS)
    return write(path, act=rows(total, 2), obs=rows(total, 3), after=rows(total, 3, start=0.5), **more)


def check_flat(ds: gear_data.Dataset) -> None:
    start = 0
    assert ds.episodes["length"].to_list() == list(LENGTHS)
    for i, steps in enumerate(LENGTHS):
        np.testing.assert_array_equal(ds.episode(i)["actions"], rows(sum(LENGTHS), 2)[start : start + steps])
        final = ds.final(i)
        assert final is not None
        np.testing.assert_array_equal(final["observations"], rows(sum(LENGTHS), 3, start=0.5)[start + steps - 1])
        start += steps


FLAT_COLUMNS = {
    "actions": "act",
    "observations": {"path": "obs", "next": "after"},
    "weight": {"path": "weight", "role": "episode"},
}
ENDS = np.cumsum(LENGTHS)
FLAGS = np.isin(np.arange(ENDS[-1]), ENDS - 1)


@pytest.mark.parametrize(
    ("episodes", "marks"),
    [
        ({"ends": "m", "ends_are": "exclusive"}, {"m": ENDS}),
        ({"ends": "m", "ends_are": "inclusive"}, {"m": (ENDS - 1).astype(np.uint16)[:, None]}),
        ({"ends": ["m", "n"], "ends_are": "flags"}, {"m": FLAGS & (np.arange(14) < 8), "n": FLAGS.astype(float)}),
        ({"ids": "m"}, {"m": np.repeat([7, 3, 9, 1], LENGTHS)}),
        ({"ids": "m"}, {"m": np.repeat([b"a", b"c", b"b", b"d"], LENGTHS)}),
        ({"ids": ["m"]}, {"m": np.repeat([7, 3, 9, 1], LENGTHS)}),
        (
            {"ids": ["m", "n"]},
            {"m": np.repeat([7, 7, 7, 1], LENGTHS), "n": np.repeat([b"0", b"1", b"2", b"2"], LENGTHS)},
        ),
    ],
)
def test_ends_flags_and_ids_cut_flat_arrays(episodes: Any, marks: Any, tmp_path: Path) -> None:
    source = flat(tmp_path / "a.h5", weight=np.array([0.5, 1.5, 2.5, 3.5]), **marks)
    ds = convert(source, tmp_path, {"episodes": episodes, "columns": FLAT_COLUMNS})
    check_flat(ds)
    assert ds.episodes["weight"].to_list() == [0.5, 1.5, 2.5, 3.5]
    if "ids" in episodes:
        assert ds.episodes["m" if "n" in marks else "episode"].to_list()[0] in (7, "a")


@pytest.mark.parametrize(
    ("episodes", "marks", "expected"),
    [
        ({"ends": "m", "ends_are": "exclusive"}, ENDS - 1, "the last end is 13, but the columns have 14 rows"),
        ({"ends": "m", "ends_are": "exclusive"}, [3, 3, 14], "ends at row 3, not after row 3"),
        ({"ends": "m", "ends_are": "exclusive"}, [8, 3, 14], "ends at row 3, not after row 8"),
        ({"ends": "m", "ends_are": "exclusive"}, [3.0, 14.0], "holds float64, but ends are integers"),
        ({"ends": "m", "ends_are": "exclusive"}, [[3, 14]], "needs one value per row"),
        ({"ends": "m", "ends_are": "flags"}, np.arange(14), "neither 0 nor 1"),
        ({"ends": "m", "ends_are": "flags"}, [0, 1], "has 2 rows, but the columns have 14"),
        ({"ids": "m"}, np.arange(14) % 5 // 3, "episode 0 continues here after another one began"),
        ({"ids": ["m", "m"]}, np.arange(14) % 5 // 3, r"episode \(0, 0\) continues here after another one began"),
        ({"ids": "m"}, np.arange(14) / 2, "ids are integers or text"),
        ({"ids": "n"}, np.arange(14), "has no array 'n', which episodes.ids names"),
    ],
)
def test_marks_that_mark_no_episodes_are_refused(episodes: Any, marks: Any, expected: str, tmp_path: Path) -> None:
    source = flat(tmp_path / "a.h5", m=marks)
    with pytest.raises((BadEpisodeError, CorruptSourceError), match=expected):
        convert(source, tmp_path, {"episodes": episodes, "columns": {"actions": "act"}})


#: Two runs whose episodes have the same numbers.
RUNS = {"run": np.repeat([4, 4, 9, 9], LENGTHS), "number": np.repeat([0, 1, 0, 1], LENGTHS)}


@pytest.mark.parametrize("kind", ["h5", "zarr"])
@pytest.mark.parametrize("piece", [1 << 20, 2, 3])
def test_arrays_that_the_user_names_are_ids(
    kind: str, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gear_data.ingest.sources.tree.episodes._SCAN_ROWS", piece)
    arrays = {"data/action": rows(14, 2), "data/state": rows(14, 3), **{f"meta/{n}": v for n, v in RUNS.items()}}
    if kind == "zarr":
        write_zarr(arrays, tmp_path / "a.zarr")
    else:
        write(tmp_path / "a.h5", **{name.replace("/", "__"): values for name, values in arrays.items()})
    names = ["meta/run", "meta/number"]
    options = [each for name in names for each in ("--episode-column", name)]
    assert main(["convert", str(tmp_path / f"a.{kind}"), str(tmp_path / "d"), *options]) == 0
    ds = gear_data.open(tmp_path / "d")
    assert ds.schema.names[:2] == ("actions", "observations")
    assert ds.episodes["length"].to_list() == list(LENGTHS)
    assert ds.episodes["meta.run"].to_list() == [4, 4, 9, 9]
    assert ds.episodes["meta.number"].to_list() == [0, 1, 0, 1]
    np.testing.assert_array_equal(ds.episode(2)["actions"], rows(14, 2)[8:10])


def test_an_id_that_the_user_renames(tmp_path: Path) -> None:
    source = write(tmp_path / "a.h5", action=rows(14, 2), state=rows(14, 3), m=np.repeat([7, 3, 9, 1], LENGTHS))
    gear_data.convert(
        source, tmp_path / "d", rename={"m": "run"}, episodes=EpisodeBoundaries(episode_column="run"), progress=False
    )
    assert gear_data.open(tmp_path / "d").episodes["length"].to_list() == list(LENGTHS)


@pytest.mark.parametrize(
    ("ids", "mapping", "error", "expected"),
    [
        ("number", None, BadEpisodeError, "episode 0 continues here(.|\n)*give --episode-column for each of them"),
        (("run", "nomber"), None, UnknownNameError, "nomber"),
        ("run", {"episodes": {"ids": "run"}, "columns": {"actions": "action"}}, InvalidArgumentError, "both say where"),
    ],
)
def test_ids_that_the_user_cannot_mean(ids: Any, mapping: Any, error: Any, expected: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.h5", action=rows(14, 2), episode=np.zeros(14, int), **RUNS)
    with pytest.raises(error, match=expected):
        convert(source, tmp_path, mapping, episodes=EpisodeBoundaries(episode_column=ids))


def test_an_episode_without_a_step_is_skipped_and_facts_stay_in_line(tmp_path: Path) -> None:
    source = flat(tmp_path / "a.h5", m=[3, 3, 8, 10, 14], weight=[0.0, 1.0, 2.0, 3.0, 4.0])
    mapping = {"episodes": {"ends": "m", "ends_are": "exclusive"}, "columns": FLAT_COLUMNS}
    ds = convert(source, tmp_path, mapping, on_bad_episode="skip")
    check_flat(ds)
    assert ds.episodes["weight"].to_list() == [0.0, 2.0, 3.0, 4.0]
    assert any(finding["code"] == "bad-episode" for finding in ds.manifest.findings)


BAD = {
    "missing": ({"demo_2__act": None}, "is missing"),
    "rows": ({"demo_2__obs": rows(2, 3)}, "has 2 rows, where 3 are expected: 'demo_2/act' has 2"),
    "shape": ({"demo_2__act": rows(2, 4)}, r"is float64 \(4,\), in a.h5 demo_0 float64 \(2,\)"),
    "text": ({"demo_2__act": [b"x", b"y"]}, "in a.h5 demo_0 float64"),
    "no steps": ({"demo_2__act": rows(0, 2)}, "the episode has no steps"),
    "scalar": ({"demo_2__act": 3.0}, "scalar"),
    "link": ({"demo_2__act": h5py.SoftLink("/demo_1/act")}, "is a link to elsewhere"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_episode_is_named_or_skipped(case: str, tmp_path: Path) -> None:
    changes, expected = BAD[case]
    source = groups(tmp_path / "a.h5", **changes)
    with pytest.raises(BadEpisodeError, match=expected) as error:
        convert(source, tmp_path)
    assert (error.value.file, error.value.row) == ("a.h5", 2)
    ds = convert(source, tmp_path, on_bad_episode="skip", overwrite=False, resume=False)
    assert ds.episodes["length"].to_list() == [3, 5, 4]


def test_an_episode_without_its_flag_leaves_the_flags_of_others(tmp_path: Path) -> None:
    source = groups(tmp_path / "a.h5", demo_0__end=True, demo_2__end=False, demo_3__end=True)
    columns = {**MAPPING["columns"], "terminated": {"path": "end", "role": "episode"}}
    ds = convert(source, tmp_path, {**MAPPING, "columns": columns})
    assert ds.episodes["terminated"].to_list() == [True, False, False, True]
    assert ds.episodes["truncated"].to_list() == [False, True, True, False]
    counts = {finding["code"]: finding["count"] for finding in ds.manifest.findings}
    assert counts["unfinished-episode"] == 2
    assert "no-end-flag" not in counts


def test_a_dtype_is_stored_and_a_value_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    source = groups(tmp_path / "a.h5", demo_0__act=np.full((3, 2), 0.1))
    columns = {"actions": {"path": "act", "dtype": "float32"}}
    ds = convert(source, tmp_path, {**MAPPING, "columns": columns})
    np.testing.assert_array_equal(ds.episode(0)["actions"], np.full((3, 2), 0.1, np.float32))
    for dtype in ("int32", "bool"):
        columns = {"actions": {"path": "act", "dtype": dtype}}
        with pytest.raises(BadEpisodeError, match=f"holds values that do not fit {dtype}"):
            gear_data.convert(source, tmp_path / dtype, mapping={**MAPPING, "columns": columns}, progress=False)
    signed = groups(tmp_path / "b.h5", demo_0__act=np.full((3, 2), -1, np.int8))
    columns = {"actions": {"path": "act", "dtype": "uint8"}}
    with pytest.raises(BadEpisodeError, match="is int8, and holds values that do not fit uint8"):
        gear_data.convert(signed, tmp_path / "signed", mapping={**MAPPING, "columns": columns}, progress=False)
    columns = {"actions": {"path": "act", "dtype": "string"}}
    with pytest.raises(UnsupportedColumnError, match="holds float64, which cannot be stored as string"):
        gear_data.convert(source, tmp_path / "text", mapping={**MAPPING, "columns": columns}, progress=False)


def test_padded_images_and_rows_after_the_reset(tmp_path: Path, sources: Any) -> None:
    from tests.support.source_makers import _png

    image = np.frombuffer(_png(2).ljust(2000, b"\0"), np.uint8)
    changes = {f"demo_{i}__rgb": np.tile(image, (steps, 1)) for i, steps in enumerate(LENGTHS)}
    changes |= {f"demo_{i}__rew": rows(steps + 1) for i, steps in enumerate(LENGTHS)}
    columns = {
        "actions": "act",
        "observations.image": {"path": "rgb", "dtype": "binary"},
        "rewards": {"path": "rew", "role": "after-reset"},
    }
    ds = convert(groups(tmp_path / "a.h5", **changes), tmp_path, {**MAPPING, "columns": columns})
    assert ds.episode(1)["observations.image"].shape == (5, 6, 5, 3)
    np.testing.assert_array_equal(ds.episode(1)["rewards"], [1.0, 2.0, 3.0, 4.0, 5.0])


def test_splits_of_groups_and_of_files(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    groups(tmp_path / "s" / "train_0.h5")
    groups(tmp_path / "s" / "val_0.h5")
    splits = {"train": {"files": "train_*"}, "val": {"files": "val_*", "groups": "demo_[01]"}, "none": {"files": "x"}}
    mapping = {**MAPPING, "splits": splits}
    with pytest.raises(InvalidArgumentError, match="several splits: none, train, val"):
        convert(tmp_path / "s", tmp_path, mapping)
    with pytest.raises(UnknownFormatError, match=r"no file matches splits\.none\.files"):
        convert(tmp_path / "s", tmp_path, mapping, split="none")
    assert convert(tmp_path / "s", tmp_path, mapping, split="val").num_episodes == 2
    both = convert(tmp_path / "s", tmp_path / "all", mapping, split=["train", "val"])
    assert both.episodes["split"].to_list() == ["train"] * 4 + ["val"] * 2


def test_a_mapping_that_fits_nothing_says_so(tmp_path: Path) -> None:
    source = groups(tmp_path / "a.h5")
    with pytest.raises(EmptySourceError, match=r"no episode with a step is at groups: run_\*"):
        convert(source, tmp_path, {**MAPPING, "episodes": {"groups": "run_*"}})
    with pytest.raises(GearError, match=r"has no array 'demo_0/action', which columns\.actions names"):
        convert(source, tmp_path, {**MAPPING, "columns": {"actions": "action"}})
    with pytest.raises(UnknownFormatError, match=r"1 of 1 files are not in the mapping: a\.h5"):
        convert(source, tmp_path, {"episodes": {"files": "*.npz"}, "columns": {"actions": "act"}})
    with pytest.raises(InvalidArgumentError, match="d4rl does not support mapping"):
        convert(source, tmp_path, format="d4rl")


def test_columns_and_rename_choose_among_the_mapping(tmp_path: Path) -> None:
    source = groups(tmp_path / "a.h5")
    ds = convert(source, tmp_path, columns=["act"], rename={"act": "controls"})
    assert ds.schema.names == ("controls", "terminated", "truncated")


def test_a_conversion_with_a_mapping_is_repaired_and_resumed(tmp_path: Path) -> None:
    source = groups(tmp_path / "a.h5")
    ds = convert(source, tmp_path)
    shard = next((tmp_path / "d" / "shards").iterdir())
    shard.write_bytes(shard.read_bytes()[:-8])
    assert gear_data.repair(tmp_path / "d", source).episodes == 4
    assert gear_data.verify(tmp_path / "d").ok
    assert convert(source, tmp_path, resume=True).manifest.fingerprint == ds.manifest.fingerprint
    changed = {**MAPPING, "columns": {"actions": "act"}}
    with pytest.raises(GearError, match="another"):
        convert(source, tmp_path, changed, resume=True)


def test_folders_of_npy_files_are_a_tree(tmp_path: Path) -> None:
    for i, steps in enumerate(LENGTHS):
        folder = tmp_path / "s" / f"run_{i}" / "joint"
        folder.mkdir(parents=True)
        np.save(folder / "cmd.npy", rows(steps, 2, start=i))
        np.save(folder / "note.npy", np.array([f"{i} {t}" for t in range(steps)]))
    mapping = {"episodes": {"groups": "run_*"}, "columns": {"actions": "joint/cmd", "note": "joint/note"}}
    ds = convert(tmp_path / "s", tmp_path, mapping)
    assert ds.episode(3)["note"].tolist() == ["3 0", "3 1", "3 2", "3 3"]
    np.testing.assert_array_equal(ds.episode(2)["actions"], rows(2, 2, start=2))


def test_files_of_several_kinds_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "s"
    source.mkdir()
    groups(source / "a.h5")
    np.savez(source / "b.npz", x=rows(3))
    with pytest.raises(UnknownFormatError, match=r"files of several kinds: 1 HDF5 \(a.h5\), 1 npz \(b.npz\)"):
        convert(source, tmp_path)
