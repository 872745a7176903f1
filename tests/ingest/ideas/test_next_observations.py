"""Columns of next observations: final observations, ends of episodes, and what contradicts them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import gear_data
from gear_data.cli import main
from gear_data.errors import InvalidArgumentError, UnknownFormatError, UnsupportedColumnError
from tests.support.checks import warning_codes

LENGTHS = (4, 5, 3)


def _steps(lengths: tuple[int, ...] = LENGTHS, **more: Any) -> dict[str, Any]:
    """Returns the columns of a step table with next observations; the first episode is terminated."""
    rng = np.random.default_rng(1)
    states = [rng.normal(size=(n + 1, 2)) for n in lengths]
    ends = np.cumsum(lengths) - 1
    return {
        "episode": np.repeat(range(len(lengths)), lengths),
        "obs": np.concatenate([each[:-1] for each in states]),
        "action": np.arange(sum(lengths), dtype=np.float64),
        "reward": np.ones(sum(lengths)),
        "next_obs": np.concatenate([each[1:] for each in states]),
        "terminated": np.arange(sum(lengths)) == ends[0],
        **more,
    }


def _frame(columns: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame({name: np.asarray(values).tolist() for name, values in columns.items()})


def test_a_difference_inside_an_episode_is_reported(tmp_path: Path) -> None:
    columns = _steps()
    columns["next_obs"][[1, 5, 6]] += 1
    columns["next_obs"][2, 0] = columns["obs"][3, 0] = np.nan  # NaN equals NaN
    _frame(columns).write_parquet(tmp_path / "a.parquet")
    gear_data.convert(tmp_path / "a.parquet", tmp_path / "d")
    dataset = gear_data.open(tmp_path / "d")
    (found,) = [each for each in dataset.manifest.findings if each["code"] == "next-observation-differs"]
    assert (found["count"], found["row"], found["column"], found["file"]) == (3, 1, "next_obs", "a.parquet")
    np.testing.assert_array_equal(dataset[1]["observations"], columns["obs"][4:9])
    assert dataset.schema.names == ("observations", "actions", "rewards", "terminated", "truncated", "returns_to_go")


@pytest.mark.parametrize("named", ["next_obs", "next_observations"])
def test_a_named_column_is_kept(named: str, tmp_path: Path) -> None:
    columns = _steps()
    gear_data.convert(_frame(columns), tmp_path / "d", columns=["obs", "action", named])
    dataset = gear_data.open(tmp_path / "d")
    np.testing.assert_array_equal(dataset[1]["next_observations"], columns["next_obs"][4:9])
    np.testing.assert_array_equal((dataset.final(1) or {})["observations"], columns["next_obs"][8])


def test_final_observations_do_not_need_the_name(tmp_path: Path) -> None:
    columns = _steps()
    gear_data.convert(_frame(columns), tmp_path / "d", columns=["observations", "actions"])
    dataset = gear_data.open(tmp_path / "d")
    assert "next_observations" not in dataset.schema.names
    np.testing.assert_array_equal((dataset.final(2) or {})["observations"], columns["next_obs"][11])


def test_another_dtype_is_refused_with_a_way_out(tmp_path: Path) -> None:
    columns = _steps()
    frame = _frame(columns).with_columns(pl.col("next_obs").cast(pl.List(pl.Float32)))
    frame.write_parquet(tmp_path / "a.parquet")
    with pytest.raises(UnsupportedColumnError, match="is float32, where 'obs' is float64") as error:
        gear_data.convert(tmp_path / "a.parquet", tmp_path / "d")
    assert (error.value.file, error.value.column) == (str(tmp_path / "a.parquet"), "next_obs")
    casts, rename = (error.value.hint or "").split("; ")
    for number, advice in enumerate((casts, rename)):
        options = advice.rpartition(": ")[2].split()
        assert main(["convert", str(tmp_path / "a.parquet"), str(tmp_path / f"d{number}"), *options]) == 0
    np.testing.assert_array_equal(
        (gear_data.open(tmp_path / "d0").final(0) or {})["observations"], columns["next_obs"][3].astype("f4")
    )
    assert gear_data.open(tmp_path / "d1").schema["infos.next_observations"].dtype == "float32"


@pytest.mark.parametrize("shape", [None, (1,)])
def test_next_observations_of_other_observations_are_reported(shape: tuple[int] | None, tmp_path: Path) -> None:
    columns = _steps()
    columns["pixels"] = columns.pop("obs")
    if shape:
        columns["obs"] = columns["pixels"][:, :1]
    report = gear_data.convert(_frame(columns), tmp_path / "d")
    assert "next-observations-kept" in warning_codes(report)
    assert "next_observations" in gear_data.open(tmp_path / "d").schema.names


@pytest.mark.parametrize("flags", [True, False])
def test_episodes_end_where_observations_jump(flags: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else says where an episode was truncated. Batches of a few rows also end inside episodes."""
    columns = _steps((4, 5, 3, 1, 2))
    del columns["episode"]
    if not flags:
        del columns["terminated"]
    for size in (100, 1 << 20):
        monkeypatch.setattr("gear_data.ingest.sources.tables.file_stream._BATCH_BYTES", size)
        _frame(columns).write_parquet(tmp_path / "a.parquet", row_group_size=2)
        gear_data.convert(tmp_path / "a.parquet", tmp_path / f"d{size}")
        dataset = gear_data.open(tmp_path / f"d{size}")
        assert dataset.episodes["length"].to_list() == [4, 5, 3, 1, 2]
        assert dataset.episodes["terminated"].to_list() == [flags, False, False, False, False]


