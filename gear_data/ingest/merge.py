"""Merges datasets of GEAR shards into one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Never

import pyarrow as pa

from gear_data.common.keywords import refuse_keywords_of
from gear_data.common.paths import plain_path
from gear_data.ingest.convert import Conversion, RunOptions
from gear_data.ingest.destination import LockedTarget, choose_target, locked_target
from gear_data.ingest.engine.spec import SHARD_BYTES, ConversionSpec
from gear_data.ingest.findings.dataset_checks import DUPLICATE, check_dataset
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import Location
from gear_data.ingest.merging.dataset_source import GEAR
from gear_data.ingest.merging.inputs import MergeInput, check_apart, open_inputs, read_episode_table
from gear_data.ingest.merging.link import LinkedVideos, link_shards, link_videos, merged_episodes, write_tables
from gear_data.ingest.merging.linked_dataset import MergeReport, report_fields, write_linked
from gear_data.ingest.several.cameras import check_frame_sizes, united_cameras
from gear_data.ingest.several.embodiments import EMBODIMENT
from gear_data.ingest.several.parts import SourcePart
from gear_data.ingest.several.sequence import common_metadata, differing_subtasks
from gear_data.ingest.several.united import united_columns, with_masks
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.videos.storage_options import KEEP, LINK, VideoStorage
from gear_data.schema import Schema
from gear_data.storage.episode_tables import content_bytes
from gear_data.storage.identity import dataset_identity
from gear_data.storage.manifest import MANIFEST_NAME, Manifest, fingerprint
from gear_data.storage.statistics import merged_statistics
from gear_data.storage.writing.file_store import FileStore

FORMAT = "merged"


def merge(
    datasets: Iterable[str | os.PathLike[str]],
    destination: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool | None = None,
    **unknown: Never,
) -> MergeReport:
    """Merges several datasets into one.

    If the datasets have equal columns, no shard is written again: shards and videos become hard links in the new
    dataset, or copies if a link is not possible, such as on another disk or at a URL. Otherwise all steps are written
    again, with the columns of all datasets. A column that a dataset lacks has zeros there, and the column `masks.NAME`
    is false. All datasets must have the same cameras.

    The episodes of the first dataset come first. The column `embodiment` of the episode table names the dataset of each
    episode: the name of its folder.

    Args:
        datasets: the paths or URLs of at least two datasets.
        destination: the folder of the merged dataset, as a path or an fsspec URL. It must not exist, or must be empty,
            unless `overwrite` or `resume` is set.
        overwrite: replace the GEAR dataset at the destination, once the new one is complete.
        resume: continue an interrupted merge of the same datasets, or return the merged dataset if it is finished.
        progress: show a progress bar. None shows one on a terminal.

    Raises:
        InvalidArgumentError: there are fewer than two datasets, one is given twice, or the destination is one of them.
        UnsupportedColumnError: a column has several dtypes or shapes, a fact about episodes has several types, or a
            dataset lacks a camera of another.
        DestinationExistsError: the destination holds files that must not be replaced, or another process is writing
            there.
        CorruptShardError: a dataset is damaged. Shards that are linked are not read; `verify` checks them.
        UnknownArgumentError: there is no argument of a name.
        GearError: another subclass. After an error, `open` finds no new dataset at the destination.
    """
    refuse_keywords_of(merge, unknown)
    start = time.perf_counter()
    inputs = open_inputs(datasets)
    named = [(item.name, item.manifest.schema.columns) for item in inputs]
    cameras = [(item.name, item.manifest.schema.columns, item.manifest.schema.videos) for item in inputs]
    check_frame_sizes(cameras)
    schema = Schema(united_columns(with_masks(named)), united_cameras(cameras))
    target = choose_target(plain_path(destination), overwrite, resume)
    check_apart((item.name for item in inputs), target.folder)
    with locked_target(target, overwrite, resume) as locked:
        if all(item.manifest.schema.names == schema.names for item in inputs):
            manifest, linked = _linked(inputs, schema, locked, resume, progress)
        else:
            manifest, linked = _rewritten(inputs, locked, resume, progress), 0
    return MergeReport(linked=linked, seconds=time.perf_counter() - start, **report_fields(manifest))


def _linked(
    inputs: Sequence[MergeInput], schema: Schema, locked: LockedTarget, resume: bool, progress: bool | None
) -> tuple[Manifest, int]:
    """Merges datasets of equal columns.

    Returns the manifest of the merged dataset, and the number of linked shards.
    """
    identity = {
        "format": FORMAT,
        "source": ", ".join(item.name for item in inputs),
        "source_fingerprint": [dataset_identity(item.manifest) for item in inputs],
    }

    def write(store: FileStore) -> tuple[Manifest, pa.Table, int]:
        episodes = merged_episodes(inputs)
        shards, linked = link_shards(inputs, store, progress)
        videos = link_videos(inputs, store)
        manifest = Manifest(
            episodes=len(episodes),
            steps=sum(item.manifest.steps for item in inputs),
            fingerprint=fingerprint(schema, content_bytes(episodes)),
            schema=schema,
            shards=shards,
            tables={**write_tables(inputs, schema, store, episodes), **videos.tables},
            statistics=merged_statistics(schema, (item.manifest.statistics for item in inputs)),
            provenance=_provenance(inputs, identity, videos),
            findings=tuple(_findings(inputs, episodes).to_json()),
        )
        return manifest, episodes, linked

    manifest, linked = write_linked(locked, identity, write, resume=resume)
    return manifest, linked or 0


def _rewritten(inputs: Sequence[MergeInput], locked: LockedTarget, resume: bool, progress: bool | None) -> Manifest:
    """Merges datasets of different columns: a conversion of all of them."""
    parts = tuple(SourcePart(item.name, None, _new_embodiment(item)) for item in inputs)
    names = tuple(item.name for item in inputs)
    modes = {item.manifest.provenance.get("videos", {}).get("mode") for item in inputs}
    options = SourceOptions(videos=VideoStorage(mode=LINK if modes == {LINK} else KEEP))
    spec = ConversionSpec(names, None, GEAR, options, keep_encoded=True, shard_bytes=SHARD_BYTES, parts=parts)
    location = _without_other_files(spec.locate(), inputs)
    return Conversion(spec, location, locked, RunOptions(resume=resume, progress=progress)).run()


def _new_embodiment(item: MergeInput) -> str | None:
    """Returns the name of a dataset's episodes; None if they have names already."""
    known = read_episode_table(item.files, item.manifest).column_names
    return None if EMBODIMENT in known else item.embodiment


