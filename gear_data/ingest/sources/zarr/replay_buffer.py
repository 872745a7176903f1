"""Diffusion Policy's and UMI's replay buffers: Zarr stores of flat steps.

Layout: `diffusion_policy/common/replay_buffer.py` in https://github.com/real-stanford/diffusion_policy. The arrays
below `data` have a row a step, of all episodes. `meta/episode_ends` has the row after the last step of each episode.
UMI (https://umi-gripper.github.io) and 3D Diffusion Policy have the same layout.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import BadEpisodeError, GearError, UnknownFormatError
from gear_data.ingest.findings.log import BAD_EPISODE_HINT, NO_STEPS, Finding, FindingLog
from gear_data.ingest.location import Location, listed
from gear_data.ingest.pipeline.columns import choose_columns
from gear_data.ingest.pipeline.names import canonical_name
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.arrays.source import ArraySource
from gear_data.ingest.sources.arrays.step_arrays import EpisodeRanges, StepArrays
from gear_data.ingest.sources.zarr.array import ZarrArray, ZarrReader, array_paths, open_arrays, read_attributes
from gear_data.ingest.sources.zarr.store import ZIP_SUFFIX, ZarrStore, find_stores
from gear_data.ingest.videos.video_columns import find_files

_DATA, _META, _ENDS = "data", "meta", "episode_ends"
_ENDS_PATH = f"{_META}/{_ENDS}"
_ZARR_ARCHIVE = ".zarr" + ZIP_SUFFIX
_VIDEOS = (".mp4", ".avi", ".mkv", ".webm")
#: Longer attributes of the store are not kept, in characters of JSON.
_MAX_METADATA = 10_000
#: Names of observations in Diffusion Policy, 3D Diffusion Policy and UMI. `state` and `obs` are others.
_OBSERVATION = re.compile(
    r"img|image|keypoint|depth|point_cloud|agent_pos|camera_?\d+(_\w+)?|robot\d*_(?!.*action)\w+|\w+_(image|rgb|depth)"
)


def probe(location: Location) -> str | None:
    """Returns the reason if a store is a replay buffer; otherwise None.

    A damaged archive of a store is accepted too, so that opening it raises the error.
    """
    try:
        store = next((store for store in find_stores(location) if _is_replay_buffer(store)), None)
    except GearError:
        return "a Zarr archive" if location.with_suffix(_ZARR_ARCHIVE) else None
    return None if store is None else f"Zarr replay buffer: {store.name} has {_DATA} and {_ENDS_PATH}"


def open_(location: Location, options: SourceOptions) -> ArraySource:
    """Opens replay buffers.

    Raises:
        UnknownFormatError: there is no replay buffer, there are also Zarr stores of another layout, or a store is there
            twice.
    """
    stores = find_stores(location)
    others = [store.name for store in stores if not _is_replay_buffer(store)]
    if others or not stores:
        raise UnknownFormatError(
            f"holds Zarr stores without {_DATA} and {_ENDS_PATH}: {listed(others)}"
            if others
            else "holds no Zarr store",
            hint="convert the other stores separately" if len(others) < len(stores) else "leave --format out",
        )
    for store in stores:
        if store.archive is not None and (copy := _unpacked(store, stores)) is not None:
            raise UnknownFormatError(
                f"holds the store {copy} and its archive {store.archive.name}: the episodes would be read twice",
                hint=f"convert one of the two: {copy}",
            )
    findings = FindingLog()
    named = {file.path for pattern in options.videos.cameras.values() for file in find_files(location, pattern)}
    if videos := [file for file in location.with_suffix(*_VIDEOS) if file.path not in named]:
        message = "videos next to the store are not read without --video-column; left out"
        findings.add(Finding("files-left-out", message, len(videos), videos[0].name))
    attributes = read_attributes(stores[0])
    if (size := len(json.dumps(attributes))) > _MAX_METADATA:
        message = f"the attributes of the store have {size} characters of JSON, more than {_MAX_METADATA}; left out"
        findings.add(Finding("fact-left-out", message, file=stores[0].name))
        attributes = {}
    return ArraySource(
        [store.name for store in stores],
        [sum(size for _, size in store.sizes()) for store in stores],
        lambda i: _step_arrays(stores[i], options),
        findings,
        attributes,
        ZarrReader,
        options.tables.dtype,
    )


def _unpacked(archived: ZarrStore, stores: Sequence[ZarrStore]) -> str | None:
    """Returns the name of the folder that an archive was unpacked to, or None.

    The folder is named like the archive, or like the store in the archive.
    """
    archive = archived.archive.name if archived.archive is not None else ""
    inside = archived.name.removeprefix(archive).lstrip("/")
    folder = archive.rpartition("/")[0]
    names = {archive.removesuffix(ZIP_SUFFIX), f"{archive.removesuffix(ZIP_SUFFIX)}/{inside}".rstrip("/")}
    if inside:
        names.add(f"{folder}/{inside}" if folder else inside)
    return next((store.name for store in stores if store.archive is None and store.name in names), None)


def _is_replay_buffer(store: ZarrStore) -> bool:
    paths = array_paths(store)
    return _ENDS_PATH in paths and any(path.startswith(f"{_DATA}/") for path in paths)


def _step_arrays(store: ZarrStore, options: SourceOptions) -> StepArrays:
    """Builds the step arrays of one store.

    Raises:
        BadEpisodeError: the arrays do not end where the last episode ends, or an episode has no step.
    """
    meta = {path.removeprefix(f"{_META}/"): array for path, array in open_arrays(store, _META).items()}
    data = {path.removeprefix(f"{_DATA}/"): array for path, array in open_arrays(store, _DATA).items()}
    scalars = [name for name, array in data.items() if not array.shape]
    names = [name for name in data if name not in scalars]
    chosen = choose_columns(names, replace(options, rename=_rename(names, options.rename or {})))
    findings = [
        Finding("column-left-out", "a scalar, where one row per step is expected; left out", 1, store.name, column=name)
        for name in scalars
    ]
    findings += [found for name in chosen if (found := data[name].missing_finding()) is not None]
    ends = _read_ends(meta[_ENDS])
    lengths = np.diff(ends, prepend=0)
    findings += _check_ends(store, ends, {name: len(data[name]) for name in chosen}, options)
    keep = np.flatnonzero(lengths)
    facts, left_out = _facts(store, meta, keep, len(lengths))
    episodes = EpisodeRanges(lengths[keep], (ends - lengths)[keep], facts=facts, findings=(*findings, *left_out))
    return StepArrays(
        name=store.name,
        bytes=sum(data[name].stored_bytes for name in chosen),
        steps=int(ends[-1]) if len(ends) else 0,
        arrays={column: data[name] for name, column in chosen.items()},
        sources={column: name for name, column in chosen.items()},
        locate=lambda: episodes,
        seekable=True,
    )


def _rename(names: Iterable[str], chosen: Mapping[str, str]) -> dict[str, str]:
    """Returns source name -> canonical name, where they are not the usual ones.

    The user's names come first. `state` is the observation, unless another array is.
    """
    known = {name: chosen.get(name) or canonical_name(name) for name in names}
    rename = {name: f"observations.{column}" for name, column in known.items() if _OBSERVATION.fullmatch(column)}
    if "state" in known:
        rename["state"] = "observations" if "observations" not in known.values() else "observations.state"
    return rename | dict(chosen)


def _read_ends(array: ZarrArray) -> npt.NDArray[np.int64]:
    """Reads int64 [n], the row after each episode."""
    if len(array.shape) != 1 or array.dtype.kind not in "iu":
        raise BadEpisodeError(
            f"holds {array.dtype} {array.shape}, not one row number for each episode",
            column=_ENDS_PATH,
            hint="write the store again with Diffusion Policy's ReplayBuffer",
        )
    with ZarrReader() as reader:
        return reader.read(array, 0, len(array)).astype(np.int64)


def _check_ends(
    store: ZarrStore, ends: npt.NDArray[np.int64], rows: Mapping[str, int], options: SourceOptions
) -> list[Finding]:
    """Checks the episodes, and that the arrays end with the last one.

    Returns:
        Findings about episodes and rows that are skipped.

    Raises:
        BadEpisodeError: a row number is smaller than the one before or beyond an array. Or an episode has no step, or
            rows follow the last episode, and bad episodes are not skipped.
    """
    lengths = np.diff(ends, prepend=0)
    if (lengths < 0).any():
        number = int(np.argmax(lengths < 0))
        before = int(ends[number - 1]) if number else 0
        raise BadEpisodeError(
            f"ends at row {ends[number]}, but the episode before ends at row {before}",
            column=_ENDS_PATH,
            row=number,
            hint="write the store again with Diffusion Policy's ReplayBuffer",
        )
    last = int(ends[-1]) if len(ends) else 0
    for name, count in rows.items():
        if count < last:
            raise BadEpisodeError(
                f"has {count} rows, but the last episode ends at row {last}",
                column=f"{_DATA}/{name}",
                row=count,
                hint="download the store again, or name the columns to keep with --columns (columns=[...])",
            )
    problems = [
        (NO_STEPS, np.flatnonzero(lengths == 0).tolist(), _ENDS_PATH),
        *(
            (f"rows follow the last episode, which ends at row {last}: they belong to no episode", [last], name)
            for name, count in rows.items()
            if count > last
        ),
    ]
    findings = []
    for message, places, column in problems:
        if places and not options.skip_bad:
            raise BadEpisodeError(message, column=column, row=places[0], hint=BAD_EPISODE_HINT)
        if places:
            findings.append(Finding("bad-episode", f"{message}; skipped", len(places), store.name, places[0], column))
    return findings


def _facts(
    store: ZarrStore, meta: Mapping[str, ZarrArray], keep: npt.NDArray[np.int64], count: int
) -> tuple[dict[str, list[Any]], list[Finding]]:
    """Returns the facts of the kept episodes.

    The second result is findings about the other arrays below `meta`.
    """
    facts, findings = {}, []
    with ZarrReader() as reader:
        for name, array in meta.items():
            if array.shape == (count,) and array.dtype.kind in "biuf" and name != _ENDS:
                facts[name.replace("/", ".")] = reader.read(array, 0, count)[keep].tolist()
            elif name != _ENDS:
                message = f"holds {array.dtype} {array.shape}, not one number for each episode; left out"
                findings.append(Finding("fact-left-out", message, 1, store.name, column=f"{_META}/{name}"))
    return facts, findings


FORMAT = Format(
    "zarr",
    probe,
    open_,
    uses=frozenset({"dtype"}),
    suffixes=(ZIP_SUFFIX,),
    beside=r"(.*/)?zarr\.json",
    in_time_order=True,
)
