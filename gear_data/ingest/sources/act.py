"""ALOHA's HDF5 files, which ACT reads: one per episode, such as `episode_0.hdf5`.

Layout: `record_episodes.py` and `utils.py` in https://github.com/tonyzhaozh/act, and their successors in mobile ALOHA.
A file has `action` [T, 14] and `observations/{qpos,qvel,effort}`; of a mobile robot also `base_action` [T, 2]. Cameras
are `observations/images/NAME`: uint8 [T, H, W, 3], or JPEG files. The JPEG files of a camera are padded with zeros to
one length. `compress_len` [cameras, T] has their own lengths; the order of its rows is not stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gear_data.errors import GearError, UnknownFormatError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.layout import EpisodeRule, Kind
from gear_data.ingest.location import Location, listed
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.arrays.blocks import ReadEpisode
from gear_data.ingest.sources.tree.formats import TreeFormat, open_format
from gear_data.ingest.sources.tree.hdf5_view import hdf5_trees
from gear_data.ingest.sources.tree.source import Hooks, TreeSource
from gear_data.ingest.sources.tree.view import ARRAY, Container, Tree, walk
from gear_data.schema import VARIABLE_TYPES

_ACTION, _QPOS, _LENGTHS = "action", "observations/qpos", "compress_len"
_IMAGES = "observations/images"


def probe(location: Location) -> str | None:
    """Returns the reason if the first HDF5 file is ALOHA's; otherwise None."""
    try:
        first = hdf5_trees(location)[0]
        with first.open() as tree:
            if not _is_episode(tree):
                return None
            is_encoded = any(array.dtype == "binary" or array.holds_images() for array in walk(tree, _IMAGES))
    except GearError:
        return None  # a damaged file is not recognised
    note = "; its images are JPEG, in the channel order of the JPEG file (cv2.imdecode reverses it)"
    return f"ACT: {first.name} has {_ACTION} and {_QPOS}{note if is_encoded else ''}"


def open_(location: Location, options: SourceOptions) -> TreeSource:
    """Opens ALOHA's files. Raises UnknownFormatError if there is no HDF5 file."""
    return open_format(_FORMAT, hdf5_trees(location), options, {})


def _is_episode(tree: Tree) -> bool:
    return tree.children("").get(_ACTION) == tree.children("observations").get("qpos") == ARRAY


def _check_files(trees: Sequence[Container]) -> None:
    """Raises UnknownFormatError if some of the files are no episodes."""
    others = []
    for item in trees:
        with item.open() as tree:
            if not _is_episode(tree):
                others.append(item.name)
    if others:
        raise UnknownFormatError(
            f"{len(others)} of {len(trees)} files lack {_ACTION} or {_QPOS}",
            file=others[0],
            hint=f"move these files to another folder: {listed(others)}; or leave them out with --on-bad-episode skip",
        )


def _check_lengths(tree: Tree, episode: ReadEpisode, findings: FindingLog) -> None:
    """Compares the lengths of the images with those that the file declares."""
    array = tree.array(_LENGTHS)
    if array is None or len(array.shape) != 2 or array.kind not in ("i", "u", "f"):
        return
    declared = array.read(0, array.rows)
    for name, images in episode.columns.items():
        if not isinstance(images, pa.Array) or images.type != VARIABLE_TYPES["binary"]:
            continue
        lengths = pc.binary_length(images).to_numpy()
        if not any(np.array_equal(row, lengths) for row in declared):
            message = f"no row has the lengths of the images of {name}; they are cut where the padding starts"
            findings.add(Finding("metadata-disagrees", message, 1, tree.name, episode.number, _LENGTHS))


_FORMAT = TreeFormat(
    episodes=EpisodeRule(Kind.FILES, ("*",)),
    steps=_ACTION,
    alias=lambda path: None if path == _LENGTHS else path,
    beside=frozenset({_LENGTHS}),
    hooks=Hooks(check_files=_check_files, check_episode=_check_lengths),
)
FORMAT = Format("act", probe, open_, uses=frozenset({"dtype"}), suffixes=(".hdf5", ".h5"))
