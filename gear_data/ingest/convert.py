"""convert: from a source to a dataset of GEAR shards."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from gear_data.common.progress import pluralize, progress_bar
from gear_data.errors import EmptySourceError, GearError, InvalidArgumentError, ResumeError, unknown_name
from gear_data.ingest.card import CARD_NAME, dataset_card
from gear_data.ingest.destination import check_disjoint, prepare, removed_if_failed
from gear_data.ingest.engine.processes import Engine, Workers, in_this_process, side_by_side
from gear_data.ingest.engine.spec import ConversionSpec
from gear_data.ingest.engine.tasks import Task, plan
from gear_data.ingest.findings.dataset import check_dataset
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import Location, locate
from gear_data.ingest.pipeline.prepare import stored_schema
from gear_data.ingest.source import EpisodeSource, check_count, source_options
from gear_data.storage.atomic import swap_folders
from gear_data.storage.manifest import MANIFEST_NAME, Manifest
from gear_data.storage.remote.files import plain_path
from gear_data.storage.remote.object_store import open_file_store
from gear_data.storage.writing.file_store import FileStore, put_text
from gear_data.storage.writing.progress_files import PROGRESS
from gear_data.storage.writing.staging import MergedTasks, StagedDataset, TaskResult, difference

MIN_SHARD_BYTES = 1 << 10
ENGINES = ("local", "ray")

#: Source bytes for which another process is worth starting.
_BYTES_A_PROCESS = 128 << 20


@dataclass(frozen=True)
class ConvertReport:
    """What a conversion did.

    Attributes:
        episodes, steps, shards: how many the dataset has.
        bytes: size of its shards and tables.
        seconds: wall time.
        warnings: the findings, one line each.
        format, reason: the source's format, and why it was taken for that.
        fingerprint: the dataset's.
    """

    episodes: int
    steps: int
    shards: int
    bytes: int
    seconds: float
    warnings: tuple[str, ...]
    format: str
    reason: str
    fingerprint: str

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "warnings": list(self.warnings)}


def convert(
    source: Any,
    destination: str | os.PathLike[str],
    *,
    format: str = "auto",
    split: str | None = None,
    columns: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    episode_column: str | None = None,
    step_column: str | None = None,
    end_column: str | None = None,
    max_episode_steps: int | None = None,
    keep_encoded: bool = False,
    shard_bytes: int = 512 << 20,
    on_bad_episode: Literal["error", "skip"] = "error",
    strict: bool = False,
    overwrite: bool = False,
    resume: bool = False,
    engine: Literal["local", "ray"] = "local",
    jobs: int | None = None,
    progress: bool | None = None,
) -> ConvertReport:
    """Converts a trajectory dataset into GEAR shards.

    Args:
        source: a path, an fsspec URL (`hf://datasets/...`, `s3://...`), a hub id (`user/name`), a `datasets.Dataset` or
            `IterableDataset`, or any iterable of episodes in memory (`gear_data.ingest.sources.in_memory`).
        destination: the dataset's folder, a path or an fsspec URL; must not exist, or be empty.
        format: `auto`, or one of `gear_data.ingest.sources.registry.known_formats()`.
        split: which split of the source, where it has several.
        columns: source or canonical names to keep; None keeps all. End flags are always kept.
        rename: source name -> canonical name, before the usual renaming.
        episode_column, step_column, end_column: of tables with a row a step: the column that numbers or names the
            episodes, that which numbers the steps within one, and that which is true at an episode's last step.
        max_episode_steps: where a source says nothing else, an episode ends after so many steps.
        keep_encoded: leave PNG, JPEG and other images as they are in the source; without it images of one size become
            uint8 columns [H, W, C].
        shard_bytes: size at which a shard is closed, in bytes of column data.
        on_bad_episode: raise at a malformed episode, or leave it out and report it.
        strict: anything noticed is an error: NaN and Inf, and all else that `gear-data lint` lists.
        overwrite: replace a gear dataset at the destination, once the new one is whole.
        resume: go on with a half-done conversion of the same source and options, or start where there is none.
        engine: `local`, or `ray`: on the Ray cluster that this process is connected to or that RAY_ADDRESS names, else
            on one of this machine. The shards are the same to the byte.
        jobs: processes or Ray tasks at once; None: as many as there are cores, where the source is large enough. The
            shards do not depend on it.
        progress: show a bar; None shows one on a terminal.

    Returns:
        What was done. The same facts are in the dataset's manifest.

    Raises:
        GearError: always one of its kinds, naming file, column and row. Nothing that `open` takes for a dataset is
            left behind; finished shards are, for `resume`.
    """
    began = time.perf_counter()
    _check_arguments(shard_bytes, on_bad_episode, overwrite, resume, engine, jobs)
    options = source_options(
        columns,
        rename,
        skip_bad=on_bad_episode == "skip",
        episode_column=episode_column,
        step_column=step_column,
        end_column=end_column,
        max_episode_steps=max_episode_steps,
    )
    wanted, folder = prepare(plain_path(destination), overwrite, resume)
    store = open_file_store(folder)
    location = locate(source, split)
    check_disjoint(location, wanted)
    given = plain_path(source) if isinstance(source, str | os.PathLike) else source
    spec = ConversionSpec(given, split, format, options, keep_encoded, strict, shard_bytes)
    soon, most = _worker_counts(engine, jobs, spec, location, store)
    with Workers(spec, store.name, most) as workers:
        workers.adjust(soon)  # they start while this process opens the source
        opened, format_name, reason = spec.open(location, threads=len(os.sched_getaffinity(0)))
        spec = replace(spec, format=format_name)
        identity = _identity(location, spec)
        if resume and store.size(MANIFEST_NAME) is not None:
            return _already_done(store, identity, began)
        if overwrite and folder != wanted:
            store.remove("")  # what an earlier, failed overwrite left
        tasks = plan(opened.units(), shard_bytes)
        noted = {**identity, "tasks": [list(task.start) for task in tasks]}
        with removed_if_failed(folder):
            conversion = StagedDataset(store, stored_schema(opened), noted, resume=resume)
            try:
                workers.adjust(len(tasks) - 1)
                run = _engine(engine, jobs, spec, opened, store, workers)
                manifest = _fill(store, conversion, opened, run, tasks, {"reason": reason, **identity}, progress)
            except BaseException as error:
                kept = conversion.abandon()
                if folder != wanted:
                    store.remove("")  # the old dataset stays, and the next run is not a resumed one
                elif kept and isinstance(error, GearError):
                    text = f"{pluralize(kept, 'finished shard')} {'is' if kept == 1 else 'are'} kept: --resume goes on"
                    error.hint = f"{error.hint}\n  {text}" if error.hint else text
                raise
    if folder != wanted:
        swap_folders(Path(folder), Path(wanted))
        store.remove("")  # now the old one
    return _report(manifest, began)


def _fill(
    store: FileStore,
    conversion: StagedDataset,
    source: EpisodeSource,
    run: Engine,
    tasks: Sequence[Task],
    provenance: Mapping[str, Any],
    progress: bool | None,
) -> Manifest:
    noticed = source.findings.to_json()
    unit = "step" if source.rows_are_steps else "episode"
    with progress_bar(source.num_rows, "convert", unit, progress) as bar:
        results = run(tasks, bar.update)
    if not any(result.shards for result in results):
        raise EmptySourceError("the source holds no episode", file=provenance["source"])
    joined = conversion.merge(results)
    findings = _all_findings(noticed, results, joined, source.metadata, strict=provenance["options"]["strict"])
    made = [[*task.start, len(result.shards)] for task, result in zip(tasks, results, strict=True)]
    facts = {**provenance, "tasks": made, "metadata": _json_able(source.metadata)}
    manifest = conversion.manifest(joined, facts, findings.to_json())
    put_text(store, CARD_NAME, dataset_card(manifest, joined.episodes))
    conversion.finish(manifest)
    return manifest


def _check_arguments(
    shard_bytes: int,
    on_bad_episode: str,
    overwrite: bool,
    resume: bool,
    engine: str,
    jobs: int | None,
) -> None:
    check_count("shard_bytes", shard_bytes, MIN_SHARD_BYTES)
    if on_bad_episode not in ("error", "skip"):
        raise InvalidArgumentError(f"on_bad_episode is 'error' or 'skip', not {on_bad_episode!r}")
    if overwrite and resume:
        raise InvalidArgumentError("overwrite and resume exclude each other")
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if jobs is not None:
        check_count("jobs", jobs, 1)


def _identity(location: Location, spec: ConversionSpec) -> dict[str, Any]:
    """What must be the same for a resumed conversion, and what the manifest says of the source."""
    return {
        "format": spec.format,
        "source": location.name,
        "source_files": [[file.name, file.size, file.stamp] for file in location.files],
        "source_fingerprint": getattr(location.dataset, "_fingerprint", None),
        "options": spec.to_json(),
    }


def _all_findings(
    noticed: Sequence[Mapping[str, Any]],
    results: Sequence[TaskResult],
    joined: MergedTasks,
    metadata: Mapping[str, Any],
    *,
    strict: bool,
) -> FindingLog:
    findings = FindingLog()
    findings.restore([*noticed, *(finding for result in results for finding in result.findings)])
    if strict:
        findings.make_strict()
    files, contents = joined.episodes.column("source"), joined.episodes.column("content").to_pylist()
    steps = sum(shard.steps for shard in joined.shards)
    check_dataset(findings, metadata, contents, steps, lambda i: (str(files[i].as_py()), int(joined.rows[i])))
    return findings


def _worker_counts(
    engine: str, jobs: int | None, spec: ConversionSpec, location: Location, store: FileStore
) -> tuple[int, int]:
    """How many processes beside this one are worth starting by the source's size alone, and how many there may be."""
    if engine != "local" or not _movable(spec, store):
        return 0, 0
    soon = sum(file.size for file in location.files) // _BYTES_A_PROCESS
    most = (len(os.sched_getaffinity(0)) if jobs is None else jobs) - 1
    return (min(soon, most), min(soon, most) if jobs is None else most)


