"""The manifest: opening newer, hostile and broken manifests."""

from __future__ import annotations

import json
import pickle
import random
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import gear_data
from gear_data.errors import CorruptShardError, DatasetNotFoundError, GearError, ManifestError, VersionError
from gear_data.storage.manifest import FORMAT_VERSION, Manifest
from tests.support.manifests import edited_manifest, signed


@pytest.fixture
def dataset(rollouts_path: Path, tmp_path: Path) -> Path:
    shutil.copytree(rollouts_path, tmp_path / "d")
    return tmp_path / "d"


@pytest.fixture
def edit(dataset: Path) -> Callable[[Callable[[dict[str, Any]], Any]], Path]:
    """Changes the manifest of `dataset` in place."""

    def change(action: Callable[[dict[str, Any]], Any]) -> Path:
        with edited_manifest(dataset) as data:
            action(data)
        return dataset

    return change


def test_manifest_describes_the_dataset(rollouts: list[Any], rollouts_path: Path) -> None:
    data = json.loads((rollouts_path / "manifest.json").read_text())
    assert (data["format"], data["version"]) == ("gear", 1)
    assert data["episodes"] == len(rollouts)
    assert data["steps"] == sum(len(r) for r in rollouts)
    for entry in (*data["shards"], *data["tables"].values()):
        assert (rollouts_path / entry["file"]).stat().st_size == entry["bytes"]
        assert entry["checksum"].startswith("xxh3-128:")
    assert [c["name"] for c in data["schema"] if c["derived"]] == ["returns_to_go"]
    assert [c["name"] for c in data["schema"] if c["has_final"]] == ["observations"]
    assert data["provenance"]["source_files"][0][0] == "source.hdf5"
    assert data["provenance"]["options"]["shard_bytes"] == 2048


def test_save_and_load(rollouts_path: Path, tmp_path: Path) -> None:
    manifest = gear_data.open(rollouts_path).manifest
    (tmp_path / "manifest.json").write_text(manifest.to_text())
    assert (tmp_path / "manifest.json").read_bytes() == (rollouts_path / "manifest.json").read_bytes()


def test_the_checksum_is_simple_to_compute(rollouts_path: Path) -> None:
    """The three lines of docs/explanation/shard-format.md."""
    text = (rollouts_path / "manifest.json").read_bytes().decode()
    stored = json.loads(text)["checksum"]
    found = "xxh3-128:" + xxhash.xxh3_128_hexdigest(text.replace(stored, "", 1).encode())
    assert found == stored
    manifest = gear_data.open(rollouts_path).manifest
    assert manifest.checksum == stored
    assert pickle.loads(pickle.dumps(manifest)).checksum == stored
    changed = replace(manifest, provenance={})
    assert changed.checksum == json.loads(changed.to_text())["checksum"] != stored


def test_a_flipped_bit_is_never_served(dataset: Path) -> None:
    """Flips a bit of every byte of the statistics, and bits anywhere."""
    path = dataset / "manifest.json"
    whole = path.read_bytes()
    rng = random.Random(12)
    statistics = range(whole.index(b'"statistics"'), whole.index(b'"provenance"'))
    places = [*statistics, *rng.sample(range(len(whole)), 600)]
    for place in places:
        data = bytearray(whole)
        data[place] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        with pytest.raises((ManifestError, VersionError)) as error:
            gear_data.open(dataset)
        assert error.value.file == str(path)
        assert error.value.hint


@pytest.mark.parametrize("end", ["x", "{}", "\n", " ", "\0"])
def test_a_text_after_the_manifest(end: str, dataset: Path) -> None:
    with (dataset / "manifest.json").open("a") as file:
        file.write(end)
    with pytest.raises(ManifestError):
        gear_data.open(dataset)


@pytest.mark.parametrize("value", [None, 7, "", "xxh3-128:", ["x"], "xxh3-128:" + "0" * 32])
def test_another_checksum(value: Any, dataset: Path) -> None:
    path = dataset / "manifest.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"checksum": value}))
    with pytest.raises(ManifestError, match="checksum") as error:
        gear_data.open(dataset)
    assert error.value.hint is not None and "restore manifest.json" in error.value.hint
    path.write_text(json.dumps(data | {"checksum": value, "version": FORMAT_VERSION + 1}))
    with pytest.raises(VersionError):
        gear_data.open(dataset)