def test_columns_that_say_where_episodes_end_are_needed(tmp_path: Path) -> None:
    columns = _steps()
    del columns["episode"]
    with pytest.raises(InvalidArgumentError, match="only next observations say where episodes end") as error:
        gear_data.convert(_frame(columns), tmp_path / "d", columns=["actions"])
    assert "add observations to --columns" in (error.value.hint or "")
    gear_data.convert(_frame(columns), tmp_path / "d", columns=["actions", "observations"])
    assert gear_data.open(tmp_path / "d").episodes["length"].to_list() == [*LENGTHS]
    del columns["terminated"], columns["next_obs"]
    with pytest.raises(UnknownFormatError):
        gear_data.convert(_frame(columns), tmp_path / "e")


@pytest.mark.parametrize("both", [True, False])
def test_stacks_of_scalars(both: bool, tmp_path: Path) -> None:
    """A CSV file has a column an element. The next elements are stacked by the user, or belong to their elements."""
    columns = _steps()
    for name in ("obs", "next_obs"):
        values = columns.pop(name)
        columns |= {f"{name}_{i}": values[:, i] for i in range(2)}
    _frame(columns).write_csv(tmp_path / "a.csv", float_precision=17)
    stack = {"observations": ["obs_0", "obs_1"]}
    if both:
        stack["next_observations"] = ["next_obs_0", "next_obs_1"]
    gear_data.convert(tmp_path / "a.csv", tmp_path / "d", stack=stack)
    dataset = gear_data.open(tmp_path / "d")
    assert set(dataset.schema.names[:3]) == {"observations", "actions", "rewards"}
    assert not [name for name in dataset.schema.names if name.startswith("next")]
    last = [columns[f"next_obs_{i}"][3] for i in range(2)]
    np.testing.assert_allclose((dataset.final(0) or {})["observations"], last)


def test_encoded_images(tmp_path: Path) -> None:
    pixels = np.random.default_rng(2).integers(0, 255, (7, 4, 5, 3), np.uint8)
    files = []
    for frame in pixels:
        file = io.BytesIO()
        Image.fromarray(frame).save(file, "PNG")
        files.append({"bytes": file.getvalue(), "path": None})
    order = [0, 1, 2, 4, 5], [1, 2, 3, 5, 6]
    now, after = ([files[i] for i in indices] for indices in order)
    table = pa.table({"image": now, "next_image": after, "action": np.arange(5.0), "episode": [0, 0, 0, 1, 1]})
    pq.write_table(table, tmp_path / "a.parquet")
    rename = {"image": "observations.image", "next_image": "next_observations.image"}
    report = gear_data.convert(tmp_path / "a.parquet", tmp_path / "d", rename=rename)
    assert warning_codes(report) == ["no-end-flag"]
    dataset = gear_data.open(tmp_path / "d")
    np.testing.assert_array_equal(dataset[1]["observations.image"], pixels[[4, 5]])
    np.testing.assert_array_equal((dataset.final(1) or {})["observations.image"], pixels[6])
    assert dataset.schema.names == ("observations.image", "actions", "terminated", "truncated")


