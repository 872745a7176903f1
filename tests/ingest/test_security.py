"""Tests hostile sources: pickles, false sizes, names outside the folder."""

from __future__ import annotations

import io
import json
import pickle
import resource
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.errors import CorruptSourceError, ManifestError, UnknownFormatError, UnsupportedColumnError
from tests.support.manifests import signed


class Payload:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """Provides the path of a file that a payload would create.

    It proves first that unpickling a payload creates a file.
    """
    proof = tmp_path / "proof"
    pickle.loads(pickle.dumps(Payload(proof))).close()
    assert proof.exists()
    return tmp_path / "ran"


def steps(count: int = 6) -> dict[str, np.ndarray[Any, Any]]:
    return {
        "observations": np.arange(count * 2, dtype=np.float32).reshape(count, 2),
        "actions": np.zeros((count, 1), np.float32),
        "rewards": np.zeros(count, np.float32),
        "dones": np.arange(count) == count - 1,
    }


def objects(trap: Path, count: int = 6) -> np.ndarray[Any, Any]:
    return np.array([Payload(trap)] * count, dtype=object)


def npz(folder: Path, trap: Path) -> Path:
    np.savez(folder / "a.npz", **steps(), infos=objects(trap))
    return folder / "a.npz"


def npz_scalar(folder: Path, trap: Path) -> Path:
    scalar = np.empty((), object)
    scalar[()] = Payload(trap)
    np.savez_compressed(folder / "a.npz", **steps(), infos=scalar)
    return folder / "a.npz"


def npy(folder: Path, trap: Path) -> Path:
    for name, values in {**steps(), "infos": objects(trap)}.items():
        np.save(folder / f"{name}.npy", values)
    return folder


def memory_map(folder: Path, trap: Path) -> Path:
    torch, tensordict = pytest.importorskip("torch"), pytest.importorskip("tensordict")
    flat = steps()
    data = tensordict.TensorDict(
        {
            "observation": torch.from_numpy(flat["observations"]),
            "action": torch.from_numpy(flat["actions"]),
            "next": {"reward": torch.from_numpy(flat["rewards"]), "done": torch.from_numpy(flat["dones"])},
            "infos": tensordict.NonTensorData(Payload(trap), batch_size=[6]),
        },
        batch_size=[6],
    )
    data.memmap(folder)
    assert (folder / "infos/other.pickle").exists()
    return folder


def hdf5(folder: Path, trap: Path) -> Path:
    flat = steps()
    flat["terminals"] = flat.pop("dones")
    with h5py.File(folder / "a.hdf5", "w") as file:
        for name, values in {**flat, "timeouts": np.zeros(6, bool)}.items():
            file[name] = values
        file.create_dataset("metadata/infos", data=np.void(pickle.dumps(Payload(trap))))
        file.attrs["infos"] = np.void(pickle.dumps(Payload(trap)))
    return folder / "a.hdf5"


def parquet(folder: Path, trap: Path) -> Path:
    flat = steps()
    table = pa.table({name: pa.array(values.tolist()) for name, values in flat.items()})
    raw = pickle.dumps(Payload(trap))
    metadata = {b"infos": raw, b"pandas": raw, b"huggingface": raw, b"ARROW:extension:metadata": raw}
    field = pa.field("infos", pa.binary(), metadata={b"ARROW:extension:name": b"pickle", b"PARQUET:payload": raw})
    table = table.append_column(field, pa.array([raw] * 6)).replace_schema_metadata(metadata)
    pq.write_table(table, folder / "a.parquet")
    return folder / "a.parquet"


#: Name -> a function that writes a source whose `infos` are a pickle, and whether a finding reports the pickle.
CONVERTED: dict[str, tuple[Callable[[Path, Path], Path], bool]] = {
    "npz": (npz, True),
    "npz scalar": (npz_scalar, True),
    "npy": (npy, True),
    "memory map": (memory_map, True),
    "hdf5 metadata": (hdf5, True),
    "parquet": (parquet, False),
}


@pytest.mark.parametrize("kind", CONVERTED)
def test_a_pickle_next_to_the_data_is_never_loaded(tmp_path: Path, trap: Path, kind: str) -> None:
    write, is_said = CONVERTED[kind]
    (tmp_path / "in").mkdir()
    source = write(tmp_path / "in", trap)
    report = gear_data.convert(source, tmp_path / "out")
    dataset = gear_data.open(tmp_path / "out")
    assert dataset.num_steps == 6
    dataset.episode(0)
    gear_data.verify(tmp_path / "out")
    assert not trap.exists()
    assert any("infos" in warning and "left out" in warning for warning in report.warnings) == is_said


def hdf5_objects(folder: Path, trap: Path) -> Path:
    path = hdf5(folder, trap)
    with h5py.File(path, "a") as file:
        file["infos/raw"] = np.array([np.void(pickle.dumps(Payload(trap)))] * 6)
    return path


def npz_required(folder: Path, trap: Path) -> Path:
    np.savez(folder / "a.npz", **{**steps(), "observations": objects(trap), "actions": objects(trap)})
    return folder / "a.npz"


def plain(name: str) -> Callable[[Path, Path], Path]:
    def write(folder: Path, trap: Path) -> Path:
        (folder / name).write_bytes(pickle.dumps({"observations": Payload(trap)}))
        return folder / name

    return write