def test_a_manifest_without_a_checksum(dataset: Path) -> None:
    path = dataset / "manifest.json"
    data = json.loads(path.read_text())
    del data["checksum"]
    path.write_text(json.dumps(data))
    with pytest.raises(ManifestError, match="it has no checksum of itself"):
        gear_data.open(dataset)


def test_a_repeated_key_is_a_changed_text(dataset: Path) -> None:
    path = dataset / "manifest.json"
    path.write_text(path.read_text().replace('"steps"', '"steps": 1,\n "steps"', 1))
    with pytest.raises(ManifestError, match="its bytes were changed"):
        gear_data.open(dataset)


def test_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    for name, message in (("nothing", "no such"), ("file", "is a file"), ("folder", "no gear dataset here")):
        with pytest.raises(DatasetNotFoundError, match=message) as error:
            Manifest.load(tmp_path / name)
        assert isinstance(error.value, FileNotFoundError)
        assert error.value.file == str(tmp_path / name)


def test_newer_version(edit: Any) -> None:
    path = edit(lambda data: data.update(version=FORMAT_VERSION + 1, schema="of another kind"))
    with pytest.raises(VersionError, match=f"version {FORMAT_VERSION + 1} is newer than {FORMAT_VERSION}") as error:
        gear_data.open(path)
    assert "upgrade" in str(error.value)
    assert error.value.file == str(path / "manifest.json")


@pytest.mark.parametrize("name", ["../other.arrow", "/etc/passwd", "shards/../../x", "..", "", "a\\b", "a\0b"])
def test_a_file_name_outside_the_folder(name: str, edit: Any, rollouts_path: Path) -> None:
    for place in (lambda data: data["shards"][1], lambda data: data["tables"]["episodes"]):
        path = edit(lambda data, place=place: place(data).update(file=name))
        with pytest.raises(ManifestError, match="outside the dataset's folder"):
            gear_data.open(path)
        with pytest.raises(ManifestError, match="outside the dataset's folder"):
            gear_data.verify(path)
        shutil.copy(rollouts_path / "manifest.json", path)


def test_opening_reads_no_shard(dataset: Path, rollouts_path: Path) -> None:
    for shard in gear_data.open(rollouts_path).manifest.shards:
        (dataset / shard.entry.file).write_bytes(b"?" * shard.entry.bytes)
    ds = gear_data.open(dataset)
    assert ds.num_steps == gear_data.open(rollouts_path).num_steps
    assert ds.episodes.equals(gear_data.open(rollouts_path).episodes)
    assert not ds.store.shards.addresses.any()
    report = gear_data.verify(dataset)
    assert not report.ok
    assert [check.ok for check in report.shards] == [True, True] + [False] * len(ds.manifest.shards)


@pytest.mark.parametrize("file", ["shards/000001.arrow", "episodes.arrow", "finals.arrow"])
@pytest.mark.parametrize("change", [-1, 1, None])
def test_a_file_of_another_size(file: str, change: int | None, dataset: Path) -> None:
    data = (dataset / file).read_bytes()
    if change is None:
        (dataset / file).unlink()
    else:
        (dataset / file).write_bytes((data + b"x")[: len(data) + change])
    with pytest.raises(CorruptShardError, match="missing" if change is None else "bytes, the manifest says") as error:
        gear_data.open(dataset)
    assert error.value.file == str(dataset / file)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "7", '"gear"', '{"format": "parquet", "version": 1}', "[" * 100_000, "\xff\xfe"]
)
def test_text_that_is_not_a_manifest(text: str, dataset: Path) -> None:
    (dataset / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ManifestError) as error:
        gear_data.open(dataset)
    assert error.value.file == str(dataset / "manifest.json")


def _column(data: dict[str, Any], name: str) -> dict[str, Any]:
    return next(column for column in data["schema"] if column["name"] == name)


def _places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of every value in a document."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2, 1.5, 1 << 40, 1 << 70, float("inf"), "", "x", [], [1], [[-1]], [1 << 40], {}, {"x": 1},
)  # fmt: skip


