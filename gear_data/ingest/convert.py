"""Converts a source to a dataset of GEAR shards."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Never, get_args

from gear_data.common.environment import usable_cores
from gear_data.common.keywords import check_range, refuse_keywords_of
from gear_data.common.paths import plain_path, printable
from gear_data.common.progress import progress_bar
from gear_data.common.typed_json import to_json_value
from gear_data.errors import EmptySourceError, InvalidArgumentError, unknown_name
from gear_data.ingest.card import CARD_NAME, dataset_card
from gear_data.ingest.convert_options import ConvertOptions
from gear_data.ingest.destination import (
    CONTINUE,
    LockedTarget,
    abandoned_on_error,
    check_disjoint,
    choose_target,
    finished_manifest,
    locked_target,
)
from gear_data.ingest.engine.row_progress import row_counter
from gear_data.ingest.engine.spec import SHARD_BYTES, ConversionSpec
from gear_data.ingest.engine.tasks import Engine, Task, plan_tasks, useful_workers
from gear_data.ingest.engine.worker_pool import PoolEngine, WorkerPool
from gear_data.ingest.episode_boundaries import EpisodeBoundaries
from gear_data.ingest.findings.dataset_checks import check_dataset
from gear_data.ingest.findings.log import FindingLog
from gear_data.ingest.location import Location
from gear_data.ingest.merging.linked_dataset import report_fields
from gear_data.ingest.pipeline.prepare import stored_schema
from gear_data.ingest.several.plan import with_parts
from gear_data.ingest.several.sequence import SourceSequence
from gear_data.ingest.source import MOVED, EpisodeSource, source_videos
from gear_data.ingest.table_options import TableOptions
from gear_data.ingest.videos.indexed_source import IndexedSource
from gear_data.ingest.videos.sampled_statistics import camera_statistics
from gear_data.ingest.videos.staged_index import stage_videos
from gear_data.ingest.videos.storage_options import LINK, VideoStorage
from gear_data.storage.atomic import swap_folders
from gear_data.storage.episode_tables import content_bytes
from gear_data.storage.manifest import MANIFEST_NAME, Manifest
from gear_data.storage.remote.object_store import open_file_store
from gear_data.storage.writing.file_store import put_text
from gear_data.storage.writing.staging import MergedTasks, StagedDataset, TaskResult
from gear_data.video.index_tables import files_fact
from gear_data.words import EngineName, OnBadEpisode, SourceFormat, VideoMode


@dataclass(frozen=True)
class ConvertReport:
    """The outcome of a conversion.

    Attributes:
        episodes: the number of episodes in the dataset.
        steps: the number of steps.
        shards: the number of shards.
        bytes: the size of the shards, the tables, and the video files in the folder.
        seconds: the wall time of the conversion.
        warnings: the findings, one line each.
        format: the source's format.
        reason: why the source was read in that format.
        fingerprint: the fingerprint of the dataset.
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
        """Returns the report as JSON."""
        return {**asdict(self), "warnings": list(self.warnings)}