def torch_file(folder: Path, trap: Path) -> Path:
    torch = pytest.importorskip("torch")
    torch.save({"observations": Payload(trap)}, folder / "a.pt")
    return folder / "a.pt"


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (hdf5_objects, "infos/raw"),
        (plain("a.pkl"), r"a\.pkl"),
        (plain("a.pickle"), r"a\.pickle"),
        (plain("a.npz"), r"a\.npz"),
        (plain("a.npy"), r"a\.npy"),
        (plain("a.parquet"), r"a\.parquet"),
        (plain("a.hdf5"), r"a\.hdf5"),
        (torch_file, r"a\.pt"),
    ],
)
def test_a_pickle_as_the_data_is_refused_by_name(tmp_path: Path, trap: Path, write: Any, words: str) -> None:
    (tmp_path / "in").mkdir()
    source = write(tmp_path / "in", trap)
    for given in (source, source.parent):
        with pytest.raises((UnknownFormatError, UnsupportedColumnError, CorruptSourceError), match=words):
            gear_data.convert(given, tmp_path / "out")
    assert not trap.exists()


def test_object_columns_in_place_of_observations(tmp_path: Path, trap: Path) -> None:
    (tmp_path / "in").mkdir()
    report = gear_data.convert(npz_required(tmp_path / "in", trap), tmp_path / "out")
    said = [warning for warning in report.warnings if warning.startswith("object-array-left-out")]
    assert {word for word in ("observations", "actions") if any(word in line for line in said)} == {
        "observations",
        "actions",
    }
    assert not trap.exists()


def header(shape: Any, descr: str = "<f4") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def as_npy(folder: Path, content: bytes) -> Path:
    for name, values in steps().items():
        np.save(folder / f"{name}.npy", values)
    (folder / "rewards.npy").write_bytes(content)
    return folder


def as_npz(folder: Path, content: bytes) -> Path:
    np.savez_compressed(folder / "a.npz", **{name: v for name, v in steps().items() if name != "rewards"})
    with zipfile.ZipFile(folder / "a.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rewards.npy", content)
    return folder / "a.npz"


CLAIMS = {
    "a petabyte": header((10**15,)),
    "more than 64 bits": header((10**30,)),
    "a product past 64 bits": header((2**32, 2**33)),
    "negative": header((-6,)),
    "a huge itemsize": header((1,), "<U1000000000"),
    "a header of 4 GB": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
    "a deep header": b"\x93NUMPY\x01\x00" + (5000).to_bytes(2, "little") + b"[" * 5000,
    "code for a header": b"\x93NUMPY\x01\x00"
    + (40).to_bytes(2, "little")
    + b"__import__('os').system('true')".ljust(40),
}


@pytest.mark.parametrize("write", [as_npy, as_npz])
@pytest.mark.parametrize("claim", CLAIMS)
def test_false_sizes_are_refused_at_once(tmp_path: Path, write: Any, claim: str) -> None:
    (tmp_path / "in").mkdir()
    source = write(tmp_path / "in", CLAIMS[claim] + bytes(24))
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    with pytest.raises(CorruptSourceError, match=r"rewards\.npy"):
        gear_data.convert(source, tmp_path / "out")
    assert time.perf_counter() - started < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB


def bomb(path: Path, claimed: int) -> None:
    """Writes `rewards` whose two archive headers claim to unpack to `claimed` bytes."""
    np.savez_compressed(path, **steps())
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        size = archive.getinfo("rewards.npy").file_size
    old, new = size.to_bytes(4, "little"), claimed.to_bytes(4, "little")
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        place = -1
        while (place := data.find(signature, place + 1)) >= 0:
            if b"rewards.npy" in data[place : place + 80] and data[place + offset : place + offset + 4] == old:
                data[place + offset : place + offset + 4] = new
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("claimed", [4_000_000_000, 100_000])
def test_an_archive_with_a_false_size(tmp_path: Path, claimed: int) -> None:
    bomb(tmp_path / "a.npz", claimed)
    with pytest.raises(CorruptSourceError, match=r"rewards\.npy"):
        gear_data.convert(tmp_path / "a.npz", tmp_path / "out")


def test_one_step_of_too_many_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of one row that is compressed 1000 to 1."""
    monkeypatch.setattr("gear_data.ingest.sources.arrays.step_arrays._MAX_ROW_BYTES", 1 << 20)
    np.savez_compressed(tmp_path / "a.npz", **steps(1), extra=np.zeros((1, 1 << 20), np.float32))
    with pytest.raises(UnsupportedColumnError, match="extra"):
        gear_data.convert(tmp_path / "a.npz", tmp_path / "out")


def test_names_in_an_archive_are_not_paths(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with zipfile.ZipFile(tmp_path / "in/a.npz", "w") as archive:
        for name, values in {**steps(), "../../escaped": np.zeros(6), "/tmp/escaped": np.zeros(6)}.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.save(member, values)
    before = {path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "out")}
    with pytest.raises(UnsupportedColumnError, match="escaped"):
        gear_data.convert(tmp_path / "in/a.npz", tmp_path / "out")
    names = {"../../escaped": "one", "/tmp/escaped": "other"}
    gear_data.convert(tmp_path / "in/a.npz", tmp_path / "out", rename=names)
    assert gear_data.open(tmp_path / "out").schema["one"].source == "../../escaped"
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "out")} == before
    assert not (tmp_path.parent / "escaped.npy").exists()


def test_a_manifest_cannot_name_files_outside(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **steps())
    gear_data.convert(tmp_path / "a.npz", tmp_path / "out")
    path = tmp_path / "out/manifest.json"
    data = json.loads(path.read_text())
    for outside in ("../a.npz", str(tmp_path / "a.npz"), "shards/../../a.npz"):
        data["shards"][0]["file"] = outside
        path.write_text(signed(data))
        with pytest.raises(ManifestError, match="outside"):
            gear_data.open(tmp_path / "out").episode(0)