def _use(path: Path) -> None:
    """Reads all data of a dataset."""
    ds = gear_data.open(path)
    ds.episodes.to_dicts()
    for i in range(ds.num_episodes):
        episode = ds.episode(i)
        for name in episode:
            np.array(episode[name])
        ds.final(i)
    for column in ds.schema:
        assert len(ds.statistics[column.name].mean) in (1, *column.shape)


def test_a_broken_manifest_is_a_gear_error_or_harmless(dataset: Path) -> None:
    """Removes or replaces every value: a GearError, or a fully usable dataset."""
    path = dataset / "manifest.json"
    whole = json.loads(path.read_text())
    # Shards are alike: only the first is changed.
    places = [p for p in _places(whole) if p[0] not in ("provenance", "findings") and p[:1] + p[1:2] != ("shards", 2)]
    places = [p for p in places if not (p[0] == "shards" and len(p) > 1 and p[1] > 0)]
    places += [("provenance",), ("findings",)]
    rng = random.Random(3)
    refused = 0
    for place in places:
        for value in [*rng.sample(_VALUES, 3), "removed"]:
            data = json.loads(json.dumps(whole))
            inner = data
            for key in place[:-1]:
                inner = inner[key]
            if value == "removed":
                del inner[place[-1]]
            else:
                inner[place[-1]] = value
            path.write_text(signed(data))
            try:
                _use(dataset)
            except GearError:
                refused += 1
            except Exception as error:
                raise AssertionError(f"{place} = {value!r}: {type(error).__name__}: {error}") from error
    assert refused > len(places)


@pytest.mark.parametrize(
    "key", ["format", "version", "episodes", "steps", "fingerprint", "schema", "shards", "tables", "statistics",
            "provenance", "findings"]
)  # fmt: skip
def test_a_missing_field(key: str, edit: Any) -> None:
    path = edit(lambda data: data.pop(key))
    with pytest.raises(ManifestError, match=key):
        gear_data.open(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(episodes=data["episodes"] + 1), "episodes do not add up"),
        (lambda data: data.update(steps=data["steps"] - 1), "steps do not add up"),
        (lambda data: data["tables"].pop("episodes"), "no episode table"),
        (lambda data: data["tables"].pop("finals"), "final observations"),
        (lambda data: _column(data, "observations").update(has_final=False), "final observations"),
        (lambda data: _column(data, "actions").update(name="observations"), "one name"),
        (lambda data: data["schema"][0].update(dtype="object"), "no column can have dtype"),
        (lambda data: data["schema"][0].update(shape=[3, -1]), "no column can have"),
        (lambda data: data["schema"][0].update(shape=[1] * 63), "no column can have"),
        (lambda data: _column(data, "observations").update(shape=[1 << 32, 1 << 32]), "observations"),
        (lambda data: data["shards"][0]["buffers"].pop("rewards"), "missing or past"),
        (lambda data: data["shards"][0]["buffers"].update(rewards=-8), r">= 0 - at `\$\.shards\[0\]\.buffers"),
        (lambda data: data["shards"][0]["buffers"].update(rewards=1 << 40), "missing or past"),
        (lambda data: data["statistics"].pop("rewards"), "statistics"),
        (lambda data: data["statistics"]["observations"].update(mean=[0.0]), "statistics"),
        (lambda data: data["statistics"]["rewards"].update(quantiles=[[0.0], [0.0, 1.0]]), "malformed statistics"),
        (lambda data: data["provenance"].update(videos=None), "provenance of videos"),
        (lambda data: data["provenance"].update(videos={"bytes": "many"}), "provenance of videos"),
    ],
)
def test_a_manifest_that_contradicts_itself(change: Any, message: str, edit: Any) -> None:
    path = edit(change)
    with pytest.raises(ManifestError, match=message):
        gear_data.open(path)


