"""Dtypes, nulls and headers of tables, as the user gives them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.cli import main
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    GearError,
    InvalidArgumentError,
    UnknownFormatError,
    UnknownNameError,
    UnsupportedColumnError,
)
from tests.support.checks import warning_codes

ROWS = [[e, float(t), 0.25 * t] for e in range(2) for t in range(3)]


def _write_numbers(path: Path, separator: str, header: str = "") -> None:
    text = header + "".join(separator.join(map(str, row)) + "\n" for row in ROWS)
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt") as file:
        file.write(text)


@pytest.mark.parametrize("name", ["log.csv", "log.tsv", "log.csv.gz", "log.tsv.gz"])
def test_a_first_line_of_numbers_is_no_header(name: str, tmp_path: Path) -> None:
    source, separator = tmp_path / name, "\t" if "tsv" in name else ","
    _write_numbers(source, separator)
    for options in ([], ["--episode-column", "0"], ["--format", "step-rows"]):
        with pytest.raises(UnknownFormatError, match="has no header: its first line is") as error:
            gear_data.convert(source, tmp_path / "d", **_arguments(options))
    assert "--no-header" in (error.value.hint or "")
    renamed = ["--rename", "0=episode", "--rename", "1=observations", "--rename", "2=actions"]
    assert main(["convert", str(source), str(tmp_path / "d"), "--no-header", *renamed]) == 0
    dataset = gear_data.open(tmp_path / "d")
    assert dataset.episodes["length"].to_list() == [3, 3]
    np.testing.assert_array_equal(dataset[0]["actions"], [0, 0.25, 0.5])


@pytest.mark.parametrize("line", ["0,0.5,True", '"0","1e-3"', "0,,nan", "-1", "0\t1", "0,1,"])
def test_lines_of_values(line: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{line}\n{line}\n")
    with pytest.raises(UnknownFormatError, match="has no header"):
        gear_data.convert(tmp_path / "a.csv", tmp_path / "d")


def _arguments(options: list[str]) -> dict[str, Any]:
    if options[:1] == ["--episode-column"]:
        return {"episodes": gear_data.EpisodeBoundaries(episode_column=options[1])}
    return {"format": options[1]} if options else {}


def test_names_may_be_numbers(tmp_path: Path) -> None:
    """pandas writes such names for arrays."""
    _write_numbers(tmp_path / "a.csv", ",", "0,1,2\n")
    with pytest.raises(UnknownFormatError) as error:
        gear_data.convert(tmp_path / "a.csv", tmp_path / "d")
    assert "--header" in (error.value.hint or "")
    assert main(["convert", str(tmp_path / "a.csv"), str(tmp_path / "d"), "--header", "--episode-column", "0"]) == 0
    assert gear_data.open(tmp_path / "d").num_steps == 6


def test_other_separators_have_another_way_out(tmp_path: Path) -> None:
    """`numpy.savetxt` separates numbers by spaces, if it is not told otherwise."""
    np.savetxt(tmp_path / "a.csv", np.array(ROWS))
    with pytest.raises(UnknownFormatError) as error:
        gear_data.convert(tmp_path / "a.csv", tmp_path / "d")
    assert "separate the columns by ','" in (error.value.hint or "")


def _two_files(folder: Path, suffix: str, name: str) -> Path:
    """Writes an episode a file. In the first, a column has whole numbers."""
    folder.mkdir()
    for i, values in enumerate(([0, 0, 1], [0.5, 0.25, 1])):
        rows = {"obs": [0.5, 1.5, 2.5], "action": [0.5, 1, 2], "reward": [0.5, 1.5, 1], name: values}
        if suffix == "json":
            steps = [{key: value[t] for key, value in rows.items()} | {"episode": i} for t in range(3)]
            (folder / f"{i}.json").write_text(json.dumps(steps))
        elif suffix == "jsonl":
            (folder / f"{i}.jsonl").write_text(json.dumps(rows) + "\n")
        else:
            columns = {**rows, "episode": [i] * 3}
            lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
            (folder / f"{i}.csv").write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize("suffix", ["json", "jsonl", "csv"])
def test_whole_rewards_before_fractions(suffix: str, tmp_path: Path) -> None:
    source = _two_files(tmp_path / "s", suffix, "reward")
    gear_data.convert(source, tmp_path / "d")
    dataset = gear_data.open(tmp_path / "d")
    assert dataset.schema["rewards"].dtype == "float64"
    np.testing.assert_array_equal(dataset[1]["rewards"], [0.5, 0.25, 1])


@pytest.mark.parametrize("name", ["action", "actions"])
@pytest.mark.parametrize("suffix", ["json", "jsonl", "csv"])
def test_the_advice_for_other_columns_works(suffix: str, name: str, tmp_path: Path) -> None:
    source = _two_files(tmp_path / "s", suffix, "action")
    with pytest.raises(CorruptSourceError) as error:
        gear_data.convert(source, tmp_path / "d")
    assert (error.value.column, error.value.file) == ("action", f"1.{suffix}")
    assert "--dtype action=float64" in (error.value.hint or "")
    assert main(["convert", str(source), str(tmp_path / "d"), "--dtype", f"{name}=float64", "--overwrite"]) == 0
    np.testing.assert_array_equal(gear_data.open(tmp_path / "d")[1]["actions"], [0.5, 0.25, 1])


def test_a_dtype_inside_structs(tmp_path: Path) -> None:
    lines = [{"steps": [{"obs": {"x": [x, 1]}, "action": 0.5, "reward": 1} for _ in range(2)]} for x in (1, 1.5)]
    (tmp_path / "s").mkdir()
    for i, line in enumerate(lines):
        (tmp_path / f"s/{i}.jsonl").write_text(json.dumps(line))
    tables = gear_data.TableOptions(dtype={"steps.obs.x": "float64"})
    gear_data.convert(tmp_path / "s", tmp_path / "d", tables=tables)
    np.testing.assert_array_equal(gear_data.open(tmp_path / "d")[1]["observations.x"], [[1.5, 1], [1.5, 1]])


def _table(**more: Any) -> pa.Table:
    return pa.table({"episode": [0, 0, 1], "obs": [[1, 2], [3, 4], [5, 6]], "action": [1.5, 2.0, 3.0], **more})


def test_dtypes_of_stored_types(tmp_path: Path) -> None:
    table = _table(text=["1.5", "2", "3"])
    pq.write_table(table, tmp_path / "a.parquet")
    dtypes = {"observations": "float32", "action": "float16", "text": "float64"}
    gear_data.convert(tmp_path / "a.parquet", tmp_path / "d", tables=gear_data.TableOptions(dtype=dtypes))
    dataset = gear_data.open(tmp_path / "d")
    assert [dataset.schema[name].dtype for name in ("observations", "actions", "text")] == [
        "float32",
        "float16",
        "float64",
    ]
    np.testing.assert_array_equal(dataset[0]["observations"], [[1, 2], [3, 4]])
    for wrong, kind, column in (("int8", UnsupportedColumnError, "action"), ("floaty", UnknownNameError, None)):
        with pytest.raises(GearError) as error:
            tables = gear_data.TableOptions(dtype={"action": wrong})
            gear_data.convert(tmp_path / "a.parquet", tmp_path / "e", tables=tables)
        assert (type(error.value), error.value.column) == (kind, column)
    with pytest.raises(UnknownNameError, match="acts"):
        gear_data.convert(table, tmp_path / "e", tables=gear_data.TableOptions(dtype={"acts": "float32"}))


def test_options_of_tables_need_a_table(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", observations=np.ones((3, 2)), actions=np.ones(3), dones=[0, 0, 1])
    with pytest.raises(InvalidArgumentError, match=r"npz does not support fill_null \(--fill-null\)"):
        gear_data.convert(tmp_path / "a.npz", tmp_path / "d", tables=gear_data.TableOptions(fill_null={"a": 0}))


@pytest.mark.parametrize("form", ["frame", "parquet", "csv", "feather"])
def test_nan_of_pandas_is_kept(form: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"episode": [0, 0, 1], "obs": [1.0, np.nan, 3.0], "action": [1.0, 2.0, 3.0]})
    source: Any = frame
    if form != "frame":
        source = tmp_path / f"a.{form}"
        getattr(frame, f"to_{form}")(source, **({"index": False} if form == "csv" else {}))
    report = gear_data.convert(source, tmp_path / "d")
    np.testing.assert_array_equal(gear_data.open(tmp_path / "d")[0]["observations"], [1, np.nan])
    assert warning_codes(report) == ["no-end-flag", "non-finite"]


def test_nan_in_lists_of_pandas(tmp_path: Path) -> None:
    values = [np.array([1.0, np.nan]), np.array([2.0, 3.0]), np.array([np.nan, 4.0])]
    gear_data.convert(pd.DataFrame({"episode": [0, 0, 1], "obs": values, "action": [1.0, 2, 3]}), tmp_path / "d")
    np.testing.assert_array_equal(gear_data.open(tmp_path / "d")[0]["observations"], values[:2])


def test_other_nulls_are_refused_with_advice(tmp_path: Path) -> None:
    pl.DataFrame({"episode": [0, 0, 1], "obs": [1.0, None, 3.0], "action": [1, None, 3]}).write_parquet(
        tmp_path / "a.parquet"
    )
    with pytest.raises(BadEpisodeError, match="holds a null") as error:
        gear_data.convert(tmp_path / "a.parquet", tmp_path / "d")
    assert "--fill-null obs=nan" in (error.value.hint or "")
    fills = ["--fill-null", "obs=nan", "--fill-null", "action=-1"]
    steps = pa.table({"episode": [0, 0], "obs": [1.0, 2.0], "done": [None, True]})
    with pytest.raises(BadEpisodeError) as flag:
        gear_data.convert(steps, tmp_path / "g")
    assert "--fill-null done=0" in (flag.value.hint or "")
    gear_data.convert(steps, tmp_path / "g", tables=gear_data.TableOptions(fill_null={"done": 0}))
    assert main(["convert", str(tmp_path / "a.parquet"), str(tmp_path / "d"), *fills]) == 0
    dataset = gear_data.open(tmp_path / "d")
    np.testing.assert_array_equal(dataset[0]["observations"], [1, np.nan])
    np.testing.assert_array_equal(dataset[0]["actions"], [1, -1])
    with pytest.raises(InvalidArgumentError, match="holds int64, in which nan cannot") as wrong:
        gear_data.convert(
            tmp_path / "a.parquet", tmp_path / "e", tables=gear_data.TableOptions(fill_null={"action": float("nan")})
        )
    assert "--dtype action=float64" in (wrong.value.hint or "")


def test_nulls_in_lists(tmp_path: Path) -> None:
    """A null list takes the shape of the others."""
    steps = pa.table({"episode": [0, 0, 1], "obs": [[1.0, None], None, [5.0, 6.0]], "action": [1, 2, 3]})
    tables = gear_data.TableOptions(fill_null={"observations": "nan"})
    gear_data.convert(steps, tmp_path / "d", tables=tables)
    dataset = gear_data.open(tmp_path / "d")
    np.testing.assert_array_equal(dataset[0]["observations"], [[1, np.nan], [np.nan, np.nan]])
    assert dataset.manifest.provenance["options"]["fill_null"] == {"observations": "nan"}
    gear_data.convert(steps.slice(1), tmp_path / "e", tables=tables)  # a slice has the same values
    np.testing.assert_array_equal(gear_data.open(tmp_path / "e")[1]["observations"], [[5, 6]])
    rows = pa.table(
        {"observations": [[[1.0], [None]], [[3.0]]], "actions": [[1.0, None], [2.0]], "rewards": [[1, 2], [3]]}
    )
    gear_data.convert(rows, tmp_path / "f", tables=gear_data.TableOptions(fill_null={"observations": 0, "actions": 7}))
    dataset = gear_data.open(tmp_path / "f")
    np.testing.assert_array_equal(dataset[0]["observations"], [[1], [0]])
    np.testing.assert_array_equal(dataset[0]["actions"], [1, 7])


def test_a_resumed_run_has_the_same_options(tmp_path: Path) -> None:
    table = _table(force=[1.0, None, 2.0])
    pq.write_table(table, tmp_path / "a.parquet")
    options = gear_data.TableOptions(fill_null={"force": float("nan")})
    first = gear_data.convert(tmp_path / "a.parquet", tmp_path / "d", tables=options)
    again = gear_data.convert(tmp_path / "a.parquet", tmp_path / "d", tables=options, resume=True)
    assert first.fingerprint == again.fingerprint
    gear_data.repair(tmp_path / "d", tmp_path / "a.parquet")


@pytest.mark.parametrize(
    "arguments", [{"dtype": ["a"]}, {"fill_null": {"a": "x"}}, {"fill_null": {"a": None}}, {"header": 1}]
)
def test_wrong_options(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        gear_data.TableOptions(**arguments)


@pytest.mark.parametrize(("option", "value"), [("--dtype", "A=DTYPE"), ("--fill-null", "A=N")])
def test_a_wrong_pair(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["convert", "a", "b", option, "obs"])
    assert f"expected {value}, not 'obs'" in capsys.readouterr().err


def test_the_advice_about_nulls_leaves_the_column_out(tmp_path: Path) -> None:
    table = _table(force=[1.0, None, 2.0])
    with pytest.raises(BadEpisodeError) as error:
        gear_data.convert(table, tmp_path / "d")
    hint = error.value.hint or ""
    assert hint.startswith("leave the column out with --columns observations,actions")
    assert hint.endswith("or put a number in place of the nulls, such as --fill-null force=nan")


def test_an_empty_cell_of_an_end_flag(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("obs,action,done\n0.5,1,\n1.5,2,1\n")
    with pytest.raises(BadEpisodeError) as error:
        gear_data.convert(tmp_path / "a.csv", tmp_path / "d")
    assert "--fill-null done=0" in (error.value.hint or "")
    assert main(["convert", str(tmp_path / "a.csv"), str(tmp_path / "d"), "--fill-null", "done=0"]) == 0
    assert gear_data.open(tmp_path / "d").episodes["terminated"].to_list() == [True]


def _written(form: str, force: list[Any], folder: Path) -> Any:
    """Returns steps with a column `force`: as a table in memory, or in a file."""
    steps: dict[str, Any] = {"episode": [0, 0, 1], "obs": [0.5, 1.5, 2.5], "action": [0.5, 1.0, 2.0], "force": force}
    path = folder / f"a.{form}"
    if form == "parquet":
        pq.write_table(pa.table(steps), path)
    elif form == "csv":
        pd.DataFrame(steps).to_csv(path, index=False)
    elif form == "jsonl":
        pl.DataFrame(steps).write_ndjson(path)
    return path if path.exists() else pa.table(steps)


FORMS = ("table", "parquet", "csv", "jsonl")


@pytest.mark.parametrize(
    ("form", "value", "dtype"),
    [
        *((form, 1e300, "float32") for form in FORMS),
        *((form, 2, "bool") for form in FORMS),
        *((form, 2**53 + 1, "float64") for form in FORMS[:2]),
    ],
)
def test_numbers_that_do_not_fit_the_dtype_are_refused(form: str, value: float, dtype: str, tmp_path: Path) -> None:
    source = _written(form, [0, 1, value] if isinstance(value, int) else [0.0, 1.0, value], tmp_path)
    with pytest.raises(UnsupportedColumnError, match=f"holds values that do not fit {dtype}") as error:
        gear_data.convert(source, tmp_path / "d", tables=gear_data.TableOptions(dtype={"force": dtype}))
    assert error.value.column == "force"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("force", "dtype"), [([0.1, 2.0, 3.5], "float32"), ([0, 1, 1], "bool")])
def test_numbers_that_fit_the_dtype(form: str, force: list[Any], dtype: str, tmp_path: Path) -> None:
    source = _written(form, force, tmp_path)
    gear_data.convert(source, tmp_path / "d", tables=gear_data.TableOptions(dtype={"force": dtype}))
    found = np.concatenate([gear_data.open(tmp_path / "d")[i]["force"] for i in range(2)])
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.array(force, dtype))
