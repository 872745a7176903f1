"""Tests of Minari HDF5 files that are damaged or have wrong metadata."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import gear_data
from gear_data.errors import BadEpisodeError, CorruptSourceError, GearError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.hdf5 import datasets
from gear_data.ingest.sources.minari import hdf5 as minari_format
from gear_data.ingest.sources.tree import hdf5_view
from gear_data.storage.episode_block import BEGIN, END
from tests.support.makers.minari_files import MAIN, METADATA, Write, blocks, nested_dataset, plain

# Wrong metadata.


def test_wrong_counts(edit: Any) -> None:
    source, file = edit()
    file["episode_1"].attrs["total_steps"] = 17
    file.close()
    path = source / METADATA
    path.write_text(json.dumps({**json.loads(path.read_text()), "total_episodes": 4, "total_steps": 9}))
    block, findings = blocks(source)
    assert block.lengths.tolist() == [3, 1, 4]
    assert findings["metadata-disagrees total_episodes"].message.startswith("total_episodes is 4, but there are 3")
    assert findings["metadata-disagrees total_steps"].message.startswith("total_steps is 9, but there are 8")
    assert findings["metadata-disagrees episode total_steps"].row == 1


def test_gapped_numbers(edit: Any) -> None:
    source, file = edit()
    file.move("episode_1", "episode_10")
    file.close()
    block, findings = blocks(source)
    assert block.rows.tolist() == [0, 2, 10]
    assert block.lengths.tolist() == [3, 4, 1]
    assert (findings["gapped-episodes"].count, findings["gapped-episodes"].row) == (8, 2)


def test_two_episodes_with_the_same_number(edit: Any) -> None:
    source, file = edit()
    file.copy("episode_1", "episode_01")
    file.close()
    with pytest.raises(CorruptSourceError, match="'episode_01' and 'episode_1' have the same number"):
        blocks(source)


@pytest.mark.parametrize(
    ("column", "rows", "message"),
    [
        ("observations", 4, "has 4 rows, where 5 are expected: 'rewards' has 4"),
        ("observations", 6, "has 6 rows"),
        ("actions", 5, "has 5 rows, where 4 are expected"),
        ("terminations", 3, "has 3 rows"),
        ("rewards", 0, "the episode has no steps"),
    ],
)
def test_rows_that_do_not_fit(column: str, rows: int, message: str, edit: Any, tmp_path: Path) -> None:
    source, file = edit()
    file[f"episode_2/{column}"].resize(rows, axis=0)
    file.close()
    with pytest.raises(BadEpisodeError) as error:
        gear_data.convert(source, tmp_path / "d")
    assert (error.value.file, error.value.column, error.value.row) == (MAIN, column, 2)
    assert message in error.value.message
    assert "--on-bad-episode skip" in str(error.value)
    block, findings = blocks(source, on_bad_episode="skip")
    assert block.rows.tolist() == [0, 1]
    assert findings[f"bad-episode {column}"].row == 2


def test_infos_of_another_length(write: Write, tmp_path: Path) -> None:
    source = plain(write, (2, 2), infos={"x": [1.0, 2.0, 3.0, 4.0]})
    with pytest.raises(BadEpisodeError, match=r"infos/x.*has 4 rows"):
        gear_data.convert(source, tmp_path / "d")


def test_columns_that_come_and_go(edit: Any) -> None:
    source, file = edit()
    del file["episode_1/actions"]
    file["episode_2/infos/late"] = np.zeros(5)
    file["episode_0/infos/one"] = 3.0
    file.close()
    with pytest.raises(BadEpisodeError, match=r"actions.*is missing; data/main_data.hdf5 episode_0 has it"):
        blocks(source)
    block, findings = blocks(source, on_bad_episode="skip")
    assert block.rows.tolist() == [0, 2]
    assert "'infos/late' is not in" in findings["column-left-out"].message
    assert block.metadata["infos.one"] == [3.0, None]


def test_dtype_that_does_not_fit(edit: Any) -> None:
    source, file = edit()
    del file["episode_1/actions"]
    file["episode_1/actions"] = [0.25]
    file.close()
    with pytest.raises(BadEpisodeError, match="is float64, and holds values that do not fit int64"):
        blocks(source)


def test_text_that_is_not_utf8(edit: Any) -> None:
    source, file = edit()
    for i, steps in enumerate((3, 1, 4)):
        values = [b"fine"] * steps + [b"\xff" if i == 2 else b"fine"]
        file.create_dataset(f"episode_{i}/infos/text", data=values, dtype=h5py.string_dtype())
    file.close()
    with pytest.raises(BadEpisodeError, match=r"infos/text.*row 2: step 4 is not UTF-8"):
        blocks(source)


def test_several_datasets_are_not_one(write: Write, tmp_path: Path) -> None:
    source = plain(write)
    folder = tmp_path / "both"
    for name in ("a", "b"):
        (folder / name / "data").mkdir(parents=True)
        (folder / name / MAIN).write_bytes((source / MAIN).read_bytes())
    with pytest.raises(UnknownFormatError, match="holds 2 Minari datasets"):
        gear_data.convert(folder, tmp_path / "d")


# Files that must be refused.


@pytest.mark.parametrize("text", ["{", "[]", '{"observation_space": "[]"}', "[" * 100_000, '{"action_space": 3}'])
def test_broken_metadata(text: str, write: Write, tmp_path: Path) -> None:
    source = plain(write)
    (source / METADATA).write_text(text)
    with pytest.raises(CorruptSourceError, match=r"metadata\.json"):
        gear_data.convert(source, tmp_path / "d")


def test_subspaces_of_a_box_are_ignored(write: Write, tmp_path: Path) -> None:
    source = plain(write)
    space = {"type": "Box", "dtype": "float64", "shape": [2], "subspaces": [9.0, [9.0]]}
    metadata = json.loads((source / METADATA).read_text()) | {"observation_space": json.dumps(space)}
    (source / METADATA).write_text(json.dumps(metadata))
    gear_data.convert(source, tmp_path / "d")
    facts = gear_data.open(tmp_path / "d").manifest.provenance["metadata"]["observation_space"]
    assert facts == {"type": "Box", "dtype": "float64", "shape": [2]}


@pytest.mark.parametrize("kind", ["external", "soft"])
@pytest.mark.parametrize("number", [0, 1])
def test_links_to_elsewhere(kind: str, number: int, edit: Any, tmp_path: Path) -> None:
    source, file = edit()
    with h5py.File(tmp_path / "secret.hdf5", "w") as secret:
        secret["x"] = np.arange([3, 1][number])
    del file[f"episode_{number}/actions"]
    link = h5py.ExternalLink(tmp_path / "secret.hdf5", "/x") if kind == "external" else h5py.SoftLink("/episode_2/x")
    file[f"episode_{number}/actions"] = link
    file.close()
    expected = UnsupportedColumnError if number == 0 else BadEpisodeError
    with pytest.raises(expected, match="not followed") as error:
        blocks(source)
    assert error.value.column == "actions"


def test_episode_that_is_a_link(edit: Any, tmp_path: Path) -> None:
    source, file = edit()
    with h5py.File(tmp_path / "other.hdf5", "w") as other:
        file.copy("episode_1", other, "x")
    del file["episode_1"]
    file["episode_1"] = h5py.ExternalLink(tmp_path / "other.hdf5", "/x")
    file.close()
    with pytest.raises(BadEpisodeError, match="'episode_1' is not a group of this file"):
        blocks(source)


@pytest.mark.parametrize("kind", ["external storage", "virtual"])
def test_data_in_other_files(kind: str, edit: Any, tmp_path: Path) -> None:
    source, file = edit()
    del file["episode_1/actions"]
    if kind == "virtual":
        layout = h5py.VirtualLayout((1,), np.int64)
        layout[:] = h5py.VirtualSource(tmp_path / "other.hdf5", "x", (1,))
        file.create_virtual_dataset("episode_1/actions", layout)
    else:
        (tmp_path / "secret").write_bytes(bytes(8))
        file["episode_1"].create_dataset("actions", (1,), np.int64, external=[(str(tmp_path / "secret"), 0, 8)])
    file.close()
    with pytest.raises(CorruptSourceError, match="keeps its data in other files") as error:
        blocks(source)
    assert error.value.column == "episode_1/actions" or error.value.column == "actions"


def objects(kind: str) -> tuple[Any, Any]:
    if kind == "reference":
        return [h5py.Reference()] * 3, h5py.ref_dtype
    if kind == "ragged":
        return None, h5py.vlen_dtype(np.float64)
    if kind == "compound":
        return np.zeros(3, [("a", "f8"), ("b", "i4")]), None
    if kind == "complex":
        return np.zeros(3, np.complex128), None
    return np.zeros(3, "V7"), None


@pytest.mark.parametrize("kind", ["reference", "ragged", "compound", "complex", "opaque"])
def test_objects_are_refused_by_name(kind: str, edit: Any) -> None:
    source, file = edit()
    data, dtype = objects(kind)
    file.create_dataset("episode_0/infos/thing", (3,), data=data, dtype=dtype)
    file.close()
    with pytest.raises(UnsupportedColumnError, match=r"infos/thing.*not a number") as error:
        blocks(source)
    assert "--columns" in str(error.value)


@pytest.mark.parametrize(
    "options",
    [
        {"shape": (1 << 40,)},
        {"shape": (1 << 40,), "chunks": (1 << 20,), "compression": "gzip"},
        {"shape": (3, 1 << 31)},
        {"shape": (3,), "maxshape": (None,), "chunks": (1 << 28,)},
    ],
    ids=["absurd", "bomb", "row", "chunk"],
)
def test_absurd_sizes_are_not_allocated(options: Any, edit: Any) -> None:
    source, file = edit()
    del file["episode_0/actions"]
    file["episode_0"].create_dataset("actions", dtype=np.float64, **options)
    file.close()
    with pytest.raises((CorruptSourceError, BadEpisodeError)) as error:
        blocks(source)
    assert error.value.column == "actions"


@pytest.mark.parametrize("place", ["element", "heap"])
def test_damaged_heap_references(place: str, edit: Any) -> None:
    """Both kinds of damage put libhdf5 into an endless loop."""
    source, file = edit()
    for i, steps in enumerate((3, 1, 4)):
        values = file.create_dataset(f"episode_{i}/infos/text", data=["fine"] * steps, dtype=h5py.string_dtype())
    at = values.id.get_offset() + 4
    file.close()
    content = bytearray((source / MAIN).read_bytes())
    if place == "heap":
        at = content.index(b"GCOL") + 16  # index, reference count and size of the first object
    content[at : at + 16] = b"\0" * 16 if place == "heap" else b"\xff" * 8 + content[at + 8 : at + 16]
    (source / MAIN).write_bytes(content)
    with pytest.raises(CorruptSourceError, match="is damaged" if place == "heap" else "points outside the file"):
        blocks(source)


def packed_text(file: h5py.File, filters: Any, damage: Callable[[Any], bytes] = bytes) -> list[str]:
    """Adds one compressed chunk of text per episode, with damaged references.

    Returns the texts of the first episode.
    """
    for i, steps in enumerate((3, 1, 4)):
        texts = [f"step {t} of {i}" for t in range(steps)]
        values = file.create_dataset(
            f"episode_{i}/infos/text", (steps,), h5py.string_dtype(), texts, chunks=(steps,), **filters
        )
        if filters["compression"] == "gzip":
            file.flush()
            mask, raw = values.id.read_direct_chunk((0,))
            values.id.write_direct_chunk((0,), zlib.compress(damage(bytearray(zlib.decompress(raw)))), mask)
    return [f"step {t} of 0" for t in range(3)]


@pytest.mark.parametrize("shuffle", [None, True])
def test_packed_text(shuffle: bool | None, edit: Any) -> None:
    source, file = edit()
    texts = packed_text(file, {"compression": "gzip", "shuffle": shuffle})
    file.close()
    block, _ = blocks(source)
    assert block.columns["infos.text"].to_pylist()[:3] == texts


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:20], "a chunk of 48 bytes, at its row 0, unpacks to 20"),
        (lambda data: data + bytes(1 << 20), "a chunk of 48 bytes, at its row 0, unpacks to 53"),
        (lambda data: data[:4] + b"\xff" * 8 + data[12:], "points outside the file"),
    ],
)
def test_damaged_heap_references_in_chunks(damage: Any, message: str, edit: Any) -> None:
    source, file = edit()
    packed_text(file, {"compression": "gzip"}, damage)
    file.close()
    with pytest.raises(CorruptSourceError, match=message):
        blocks(source)


def test_text_behind_an_unknown_filter_is_refused(edit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "KNOWN_FILTERS", datasets.KNOWN_FILTERS - {h5py.h5z.FILTER_LZF})
    source, file = edit()
    packed_text(file, {"compression": "lzf"})
    file.close()
    with pytest.raises(CorruptSourceError, match="cannot be checked before it is read") as error:
        blocks(source)
    assert "h5py" in str(error.value)


def test_endless_groups(edit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5_view, "MAX_NAMES", 20)
    source, file = edit()
    for i in range(30):
        file.create_group(f"episode_1/infos/{i}")
    file.close()
    with pytest.raises(CorruptSourceError, match="more than 100000 groups"):
        blocks(source)


def test_mutated_files_give_typed_errors(write: Write) -> None:
    source = nested_dataset(write)
    good = (source / MAIN).read_bytes()
    rng = np.random.default_rng(3)
    refused = 0
    for i in range(80):
        bad = bytearray(good)
        for at in rng.integers(0, len(bad) if i % 2 else 4096, 1 + i % 7):
            bad[at] = rng.integers(256)
        if i % 10 == 0:
            bad = bad[: rng.integers(1, len(bad))]
        (source / MAIN).write_bytes(bad)
        try:
            location = locate(str(source), None)
            minari_format.probe(location)
            for _ in minari_format.open_(location, SourceOptions(on_bad_episode="skip" if i % 2 else "error")).blocks(
                BEGIN, END
            ):
                pass
        except GearError:
            refused += 1
    assert refused > 15