def _source(form: str, columns: dict[str, Any], folder: Path) -> Any:
    """Returns columns of steps as a source of a form: a mapping of arrays, or a file."""
    if form == "arrays":
        return columns
    if form == "npz":
        np.savez(folder / "a.npz", **columns)
    else:
        _frame(columns).write_parquet(folder / "a.parquet")
    return folder / f"a.{form}"


FORMS = pytest.mark.parametrize("form", ["arrays", "npz", "parquet"])


@FORMS
@pytest.mark.parametrize("names", [("state", "next_state"), ("observation.image", "next_observation.image")])
def test_all_names_of_observations_end_episodes(form: str, names: tuple[str, str], tmp_path: Path) -> None:
    columns = _steps()
    del columns["episode"]
    columns |= {name: columns.pop(usual) for name, usual in zip(names, ("obs", "next_obs"), strict=True)}
    gear_data.convert(_source(form, columns, tmp_path), tmp_path / "d")
    dataset = gear_data.open(tmp_path / "d")
    assert dataset.episodes["length"].to_list() == [*LENGTHS]
    assert dataset.episodes["terminated"].to_list() == [True, False, False]
    name = names[0].replace("observation.", "observations.")
    np.testing.assert_array_equal((dataset.final(1) or {})[name], columns[names[1]][8])


@FORMS
def test_ids_come_before_next_observations(form: str, tmp_path: Path) -> None:
    """Next observations may be those of a later step."""
    columns = _steps()
    columns["next_obs"][[1, 5]] += 1
    gear_data.convert(_source(form, columns, tmp_path), tmp_path / "d")
    dataset = gear_data.open(tmp_path / "d")
    assert dataset.episodes["length"].to_list() == [*LENGTHS]
    counts = {finding["code"]: finding["count"] for finding in dataset.manifest.findings}
    assert counts["next-observation-differs"] == 2


@pytest.mark.parametrize("width", [1, 3])
def test_next_observations_of_another_shape_end_nothing(width: int, tmp_path: Path) -> None:
    columns = _steps(next_obs=np.ones((sum(LENGTHS), width)))
    del columns["episode"]
    gear_data.convert(_frame(columns), tmp_path / "d")
    assert gear_data.open(tmp_path / "d").episodes["length"].to_list() == [4, 8]
    del columns["terminated"]
    with pytest.raises(UnknownFormatError, match="neither an episode column"):
        gear_data.convert(_frame(columns), tmp_path / "e")


@pytest.mark.parametrize("form", ["npz", "parquet"])
@pytest.mark.parametrize("narrow", ["obs", "next_obs"])
def test_rounded_floats_are_compared_as_such(
    form: str, narrow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error about two dtypes advises to read both as the wider one. That does not undo the rounding."""
    columns = _steps()
    del columns["episode"]
    columns[narrow] = columns[narrow].astype(np.float32)
    source = tmp_path / f"a.{form}"
    if form == "npz":
        np.savez(source, **columns)
    else:
        monkeypatch.setattr("gear_data.ingest.sources.tables.file_stream._BATCH_BYTES", 100)
        frame = _frame(columns).with_columns(pl.col(narrow).cast(pl.List(pl.Float32)))
        frame.write_parquet(source, row_group_size=2)
    gear_data.convert(source, tmp_path / "d", tables=gear_data.TableOptions(dtype={narrow: "float64"}))
    dataset = gear_data.open(tmp_path / "d")
    assert dataset.episodes["length"].to_list() == [*LENGTHS]
    assert dataset.episodes["terminated"].to_list() == [True, False, False]
    np.testing.assert_array_equal(dataset[1]["observations"], columns["obs"][4:9])