def _without_other_files(location: Location, inputs: Sequence[MergeInput]) -> Location:
    """Leaves out files that readers may add to a dataset's folder, such as sidecars.

    A resumed merge compares the files with the files of the first run.
    """
    listed = [{MANIFEST_NAME, *(entry.file for entry in item.manifest.files)} for item in inputs]
    parts = tuple(
        replace(part, files=tuple(file for file in part.files if file.name in names))
        for part, names in zip(location.parts, listed, strict=True)
    )
    return replace(location, files=tuple(file for part in parts for file in part.files), parts=parts)


def _provenance(inputs: Sequence[MergeInput], identity: Mapping[str, Any], videos: LinkedVideos) -> dict[str, Any]:
    """Returns the origin of the merged dataset.

    `merged` has the provenance of each dataset. `verify` adds up the statistics in that order.
    """
    return {
        "reason": f"{len(inputs)} datasets of equal columns",
        **identity,
        **({"videos": videos.provenance} if videos.provenance else {}),
        "merged": [
            {
                "source": item.name,
                "embodiment": item.embodiment,
                "fingerprint": item.manifest.fingerprint,
                "episodes": item.manifest.episodes,
                "shards": len(item.manifest.shards),
                "provenance": item.manifest.provenance,
            }
            for item in inputs
        ],
        "metadata": reduce(common_metadata, (item.manifest.provenance.get("metadata") for item in inputs)) or {},
    }


def _findings(inputs: Sequence[MergeInput], episodes: pa.Table) -> FindingLog:
    """Returns the findings of all datasets.

    Repeated episodes are looked for again, in all datasets together.
    """
    findings = FindingLog()
    for item in inputs:
        for finding in item.manifest.findings:
            if finding["code"] != DUPLICATE:
                findings.add(Finding(**finding))
    if (differing := differing_subtasks([item.manifest.provenance.get("metadata") for item in inputs])) is not None:
        findings.add(differing)
    files = episodes.column("source")
    check_dataset(findings, {}, content_bytes(episodes), 0, lambda i: (str(files[i].as_py()), None))
    return findings