def convert(
    source: Any,
    destination: str | os.PathLike[str],
    *,
    format: SourceFormat = "auto",
    split: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    stack: Mapping[str, Sequence[str]] | None = None,
    episodes: EpisodeBoundaries = EpisodeBoundaries(),
    videos: VideoMode | VideoStorage = "keep",
    tables: TableOptions = TableOptions(),
    keep_encoded: bool = False,
    follow_links: bool = False,
    shard_bytes: int = SHARD_BYTES,
    on_bad_episode: OnBadEpisode = "error",
    strict: bool = False,
    overwrite: bool = False,
    resume: bool = False,
    engine: EngineName = "local",
    jobs: int | None = None,
    progress: bool | None = None,
    **unknown: Never,
) -> ConvertReport:
    """Converts a trajectory dataset to GEAR shards.

    Only one process writes to a destination. In a job of several ranks, convert on one rank, or give `resume=True` on
    all ranks.

    Args:
        source: a path, an fsspec URL (`hf://datasets/...`, `s3://...`), a hub id (`user/name`), a `datasets.Dataset`
            or `IterableDataset`, or data in memory: an iterable of episodes, a mapping of arrays with a row per step,
            a list of transitions (s, a, r, s', done), or a pandas, Polars or Arrow table. A list or tuple of paths,
            URLs and hub ids is several sources, which become one dataset. The column `embodiment` of the episode table
            names the source of each episode: the last part of its path.
        destination: the folder of the dataset, as a path or an fsspec URL. It must not exist, or must be empty, unless
            `overwrite` or `resume` is set.
        format: `auto`, or the name of the source's format.
        split: the split to read, if the source has several. RLDS has the notation of TFDS: `train[:10%]`, `train+val`.
            With a list of splits, or "all", the column `split` of the episode table names the split of each episode.
        columns: source or canonical names of the columns to keep. None keeps all. End flags are always kept.
        rename: source name -> canonical name. It takes precedence over the built-in names.
        mapping: for HDF5, NumPy and Zarr files that no format recognises: a YAML file, or a dict of the same keys, that
            says where the episodes and columns are. `gear-data lint SRC --suggest-map` writes a first one.
        stack: new column -> the columns that it is made of, in order: `{"observations": ["position", "velocity"]}`.
            They hold numbers; the new column is a vector of all their elements, in the dtype to which NumPy promotes
            theirs. It takes the place of its parts. Final observations are stacked, too.
        episodes: where episodes begin and end, for sources with a row per step that do not say it.
        videos: what becomes of cameras' video files: `keep`, `link`, `frames` or `jpeg`, as `VideoStorage` describes
            them. Or `VideoStorage`, with the size of frames, and with cameras of video files that the source does not
            name.
        tables: the types of columns of tables, numbers in place of nulls, and whether CSV files have a header.
        keep_encoded: keep PNG, JPEG and other images as the source encodes them. By default, images of one size
            become uint8 columns [H, W, C].
        follow_links: also read files of a source's folder that are symbolic links to places outside it. By default,
            such a link is an error. The files of the HuggingFace hub's cache are links that need no permission.
        shard_bytes: the size at which a shard is closed, in bytes of column data.
        on_bad_episode: `error` raises BadEpisodeError at a malformed episode. `skip` leaves it out, with a finding.
        strict: raise an error for every finding: NaN, Inf and all others that `gear-data lint` lists.
        overwrite: replace the GEAR dataset at the destination, once the new one is complete.
        resume: continue an unfinished conversion of the same source with the same options. If there is none, the
            conversion starts at the beginning. If another process is converting to the destination, wait for that
            process. So all ranks of a job may convert the same source: one converts, all return the same dataset.
        engine: `local`, or `ray`. Ray uses the cluster that this process is connected to, or the cluster of
            RAY_ADDRESS, or else starts one on this machine. Both engines write the same bytes.
        jobs: the number of processes or Ray tasks that run at once. None uses all cores if the source is large enough.
            The shards do not depend on it.
        progress: show a progress bar. None shows one on a terminal.

    Returns:
        The outcome. The dataset's manifest records the same facts.

    Raises:
        DestinationExistsError: the destination holds files that must not be replaced, or another process is writing
            there; the message names that process.
        UnknownArgumentError: there is no argument of a name, or a group has it now; the message names the group.
        GearError: another subclass, with file, column and row. After an error, `open` finds no new dataset at the
            destination. Finished shards stay there for `resume`; `overwrite` keeps the old dataset instead.
    """
    start = time.perf_counter()
    refuse_keywords_of(convert, unknown, MOVED)
    options = ConvertOptions(
        format=format,
        split=split,
        columns=columns,
        rename=rename,
        mapping=mapping,
        stack=stack,
        episodes=episodes,
        videos=videos,
        tables=tables,
        keep_encoded=keep_encoded,
        follow_links=follow_links,
        shard_bytes=shard_bytes,
        on_bad_episode=on_bad_episode,
        strict=strict,
    )
    run = RunOptions(resume=resume, engine=engine, jobs=jobs, progress=progress)
    manifest = run_conversion(options.spec(source), plain_path(destination), run, overwrite=overwrite)
    fields, provenance = report_fields(manifest), manifest.provenance
    seconds = time.perf_counter() - start
    return ConvertReport(seconds=seconds, format=provenance["format"], reason=provenance["reason"], **fields)


