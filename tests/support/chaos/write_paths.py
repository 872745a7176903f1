"""Everything that gear-data writes, as small jobs for tests/chaos."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import gear_data
from gear_data.errors import DatasetNotFoundError, DestinationExistsError, ResumeError
from gear_data.exports.destination import refuse_existing
from gear_data.storage.atomic import typed_write_errors
from tests.support.chaos import object_folder
from tests.support.rollouts import make_rollouts, write_d4rl
from tests.support.running.hub_server import running_hub

#: Small shards, so that a small source gives several.
OPTIONS: dict[str, Any] = {"shard_bytes": 1024, "progress": False}

Job = Callable[[Path], object]


def _ignore(folder: Path) -> None:
    """Does nothing."""


@dataclass(frozen=True)
class WritePath:
    """A job that writes files below a folder.

    Each function gets the folder, and runs in a separate process (`inside`).

    Attributes:
        name: name of the job.
        prepare: writes the inputs of the job.
        run: does the job.
        again: does the job after it was killed or failed, as the documentation says.
        check: looks at the folder after a kill or failure, and raises if it holds something half-done that looks
            finished. It writes nothing.
        modules: what its processes need imported, apart from `warm_up`.
    """

    name: str
    prepare: Job
    run: Job
    again: Job
    check: Job = _ignore
    modules: tuple[str, ...] = ()


def warm_up() -> None:
    """Imports the modules that the jobs need, so that a fork has them.

    Nothing here may start a thread.
    """
    modules = ("h5py", "pandas", "torch", "datasets", "pyarrow.pandas_compat", "pyarrow.parquet", "safetensors.numpy")
    ours = (
        "ingest.convert",
        "ingest.merge",
        "ingest.repair",
        "dataset.open",
        "exports.registry",
        "exports.batches",
        "storage.verify",
    )
    for module in (*modules, *(f"gear_data.{name}" for name in ours), "gear_data.loaders.sequence_loader"):
        importlib.import_module(module)
    from gear_data.ingest.sources.registry import known_formats

    known_formats()
    object_folder.register()


def inside(folder: Path, job: Job) -> Callable[[], object]:
    """Returns a function that does a job.

    Its temporary files and caches are below its folder.
    """

    def body() -> object:
        for name in ("tmp", "cache"):
            (folder / name).mkdir(exist_ok=True)
        os.environ |= {"TMPDIR": str(folder / "tmp"), "GEAR_DATA_CACHE": str(folder / "cache")}
        tempfile.tempdir = str(folder / "tmp")
        return job(folder)

    return body


# Conversions.


def _source(folder: Path) -> None:
    rollouts = make_rollouts(12, seed=3)
    for i in range(3):
        write_d4rl(folder / "source" / f"{i}.hdf5", rollouts[4 * i : 4 * i + 4])


def _convert(folder: Path, place: str = "", **options: Any) -> None:
    if options.get("jobs", 1) > 1:  # a task per file, so that there is a task for each worker
        for name, module in list(sys.modules.items()):
            if name.startswith("gear_data.ingest.") and hasattr(module, "UNIT_BYTES"):
                module.UNIT_BYTES = 1
    gear_data.convert(folder / "source", f"{place}{folder / 'data'}", **OPTIONS, **options)


def _source_of(folder: Path, format: str) -> None:
    """Writes a source of another format. See `tests/support/source_makers.py`."""
    from tests.support.source_makers import MAKERS

    MAKERS[format](folder / "source", make_rollouts(12, seed=3))


def _convert_files(folder: Path, **options: Any) -> None:
    """Converts the files of the source as several sources."""
    gear_data.convert([folder / f"source/{i}.hdf5" for i in range(3)], folder / "data", **OPTIONS, **options)


def _resume_files(folder: Path) -> None:
    try:
        _convert_files(folder, resume=True)
    except ResumeError as error:  # killed before it wrote its options
        if "--overwrite" not in str(error) or list((folder / "data").rglob("*.arrow")):
            raise
        _convert_files(folder, overwrite=True)


def _resume(folder: Path, **options: Any) -> None:
    try:
        _convert(folder, resume=True, **options)
    except ResumeError as error:  # killed before it wrote its options
        if "--overwrite" not in str(error) or list((folder / "data").rglob("*.arrow")):
            raise
        _convert(folder, overwrite=True, **options)


def _half_converted(folder: Path) -> None:
    """Writes a source, and a conversion of it that ended at the second shard."""
    from gear_data.storage.writing.shard_writer import ShardWriter

    _source(folder)
    write = ShardWriter._write_shard

    def fail(writer: ShardWriter, **kwargs: Any) -> Any:
        if writer.finished_shards == 2:
            raise KeyboardInterrupt
        return write(writer, **kwargs)

    ShardWriter._write_shard = fail  # type: ignore[method-assign]  # in a process that ends here
    with suppress(KeyboardInterrupt):
        _convert(folder)
    if not (folder / "data/.progress/options.json").exists():
        raise RuntimeError("the conversion kept no shard to continue from")


def _whole_or_refused(folder: Path, place: str = "") -> None:
    """Checks that the dataset is whole, or that its error says what to do."""
    try:
        gear_data.open(f"{place}{folder / 'data'}")
    except DatasetNotFoundError as error:
        if not error.hint:
            raise RuntimeError(f"the error has no hint: {error}") from error
        if (folder / "data/manifest.json").exists():
            raise RuntimeError("there is a manifest") from error
        return
    _whole(folder)


def _whole(folder: Path) -> None:
    report = gear_data.verify(folder / "data", progress=False)
    if not report.ok:
        raise RuntimeError(f"the dataset opens and does not verify: {[f.error for f in report.shards if not f.ok]}")


def _parts(folder: Path) -> None:
    rollouts = make_rollouts(12, seed=3)
    for name, part in (("a", rollouts[:7]), ("b", rollouts[7:])):
        write_d4rl(folder / "source" / f"{name}.hdf5", part)
        gear_data.convert(folder / "source" / f"{name}.hdf5", folder / "source" / name, **OPTIONS)


def _merge(folder: Path, **options: Any) -> None:
    parts = [folder / "source" / name for name in "ab"]
    gear_data.merge(parts, folder / "data", progress=False, **options)


def _other_parts(folder: Path) -> None:
    """Writes two datasets to merge, of which one has no rewards."""
    _parts(folder)
    columns = ["observations", "actions"]
    source = folder / "source"
    gear_data.convert(source / "b.hdf5", source / "b", columns=columns, overwrite=True, **OPTIONS)


def _merge_over(folder: Path) -> None:
    """Writes the datasets to merge, and an older dataset at the destination."""
    _parts(folder)
    gear_data.convert(folder / "source" / "a.hdf5", folder / "data", **OPTIONS)


def _merge_again(folder: Path) -> None:
    try:
        _merge(folder, resume=True)
    except ResumeError as error:  # killed before it wrote its options
        if "--overwrite" not in str(error) or list((folder / "data").rglob("*.arrow")):
            raise
        _merge(folder, overwrite=True)


# Jobs that read a dataset.


def _dataset(folder: Path) -> None:
    _source(folder)
    _convert(folder)


def _other_dataset(folder: Path) -> None:
    """Writes a dataset of another source than `source`."""
    _source(folder)
    write_d4rl(folder / "other.hdf5", make_rollouts(6, seed=4))
    gear_data.convert(folder / "other.hdf5", folder / "data", **OPTIONS)


def _damaged(folder: Path) -> None:
    _dataset(folder)
    shards = sorted((folder / "data/shards").iterdir())
    shards[0].unlink()
    shards[1].write_bytes(b"x" + shards[1].read_bytes()[1:])
    shards[2].write_bytes(shards[2].read_bytes()[:-1])


def _repair(folder: Path, name: str = "data") -> None:
    gear_data.repair(folder / name, folder / "source", progress=False)


def _damaged_links(folder: Path) -> None:
    """Writes two datasets that share their shards by hard links, and damages the shards of both."""
    _dataset(folder)
    shutil.copytree(folder / "data", folder / "linked", copy_function=os.link)
    shards = sorted((folder / "data/shards").iterdir())
    for shard in shards[:2]:
        data = shard.read_bytes()
        shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    shards[2].unlink()


def _repair_both(folder: Path) -> None:
    """Repairs two datasets, one after the other."""
    shards = sorted((folder / "linked/shards").iterdir())
    before = [shard.read_bytes() for shard in shards]
    _repair(folder)
    if [shard.read_bytes() for shard in shards] != before:
        raise RuntimeError("the repair of a dataset changed the shards of another one")
    _repair(folder, "linked")


def _verify(folder: Path) -> None:
    gear_data.verify(folder / "data", progress=False)


def _export(folder: Path, format: str, name: str, **options: Any) -> None:
    gear_data.export(gear_data.open(folder / "data"), folder / name, format, progress=False, **options)


def _batches(folder: Path) -> None:
    loader = gear_data.SequenceLoader(gear_data.open(folder / "data"), batch_size=4, context=3, prefetch=0)
    gear_data.export_batches(loader, folder / "batches", batches=3, progress=False)


def _unless_done(folder: Path, job: Job) -> None:
    """Does a job whose destination may be complete already. It is complete or missing."""
    with suppress(DestinationExistsError):
        job(folder)


def _read(folder: Path, place: str = "", residency: str = "mmap") -> None:
    """Reads all values, and compares the rewards with the source."""
    dataset = gear_data.open(f"{place}{folder / 'data'}", residency=residency)
    for episode, rollout in zip(dataset, make_rollouts(12, seed=3), strict=True):
        np.testing.assert_array_equal(episode["rewards"], rollout.columns["rewards"])


def _discounted(folder: Path) -> None:
    """Reads batches with another discount than the stored one, which needs a sidecar."""
    dataset = gear_data.open(folder / "data")
    loader = gear_data.SequenceLoader(
        dataset, batch_size=4, context=3, returns=gear_data.ReturnOptions(discount=0.5), prefetch=0, steps=2
    )
    for batch in loader:
        if not np.isfinite(np.asarray(batch["returns_to_go"])).all():
            raise RuntimeError("return-to-go is not finite")


def _saved(folder: Path, view: Callable[[gear_data.Dataset], gear_data.Dataset], **options: Any) -> None:
    view(gear_data.open(folder / "source")).save(folder / "data", progress=False, **options)


def _save_again(folder: Path, view: Callable[[gear_data.Dataset], gear_data.Dataset]) -> None:
    try:
        _saved(folder, view, resume=True)
    except ResumeError as error:  # killed before it wrote its options
        if "--overwrite" not in str(error) or list((folder / "data").rglob("*.arrow")):
            raise
        _saved(folder, view, overwrite=True)


def _some_episodes(dataset: gear_data.Dataset) -> gear_data.Dataset:
    return dataset.filter("length > 5")


def _part(dataset: gear_data.Dataset) -> gear_data.Dataset:
    return dataset.split({"train": 0.7, "val": 0.3}, seed=1)["train"]


def _edited(dataset: gear_data.Dataset) -> gear_data.Dataset:
    values = np.arange(dataset.num_steps, dtype=np.float32)
    return dataset.with_column("advantages", values).rename({"actions": "observations.control"}).drop("rewards")


def _to_save(folder: Path) -> None:
    write_d4rl(folder / "a.hdf5", make_rollouts(12, seed=3))
    gear_data.convert(folder / "a.hdf5", folder / "source", **OPTIONS)


def _repeated(folder: Path) -> None:
    rollouts = make_rollouts(12, seed=3)
    write_d4rl(folder / "a.hdf5", [*rollouts[:9], *rollouts[4:]])
    gear_data.convert(folder / "a.hdf5", folder / "source", **OPTIONS)


def _opened(folder: Path) -> None:
    """Opens the source, which converts it into the cache."""
    dataset = gear_data.open(folder / "source", convert=gear_data.ConvertOptions(shard_bytes=1024))
    for episode, rollout in zip(dataset, make_rollouts(12, seed=3), strict=True):
        np.testing.assert_array_equal(episode["rewards"], rollout.columns["rewards"])

    for header in folder.glob("cache/datasets/*/entry.json"):  # it has the time
        with typed_write_errors(header):
            header.unlink()


def _relative(folder: Path) -> None:
    dataset = gear_data.open(folder / "data")
    gear_data.relative_statistics(dataset, "actions", "observations", (0, 4), progress=False)


def _pull(folder: Path, **options: Any) -> None:
    """Pulls the dataset from a hub in this process."""
    from huggingface_hub import constants

    files = {str(path.relative_to(folder / "source")): path for path in (folder / "source").rglob("*")}
    with running_hub() as hub:
        hub.add("me/hops", {name: path.read_bytes() for name, path in files.items() if path.is_file()})
        # The library reads its variables when it is imported.
        constants.ENDPOINT, constants.HF_HUB_OFFLINE = hub.url, False
        constants.HUGGINGFACE_CO_URL_TEMPLATE = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        gear_data.pull("me/hops", folder / "data", progress=False, **options)


def _to_pull_over(folder: Path) -> None:
    """Writes a dataset for the hub, and an older dataset at the destination."""
    _to_save(folder)
    gear_data.open(folder / "source")[:5].save(folder / "data", progress=False)


def _report(folder: Path) -> None:
    gear_data.report(gear_data.open(folder / "data")).save(folder / "report.html")


def _exports() -> tuple[WritePath, ...]:
    names = {"parquet": "out", "d4rl": "out.hdf5", "npz": "out.npz", "minari": "out-v0", "lerobot": "out"}
    paths = []
    for format, name in names.items():
        job = partial(_export, format=format, name=name, **({"fps": 50} if format == "lerobot" else {}))
        paths.append(WritePath(f"export as {format}", _dataset, job, partial(_unless_done, job=job)))
    for name in ("out", "out.parquet"):
        job = partial(_export, format="parquet", name=name, overwrite=True)
        before, check = partial(_exported, name=name), partial(_an_export, name=name)
        paths.append(WritePath(f"export --overwrite to {name}", before, job, job, check))
    return tuple(paths)


def _exported(folder: Path, name: str) -> None:
    """Writes a dataset, and an export of a part of it."""
    _dataset(folder)
    gear_data.export(gear_data.open(folder / "data")[:5], folder / name, progress=False)


def _an_export(folder: Path, name: str) -> None:
    """Checks that there is the old or the new export, whole."""
    if not (folder / name).exists():
        raise RuntimeError("the old export is gone")
    refuse_existing(folder / name, overwrite=True)


_BUCKET = f"{object_folder.PROTOCOL}://"

WRITE_PATHS = (
    WritePath("convert", _source, _convert, _resume, _whole_or_refused),
    WritePath(
        "convert with 2 workers", _source, partial(_convert, jobs=2), partial(_resume, jobs=2), _whole_or_refused
    ),
    WritePath("convert of several sources", _source, _convert_files, _resume_files, _whole_or_refused),
    WritePath("convert --resume", _half_converted, _resume, _resume, _whole_or_refused),
    WritePath(
        "convert --overwrite",
        _other_dataset,
        partial(_convert, overwrite=True),
        partial(_convert, overwrite=True),
        _whole,
    ),
    WritePath(
        "convert to a bucket",
        _source,
        partial(_convert, place=_BUCKET),
        partial(_resume, place=_BUCKET),
        partial(_whole_or_refused, place=_BUCKET),
    ),
    WritePath("merge", _parts, _merge, _merge_again, _whole_or_refused),
    WritePath("merge of different columns", _other_parts, _merge, _merge_again, _whole_or_refused),
    WritePath(
        "merge --overwrite",
        _merge_over,
        partial(_merge, overwrite=True),
        partial(_merge, overwrite=True),
        _whole,
    ),
    *(
        WritePath(f"convert of {name}", partial(_source_of, format=format), _convert, _resume, _whole_or_refused)
        for name, format in (("CSV", "step-rows-csv"), ("JSON", "step-rows-json"), ("Lance", "step-rows-lance"))
    ),
    *(
        WritePath(name, before, partial(_saved, view=view), partial(_save_again, view=view), _whole_or_refused)
        for name, before, view in (
            ("save", _to_save, _some_episodes),
            ("save of edited columns", _to_save, _edited),
            ("split", _to_save, _part),
            ("dedupe", _repeated, gear_data.Dataset.drop_duplicates),
        )
    ),
    WritePath("open of a source", _source, _opened, _opened),
    WritePath("relative statistics", _dataset, _relative, _relative, _whole),
    WritePath("report", _dataset, _report, _report, _whole),
    WritePath("repair", _damaged, _repair, _repair),
    WritePath("repair of linked shards", _damaged_links, _repair_both, _repair_both),
    WritePath("verify", _dataset, _verify, _verify, _whole),
    *_exports(),
    WritePath("export of batches", _dataset, _batches, partial(_unless_done, job=_batches)),
    WritePath("sidecar", _dataset, _discounted, _discounted, _whole),
    WritePath("cache of a bucket", _dataset, partial(_read, place=_BUCKET), partial(_read, place=_BUCKET)),
    WritePath("host memory", _dataset, partial(_read, residency="host"), partial(_read, residency="host"), _whole),
    WritePath("pull", _to_save, _pull, partial(_unless_done, job=_pull), _whole_or_refused),
    WritePath(
        "pull --overwrite", _to_pull_over, partial(_pull, overwrite=True), partial(_pull, overwrite=True), _whole
    ),
    # The last one, because TensorFlow takes ten seconds to import.
    WritePath(
        "convert of RLDS",
        partial(_source_of, format="rlds"),
        _convert,
        _resume,
        _whole_or_refused,
        ("tensorflow", "tensorflow_datasets", "keras"),
    ),
)
#: The number of paths that need no further modules.
LIGHT = sum(not path.modules for path in WRITE_PATHS)
