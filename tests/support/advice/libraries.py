"""Errors of datasets of Minari, RLDS, LeRobot and `datasets`, with the advice that each gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import gear_data
from gear_data.errors import (
    CorruptSourceError,
    UnknownFormatError,
    UnsupportedColumnError,
)
from tests.support.advice.arrays import part_of, value
from tests.support.advice.places import convert
from tests.support.advice.robots import made
from tests.support.advice.rows import Advice, Make, Scene, again, lerobot, rows_of
from tests.support.rollouts import make_rollouts

NOTES, FINALS = "meta/gear_data.json", "meta/final_observations.parquet"


def edited_json(make: Make, name: str, **changed: Any) -> Make:
    """Returns a maker of a folder in which keys of a JSON file have other values."""

    def edited(folder: Path) -> Path:
        source = make(folder)
        path = next(source.rglob(name))
        path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
        return source

    return edited


def minari_tables(*changes: Callable[[pa.Table], pa.Table], file: str = "part-0.arrow") -> Make:
    """Returns a maker of a Minari dataset whose first episode has the file with a changed table."""

    def make(folder: Path) -> Path:
        made("minari-arrow")(folder)
        with pa.ipc.open_file(str(folder / "data/0/part-0.arrow")) as reader:
            table = reader.read_all()
        for change in changes:
            table = change(table)
        with pa.OSFile(str(folder / f"data/0/{file}"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return folder

    return make


def lists(table: pa.Table) -> pa.Table:
    at = table.schema.get_field_index("actions")
    return table.set_column(at, "actions", pa.array(table["actions"].to_pylist(), pa.list_(pa.float32())))


def a_column_twice(table: pa.Table) -> pa.Table:
    """Returns a table with two observations whose names differ in a slash only."""
    at = table.schema.get_field_index("observations")
    return table.set_column(at, "observations", pa.array([{"top/x": 1.0, "top.x": 2.0}] * len(table)))


def exported(folder: Path) -> Path:
    """Writes an export of two episodes with final observations."""
    episode = {"observations": np.zeros((7, 2)), "actions": np.zeros((6, 1))}
    dataset = gear_data.open(convert(folder, "gear", [episode] * 2))
    gear_data.export(dataset, folder / "robot", format="lerobot", fps=30, progress=False)
    return folder / "robot"


def without_finals(folder: Path) -> Path:
    (exported(folder) / FINALS).unlink()
    return folder / "robot"


def without_notes(source: Path) -> Path:
    (source / NOTES).unlink()
    return source


def numbered_by_text(folder: Path) -> Path:
    source = lerobot()(folder)
    for path in (source / "data").rglob("*.parquet"):
        table = pq.read_table(path)
        at = table.schema.get_field_index("episode_index")
        pq.write_table(table.set_column(at, "episode_index", table["episode_index"].cast(pa.string())), path)
    return source


def two_versions(folder: Path) -> Path:
    for name in ("1.0.0", "1.1.0"):
        made("rlds")(folder / "all" / name)
    return folder / "all"


def with_sequence(folder: Path) -> Path:
    """Writes two episodes of RLDS, of which each step has a list of another length."""
    import tensorflow_datasets as tfds

    features = {
        "observation": tfds.features.Tensor(shape=(3,), dtype=np.float32),
        "action": tfds.features.Tensor(shape=(2,), dtype=np.float32),
        "contacts": tfds.features.Sequence(np.int64),
        "instruction": tfds.features.Text(),
        "is_last": np.bool_,
        "is_terminal": np.bool_,
    }
    steps = [
        {
            "observation": np.full(3, i, np.float32),
            "action": np.zeros(2, np.float32),
            "contacts": list(range(i % 3)),
            "instruction": "go\0",
            "is_last": i == 6,
            "is_terminal": i == 6,
        }
        for i in range(7)
    ]
    tfds.dataset_builders.store_as_tfds_dataset(
        name="arm",
        version="1.0.0",
        features=tfds.features.FeaturesDict({"steps": tfds.features.Dataset(features)}),
        split_datasets={"train": [(i, {"steps": steps}) for i in range(2)]},
        data_dir=str(folder / "data"),
    )
    return folder / "data"


def missing_file(folder: Path) -> Path:
    source = made("step-rows-saved")(folder)
    next(source.glob("*.arrow")).unlink()
    return source


def stream() -> Any:
    """Returns a stream of 80 steps. The levels of the last steps are fractions."""
    import datasets

    def rows() -> Iterator[dict[str, Any]]:
        for i in range(80):
            yield {"episode": i // 40, "observations": 0.5, "actions": 1.0, "level": 1 if i < 70 else 0.5}

    return datasets.IterableDataset.from_generator(rows)


def one_type(source: Any) -> Any:
    return source.map(lambda row: {"level": float(row["level"])})


def text_in_later_rows(folder: Path) -> Path:
    rows = [f"{i // 6},0.5,{'b' if i > 10_000 else 1}" for i in range(10_002)]
    (folder / "data.csv").write_text("\n".join(["episode,observations,level", *rows]) + "\n")
    return folder / "data.csv"


def text_in_a_row(folder: Path) -> Path:
    rows = [{"episode": i // 6, "observations": 0.5, "level": "b" if i == 8 else 1} for i in range(12)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "data.jsonl"


def loaded(kind: str) -> Callable[[Path], Any]:
    """Returns the change of a file of this kind to a dataset with types for its columns."""

    def load(source: Path) -> Any:
        import datasets

        types = {"episode": "int64", "observations": "float64", "level": "string"}
        features = datasets.Features({name: datasets.Value(dtype) for name, dtype in types.items()})
        cache = str(source.parent / "cache")
        return datasets.load_dataset(kind, data_files=str(source), split="train", features=features, cache_dir=cache)

    return load


def names(order: str) -> Make:
    """Returns a maker of a LeRobot dataset whose joints have names, in this order."""

    def make(folder: Path) -> Path:
        source = lerobot()(folder)
        path = source / "meta/info.json"
        info = json.loads(path.read_text())
        info["features"]["action"] = {"dtype": "float32", "shape": [2], "names": list(order)}
        path.write_text(json.dumps(info))
        return source

    return make


def two_orders(folder: Path) -> list[Path]:
    for name, order in (("one", "ab"), ("two", "ba")):
        names(order)(folder / name)
    return [folder / "one/robot", folder / "two/robot"]


def merged(folder: Path, *sources: Any, **arguments: Any) -> Path:
    """Converts the first source, and the second one with these arguments, and merges the datasets."""
    convert(folder, "first", sources[0])
    convert(folder, "second", sources[1], **arguments)
    gear_data.merge([folder / "first", folder / "second"], folder / "both", progress=False)
    return folder / "both"


STEPS = sum(map(len, make_rollouts(3, seed=1)))

LIBRARIES: dict[str, Advice | Scene] = {
    "Minari, a space that is none": Advice(
        edited_json(made("minari-arrow"), "metadata.json", observation_space={"type": "Dict", "subspaces": {"a": 5}}),
        CorruptSourceError, "download the dataset again, or write it again with Minari", source=made("minari-arrow"),
        steps=-1,
    ),
    "Minari, lists without a size": Advice(
        minari_tables(lists), UnsupportedColumnError, "write the dataset again with Minari",
        source=made("minari-arrow"), steps=-1,
    ),
    "Minari, two columns of one name": Advice(
        minari_tables(a_column_twice), UnsupportedColumnError, "rename one of them in the source",
        source=made("minari-arrow"), steps=-1,
    ),
    "Minari, actions of another shape": Advice(
        edited_json(made("minari-arrow"), "metadata.json", action_space={"type": "Box", "shape": [4]}),
        CorruptSourceError, "download the dataset again: the table and its metadata.json do not belong together",
        source=made("minari-arrow"), steps=-1,
    ),
    "Minari, two tables of other columns": Advice(
        minari_tables(lambda table: table.drop_columns(["rewards"]), file="part-1.arrow"), CorruptSourceError,
        "download the episode's folder again", source=made("minari-arrow"), steps=-1,
    ),
    "LeRobot, no final observations: with them": Advice(
        without_finals, CorruptSourceError, "download it again",
        source=lambda source: exported(source.parent / "again"),
    ),
    "LeRobot, no final observations: without them": Advice(
        without_finals, CorruptSourceError, f"remove {NOTES} to leave the final observations out", source=without_notes
    ),
    "LeRobot, numbers that are text: numbered": Advice(
        numbered_by_text, CorruptSourceError, "number the episodes 0, 1, 2, ...", source=again(lerobot()), steps=-1
    ),
    "LeRobot, numbers that are text: rows": Advice(
        numbered_by_text, CorruptSourceError, "--format step-rows", "--format step-rows", source=rows_of, steps=-1
    ),
    "LeRobot, joints in another order": Scene(
        lambda folder: convert(folder, source=two_orders(folder)), UnsupportedColumnError,
        "convert one of them again with --rename, so that the names of the columns differ",
        lambda folder: merged(folder, *two_orders(folder), rename={"action": "infos.action"}), 2 * STEPS,
    ),
    "LeRobot, joints in another order: without": Scene(
        lambda folder: convert(folder, source=two_orders(folder)), UnsupportedColumnError,
        "leave the column out with --columns",
        lambda folder: convert(folder, source=two_orders(folder), columns=["observations", "rewards"]), 2 * STEPS,
    ),
    "RLDS, two versions": Advice(
        two_versions, UnknownFormatError, "give the folder of one of them: ", source=part_of("1.1.0"), steps=-1
    ),
    "RLDS, facts that TFDS does not read": Advice(
        edited_json(made("rlds"), "dataset_info.json", splits=5), CorruptSourceError,
        "download it again, or inspect it with tfds.builder_from_directory", source=made("rlds"), steps=-1,
    ),
    "RLDS, lists of other lengths": Advice(
        with_sequence, UnsupportedColumnError, "--columns", "--columns observation,action,instruction"
    ),
    "datasets, an index of rows": Advice(
        edited_json(made("step-rows-saved"), "state.json", _indices_data_files=[{"filename": "indices.arrow"}]),
        CorruptSourceError, "call flatten_indices(), and save it again", source=made("step-rows-saved"), steps=-1,
    ),
    "datasets, a file that is missing": Advice(
        missing_file, CorruptSourceError, "download the folder again", source=made("step-rows-saved"), steps=-1
    ),
    "datasets, a stream of two types": Advice(
        value(stream), CorruptSourceError, "dataset.map(lambda row: {",
        source=one_type, steps=80,
    ),
    "datasets, text in later rows of CSV": Advice(
        text_in_later_rows, CorruptSourceError, "load the file with datasets and its features=...",
        source=loaded("csv"), steps=10_002,
    ),
    "datasets, text in a row of JSON": Advice(
        text_in_a_row, CorruptSourceError, "load the file with datasets and its features=...", source=loaded("json")
    ),
}  # fmt: skip