def run_conversion(spec: ConversionSpec, destination: str, run: RunOptions, *, overwrite: bool = False) -> Manifest:
    """Runs a conversion, and returns the manifest of the dataset. Raises the errors of `convert`.

    Args:
        spec: the source and the options.
        destination: the folder or URL of the dataset.
        run: how the conversion runs.
        overwrite: as in `convert`.
    """
    target = choose_target(destination, overwrite, run.resume)
    spec = with_parts(spec)
    location = spec.locate()
    check_disjoint(location, target.folder)
    with locked_target(target, overwrite, run.resume) as locked:
        return Conversion(spec, location, locked, run).run()


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a conversion runs. The dataset does not depend on it.

    Attributes:
        resume: continue an unfinished conversion at the destination.
        engine: `local` or `ray`.
        jobs: the number of processes or Ray tasks that run at once; None chooses.
        progress: show a progress bar; None shows one on a terminal.
        again: how a user continues a conversion that failed, for errors.
        whole_videos: whether video files at URLs are read whole. Otherwise only their indexes are: frames have no
            checksums and cameras no statistics.

    Raises:
        UnknownNameError: there is no such engine.
        InvalidArgumentError: `jobs` is no int, or below 1.
    """

    resume: bool = False
    engine: EngineName = "local"
    jobs: int | None = None
    progress: bool | None = None
    again: str = CONTINUE
    whole_videos: bool = True

    def __post_init__(self) -> None:
        if self.engine not in get_args(EngineName):
            raise unknown_name("engine", self.engine, get_args(EngineName))
        if self.jobs is not None:
            check_range("jobs", self.jobs, 1)


class Conversion:
    """One conversion: opens the source, runs its tasks, publishes the dataset.

    Args:
        spec: the source and the options.
        location: the located source.
        locked: the destination, locked.
        run: how the conversion runs.
    """

    def __init__(self, spec: ConversionSpec, location: Location, locked: LockedTarget, run: RunOptions) -> None:
        self._spec = spec
        self._location = location
        self._locked = locked
        self._target = locked.target
        self._store = open_file_store(locked.target.staging)
        self._run = run

    def run(self) -> Manifest:
        """Converts the source and returns the manifest of the dataset."""
        early, most = self._worker_counts()
        with WorkerPool(self._spec, self._store.name, most, self._locked.descriptors) as pool:
            pool.resize(early)  # workers start while this process opens the source
            opened, format_name, reason = self._spec.open(self._location, threads=usable_cores())
            source = opened
            self._spec = replace(self._spec, format=format_name)
            identity = self._identity()
            if self._run.resume and (not self._locked.locks or self._store.size(MANIFEST_NAME) is not None):
                return finished_manifest(self._store, self._locked, identity)
            tasks = plan_tasks(source.units(), self._spec.shard_bytes)
            embodiments = [part.embodiment for part in self._spec.parts]
            staging_options = {**identity, "embodiments": embodiments, "tasks": [list(task.start) for task in tasks]}
            staged = StagedDataset(self._store, staging_options, resume=self._run.resume)
            with abandoned_on_error(staged, self._target, self._run.again):
                pool.resize(len(tasks) - 1)
                source = self._with_indexed_videos(source)
                opening_findings = source.findings.to_json()
                results = self._run_tasks(self._engine(source, pool), source, tasks)
                videos = source.staged if isinstance(source, IndexedSource) else None
                merged = staged.merge(results, stored_schema(source), None if videos is None else videos.index)
                findings = self._all_findings(opening_findings, results, merged, source.metadata)
                shard_counts = [[*task.start, len(result.shards)] for task, result in zip(tasks, results, strict=True)]
                provenance = {
                    "reason": reason,
                    **identity,
                    "tasks": shard_counts,
                    "metadata": to_json_value(source.metadata),
                }
                if videos is not None:
                    provenance["videos"] = files_fact(self._spec.options.videos.mode, videos.bytes, videos.index.files)
                if isinstance(opened, SourceSequence):
                    provenance["parts"] = to_json_value(opened.part_records())
                cameras = camera_statistics(source, merged.episodes, findings, shareable=self._is_shareable())
                manifest = staged.manifest(merged, provenance, findings.to_json(), cameras)
                put_text(self._store, CARD_NAME, printable(dataset_card(manifest, merged.episodes)))
                self._locked.check()
                staged.finish(manifest)
        if self._target.replaces:
            swap_folders(Path(self._target.staging), Path(self._target.folder))
        return manifest

    def _with_indexed_videos(self, source: EpisodeSource) -> EpisodeSource:
        """Indexes the files of a source's cameras, and places them in the dataset."""
        videos = source_videos(source)
        if not videos.columns:
            return source
        cores = usable_cores() if self._run.jobs is None else self._run.jobs
        mode, progress = self._spec.options.videos.mode, self._run.progress
        whole = self._run.whole_videos or mode != LINK
        # Episodes with bad videos can be left out only now.
        late = not whole and self._spec.options.on_bad_episode != "skip"
        stage_videos(videos, self._store, mode, source.findings, jobs=cores, progress=progress, whole=whole, late=late)
        return self._spec.with_stored_cameras(source, self._store, threads=cores)

    def _worker_counts(self) -> tuple[int, int]:
        """Returns the number of workers to start early, and the most workers to start.

        Early workers start before the source is opened. Their number depends only on the size of the source's files.
        """
        if self._run.engine != "local" or not self._is_shareable():
            return 0, 0
        useful = useful_workers(sum(file.size for file in self._location.files), self._spec.shard_bytes)
        most = (usable_cores() if self._run.jobs is None else self._run.jobs) - 1
        return (min(useful, most), min(useful, most) if self._run.jobs is None else most)

    def _is_shareable(self) -> bool:
        """Returns whether other processes can use the source and the destination.

        They cannot use objects and file systems in the memory of this process.
        """
        return self._spec.is_shareable and not self._store.name.startswith("memory:")

    def _identity(self) -> dict[str, Any]:
        """Returns the facts that a resumed conversion must share.

        The manifest records them as provenance.
        """
        return {
            "format": self._spec.format,
            "source": self._location.name,
            "source_files": [[file.name, file.size, file.stamp] for file in self._location.files],
            "source_fingerprint": _source_fingerprint(self._location),
            "options": self._spec.to_json(),
        }

    def _engine(self, source: EpisodeSource, pool: WorkerPool) -> Engine:
        if self._run.engine == "ray":
            if not self._is_shareable():
                raise InvalidArgumentError(
                    "Ray cannot read a source or write a destination in the memory of this process",
                    hint="leave --engine ray out",
                )
            from gear_data.ingest.engine.ray_cluster import RayEngine

            return RayEngine(self._spec, self._store.name, self._run.jobs)
        return PoolEngine(pool, self._spec, source, self._store)

    def _run_tasks(self, engine: Engine, source: EpisodeSource, tasks: Sequence[Task]) -> list[TaskResult]:
        unit = "step" if source.rows_are_steps else "episode"
        with progress_bar(source.num_rows, "convert", unit, self._run.progress) as bar:
            results = engine.run(tasks, row_counter(bar, self._location.files, source.num_rows))
        if not any(result.shards for result in results):
            raise EmptySourceError("the source holds no episode", file=self._location.name)
        return results

    def _all_findings(
        self,
        opening_findings: Sequence[Mapping[str, Any]],
        results: Sequence[TaskResult],
        merged: MergedTasks,
        metadata: Mapping[str, Any],
    ) -> FindingLog:
        """Merges the findings of opening and of all tasks, and checks the dataset."""
        findings = FindingLog()
        findings.restore([*opening_findings, *(finding for result in results for finding in result.findings)])
        if self._spec.strict:
            findings.make_strict()
        files, contents = merged.episodes.column("source"), content_bytes(merged.episodes)
        steps = sum(shard.steps for shard in merged.shards)
        check_dataset(findings, metadata, contents, steps, lambda i: (str(files[i].as_py()), int(merged.rows[i])))
        return findings


def _source_fingerprint(location: Location) -> Any:
    """Returns the fingerprint of a `datasets` object; one for each part of several."""
    if location.parts:
        return [_source_fingerprint(part) for part in location.parts]
    return getattr(location.dataset, "_fingerprint", None)