def _movable(spec: ConversionSpec, store: FileStore) -> bool:
    """An object in memory, and a file system in memory, are this process's alone."""
    source_is = isinstance(spec.source, str) and not spec.source.startswith("memory:")
    return source_is and not store.name.startswith("memory:")


def _engine(
    name: str, jobs: int | None, spec: ConversionSpec, source: EpisodeSource, store: FileStore, workers: Workers
) -> Engine:
    if name == "ray":
        if not _movable(spec, store):
            raise InvalidArgumentError(
                "a source in the memory of this process cannot be converted by others", hint="leave --engine ray out"
            )
        from gear_data.ingest.engine.ray_cluster import on_ray

        return on_ray(spec, store.name, jobs)
    if not workers.processes:
        return in_this_process(spec, source, store)
    return side_by_side(workers, spec, source, store)


def _json_able(value: Any) -> Any:
    """A source's own facts as JSON can hold them: NaN, Inf and what it does not know as text."""
    if isinstance(value, Mapping):
        return {str(key): _json_able(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_able(item) for item in value]
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def _already_done(store: FileStore, identity: Mapping[str, Any], started: float) -> ConvertReport:
    name = f"{store.name}/{MANIFEST_NAME}"
    manifest = Manifest.from_text(store.read(MANIFEST_NAME).decode("utf-8", "replace"), name)
    known = {name: manifest.provenance.get(name) for name in identity}
    change = difference(known, json.loads(json.dumps(identity)))
    if change is not None:
        raise ResumeError(
            f"the finished dataset has another {change}", file=store.name, hint="use --overwrite to convert anew"
        )
    store.remove(PROGRESS)
    return _report(manifest, started)


def _report(manifest: Manifest, started: float) -> ConvertReport:
    return ConvertReport(
        episodes=manifest.episodes,
        steps=manifest.steps,
        shards=len(manifest.shards),
        bytes=sum(entry.bytes for entry in manifest.files),
        seconds=time.perf_counter() - started,
        warnings=tuple(str(Finding(**finding)) for finding in manifest.findings),
        format=manifest.provenance["format"],
        reason=manifest.provenance["reason"],
        fingerprint=manifest.fingerprint,
    )
