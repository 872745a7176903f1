"""Errors of Zarr stores, TorchRL's memory maps and Lance tables, with the advice that each gives."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    UnknownFormatError,
    UnsupportedColumnError,
)
from tests.support.advice.arrays import part_of
from tests.support.advice.rows import END, Advice, Make, again, npz, steps

ARRAYS = {"data/state": np.ones((12, 3)), "data/action": np.ones((12, 2)), "meta/episode_ends": np.array([6, 12])}
STEPS_FIRST = np.arange(12).reshape(2, 6).T


def store(name: str = "data.zarr", *, fill: float | None = 0, **arrays: Any) -> Make:
    """Returns a maker of a replay buffer of Zarr 2, in chunks of six rows. `data__state` is the array `data/state`."""

    def make(folder: Path) -> Path:
        import zarr

        shutil.rmtree(folder / name, ignore_errors=True)
        group = zarr.open_group(folder / name, mode="w", zarr_format=2)
        for path, each in {**ARRAYS, **{path.replace("__", "/"): each for path, each in arrays.items()}}.items():
            layout = {"shape": each.shape, "dtype": each.dtype, "chunks": (6, *each.shape[1:])[: each.ndim]}
            group.create_array(path, fill_value=fill, **layout)[...] = each
        return folder / name

    return make


def other_store(folder: Path) -> Path:
    import zarr

    group = zarr.open_group(folder / "other.zarr", mode="w")
    for i in range(2):
        group.create_array(f"demo_{i}/actions", data=np.ones((6, 2)))
        group.create_array(f"demo_{i}/observations", data=np.ones((6, 3)))
    return folder


def beside(*makers: Make) -> Make:
    def make(folder: Path) -> Path:
        for each in makers:
            each(folder)
        return folder

    return make


def metadata(**changed: Any) -> Make:
    """Returns a maker of a replay buffer with other metadata of the actions."""

    def make(folder: Path) -> Path:
        path = store()(folder) / "data/action/.zarray"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
        return folder / "data.zarr"

    return make


def without_chunk(folder: Path) -> Path:
    source = store(fill=None)(folder)
    (source / "data/action/1.0").unlink()
    return source


def damaged_chunk(folder: Path) -> Path:
    source = store()(folder)
    (source / "data/action/1.0").write_bytes(b"no chunk")
    return source


def archived(method: int = zipfile.ZIP_STORED) -> Make:
    """Returns a maker of an archive of a replay buffer."""

    def make(folder: Path) -> Path:
        source = store()(folder)
        with zipfile.ZipFile(folder / "data.zarr.zip", "w", method) as archive:
            for path in sorted(source.rglob("*")):
                if path.is_file():
                    archive.write(path, path.relative_to(source))
        shutil.rmtree(source)
        return folder / "data.zarr.zip"

    return make


def encrypted(make: Make) -> Make:
    """Returns a maker of an archive whose members claim to need a password."""

    def made(folder: Path) -> Path:
        path = make(folder)
        path.write_bytes(
            re.sub(rb"(PK\x01\x02.{4})..", lambda found: found[1] + b"\x01\x00", path.read_bytes(), flags=re.DOTALL)
        )
        return path

    return made


def data(*axes: int) -> Any:
    """Returns twelve steps of TorchRL, of this batch size."""
    from tensordict import TensorDict

    observations = np.arange(36, dtype=np.float32).reshape(12, 3)
    after = {"observation": np.concatenate([observations[1:], observations[:1]]), "done": END[:, None]}
    first = {"observation": observations, "action": np.ones((12, 2), np.float32)}
    return TensorDict({**first, "next": TensorDict(after, [12])}, [12]).reshape(*(axes or (12,)))


def lazy() -> Any:
    from tensordict import lazy_stack

    return lazy_stack([*data(2, 6)])


def with_lazy() -> Any:
    from tensordict import TensorDict, lazy_stack

    parts = lazy_stack([TensorDict({"level": np.full(1, i, np.float32)}, []) for i in range(12)])
    return data().set("infos", parts)


def without_ends() -> Any:
    return data().exclude("next").set("run", np.arange(12) // 6).set("over", END)


def environments() -> Any:
    """Returns the steps of two environments, of batch size [steps, environments]."""
    return data(2, 6).transpose(0, 1).contiguous()


def mapped(values: Callable[[], Any]) -> Make:
    def make(folder: Path) -> Path:
        values().memmap(str(folder / "saved"))
        return folder / "saved"

    return make


def saved(values: Callable[[], Any]) -> Callable[[Path], Path]:
    """Returns the change of a source that saves these values instead."""

    def change(source: Path) -> Path:
        values().memmap(str(source.parent / "again"))
        return source.parent / "again"

    return change


def buffer() -> Any:
    from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer

    replay = TensorDictReplayBuffer(storage=LazyMemmapStorage(12, ndim=2))
    replay.extend(environments())
    return replay


def dumped(folder: Path) -> Path:
    buffer().dumps(folder / "buffer")
    return folder / "buffer"


def flat_buffer(folder: Path) -> Path:
    from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer

    replay = TensorDictReplayBuffer(storage=LazyMemmapStorage(12))
    replay.extend(data())
    replay.dumps(folder / "buffer")
    return folder / "buffer"


def wrong_length(folder: Path) -> Path:
    source = flat_buffer(folder)
    path = source / "storage/storage_metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "len": 99}))
    return source


def incomplete(folder: Path) -> Path:
    source = mapped(data)(folder)
    (source / "action.memmap").unlink()
    return source


def lance_table(folder: Path) -> Path:
    import lance

    rows = pa.table({"episode": np.arange(12) // 6, "observations": np.arange(12.0), "actions": np.ones(12)})
    lance.write_dataset(rows, str(folder / "data.lance")).delete("true")
    return folder / "data.lance"


def restored(source: Path) -> Path:
    import lance

    lance.dataset(str(source), version=1).restore()
    return source


STORES: dict[str, Advice] = {
    "Zarr, a store of another layout: the buffer": Advice(
        beside(store(), other_store), UnknownFormatError, "convert the other stores separately", "",
        {"format": "zarr"}, part_of("data.zarr"),
    ),
    "Zarr, a store of another layout: the other": Advice(
        beside(store(), other_store), UnknownFormatError, "convert the other stores separately", "",
        {"format": "zarr"}, part_of("other.zarr"),
    ),
    "Zarr, a store and its archive": Advice(
        beside(archived(), store()), UnknownFormatError, "convert one of the two: data.zarr",
        source=part_of("data.zarr"),
    ),
    "Zarr, ends that are no row numbers": Advice(
        store(meta__episode_ends=np.array([6.0, 12.0])), BadEpisodeError,
        "write the store again with Diffusion Policy's ReplayBuffer", source=again(store()),
    ),
    "Zarr, ends that fall": Advice(
        store(meta__episode_ends=np.array([12, 6])), BadEpisodeError,
        "write the store again with Diffusion Policy's ReplayBuffer", source=again(store()),
    ),
    "Zarr, an array that ends early: whole": Advice(
        store(data__action=np.ones((9, 2))), BadEpisodeError, "download the store again", source=again(store())
    ),
    "Zarr, an array that ends early: without": Advice(
        store(data__action=np.ones((9, 2))), BadEpisodeError, "--columns", "--columns observations"
    ),
    "Zarr, metadata of no array": Advice(
        metadata(shape=5), CorruptSourceError, "download the store again, or write it again with zarr",
        source=again(store()),
    ),
    "Zarr, a chunk that is missing": Advice(
        without_chunk, CorruptSourceError, "download the store again", source=again(store())
    ),
    "Zarr, a damaged chunk": Advice(
        damaged_chunk, CorruptSourceError, "the chunk is damaged: download it again", source=again(store())
    ),
    "Zarr, an unknown codec: written again": Advice(
        metadata(compressor={"id": "own"}), UnsupportedColumnError, "write the array again with one of",
        source=again(store()),
    ),
    "Zarr, an unknown codec: without the array": Advice(
        metadata(compressor={"id": "own"}), UnsupportedColumnError, "--columns", "--columns observations"
    ),
    "Zarr, a large chunk": Advice(
        metadata(chunks=[1 << 27, 2]), CorruptSourceError, "write the array again with fewer rows in a chunk",
        source=again(store()),
    ),
    "Zarr, more values than chunks": Advice(
        metadata(shape=[1 << 24, 2]), CorruptSourceError, "download the store again", source=again(store())
    ),
    "Zarr, an archive of another compression": Advice(
        archived(zipfile.ZIP_LZMA), CorruptSourceError, "write the archive again, uncompressed",
        source=again(archived()),
    ),
    "Zarr, an archive with a password": Advice(
        encrypted(archived()), CorruptSourceError, "write the archive again without a password",
        source=again(archived()),
    ),
    "npz, an archive with a password": Advice(
        encrypted(npz(**steps(timeouts=END))), CorruptSourceError, "write the archive again without a password",
        source=again(npz(**steps(timeouts=END))),
    ),
    "TorchRL, a lazy stack": Advice(
        mapped(lazy), UnknownFormatError, "data.contiguous().memmap(folder)", source=saved(lambda: lazy().contiguous())
    ),
    "TorchRL, three axes": Advice(
        mapped(lambda: data(2, 3, 2)), UnknownFormatError, "data.reshape(-1)",
        source=saved(lambda: data(2, 3, 2).reshape(-1)),
    ),
    "TorchRL, a lazy stack of infos": Advice(
        mapped(with_lazy), UnsupportedColumnError, "data.to_tensordict().contiguous().memmap(folder)",
        source=saved(lambda: with_lazy().to_tensordict().contiguous()),
    ),
    "TorchRL, a buffer of environments": Advice(
        dumped, UnknownFormatError, "save buffer[:].transpose(0, 1).contiguous().memmap(folder) instead",
        source=saved(lambda: buffer()[:].transpose(0, 1).contiguous()),
    ),
    "TorchRL, steps before environments": Advice(
        mapped(environments), UnknownFormatError, "save data.transpose(0, 1).contiguous().memmap(folder) instead",
        source=saved(lambda: environments().transpose(0, 1).contiguous()),
    ),
    "TorchRL, a buffer of another length": Advice(
        wrong_length, CorruptSourceError, "save the buffer again with buffer.dumps(folder)", source=again(flat_buffer)
    ),
    "TorchRL, no ends: an episode column": Advice(
        mapped(without_ends), UnknownFormatError, "name a key with --episode-column", "--episode-column run"
    ),
    "TorchRL, no ends: an end column": Advice(
        mapped(without_ends), UnknownFormatError, "--end-column", "--end-column over"
    ),
    "TorchRL, a tensor that is missing": Advice(
        incomplete, CorruptSourceError, "the folder may be incomplete: download it again", source=again(mapped(data))
    ),
    "Lance, a version without rows": Advice(
        lance_table, UnknownFormatError, "check the version of the Lance table", source=restored
    ),
}  # fmt: skip