def test_names_without_folders(rollouts_path: Path, tmp_path: Path) -> None:
    """The source, its parts, the reason, and findings have no folder of this machine; hub ids and URLs stay."""
    manifest = Manifest.load(rollouts_path)
    home = "/home/me, and you/data"
    nested = {"source": f"{home}/hopper", "reason": f"{home}/hopper/a.h5: a group is an episode"}
    short, walker = {"source": "hopper", "reason": "hopper/a.h5: a group is an episode"}, {"source": "walker"}
    finding = {"code": "nan", "count": 1, "file": "a.h5", "row": None, "column": None}
    provenance = {
        "source": f"{home}/a.parquet, me/hopper, hf://datasets/me/x, a/b/c.npz",
        "reason": f"{home}/a.parquet: a row is an episode",
        "parts": [{"source": f"{home}/a.parquet"}, {"source": "me/hopper"}, {"source": "a/b/c.npz"}, {"source": "/"}],
        "view": {
            "provenance": {"merged": [nested, {"source": f"{home}/walker"}], "source": f"{home}/hopper, {home}/walker"}
        },
        "tasks": [[0, 0, 1]],
        "metadata": {"description": "/observations/x and /actions"},
    }
    findings = ({**finding, "message": f"{home}/a.parquet is odd"},)
    found = replace(manifest, provenance=provenance, findings=findings).without_folders()
    assert found.provenance == {
        "source": "a.parquet, me/hopper, hf://datasets/me/x, c.npz",
        "reason": "a.parquet: a row is an episode",
        "parts": [{"source": "a.parquet"}, {"source": "me/hopper"}, {"source": "c.npz"}, {"source": "/"}],
        "view": {"provenance": {"merged": [short, walker], "source": "hopper, walker"}},
        "tasks": [[0, 0, 1]],
        "metadata": {"description": "/observations/x and /actions"},
    }
    assert found.findings == ({**finding, "message": "a.parquet is odd"},)
    assert Manifest.from_text(found.to_text(), "manifest.json").provenance == found.provenance


@pytest.mark.parametrize(
    ("stamps", "name"),
    [
        (["1732701600000000000"], "hopper"),
        (["1732701600000000000", "1732701600000000001"], "hopper"),
        (["be3f0f2d6c9d5a6f2ed59dd43e3a0b51d8f6a1c2"], "data/hopper"),  # files of the hub
        ([], "data/hopper"),  # rows of the hub
    ],
)
def test_a_path_that_looks_like_a_hub_id(rollouts_path: Path, stamps: list[str], name: str) -> None:
    files = [[f"{place}.parquet", 100, stamp] for place, stamp in enumerate(stamps)]
    one = {"source": "data/hopper", "source_files": files, "reason": "data/hopper: a row is a step"}
    several = {"source": "data/hopper, s3://a/b", "parts": [{"source": "data/hopper"}, {"source": "s3://a/b"}]}
    manifest = Manifest.load(rollouts_path)
    found = replace(manifest, provenance=one).without_folders().provenance
    assert (found["source"], found["reason"]) == (name, f"{name}: a row is a step")
    found = replace(manifest, provenance={**several, "source_files": files}).without_folders().provenance
    assert found["source"] == f"{name}, s3://a/b" and found["parts"][0] == {"source": name}


def test_relative_paths_of_merges_and_views_are_no_hub_ids(rollouts_path: Path) -> None:
    inner = {"source": "me/hopper", "source_files": []}
    parts = [{"source": f"data/{name}", "provenance": inner} for name in "ab"]
    merged = {"format": "merged", "source": "data/a, data/b", "merged": parts}
    manifest = Manifest.load(rollouts_path)
    found = replace(manifest, provenance=merged).without_folders().provenance
    assert found["source"] == "a, b" and found["merged"][0] == {"source": "a", "provenance": inner}
    view = {"format": "view", "source": "data/a", "view": {"provenance": inner}}
    found = replace(manifest, provenance=view).without_folders().provenance
    assert found == {**view, "source": "a"}


def test_the_advice_about_a_journal_quotes_paths(tmp_path: Path) -> None:
    path = tmp_path / "my runs"
    (tmp_path / "my runs.journal").mkdir()
    with pytest.raises(DatasetNotFoundError) as error:
        gear_data.open(path)
    command = str(error.value.hint).partition("episodes: ")[2]
    assert shlex.split(command) == ["gear-data", "convert", f"{path}.journal", str(path)]
