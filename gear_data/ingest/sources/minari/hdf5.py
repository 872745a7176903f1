"""Minari HDF5: `data/main_data.hdf5` with groups, and `data/metadata.json`.

Layout: https://minari.farama.org/content/dataset_standards (versions 0.4 and 0.5). For an episode of T steps:

- `observations` has T + 1 rows; the last row is the final observation.
- `infos` has T rows, or T + 1 rows of which the first is what `reset` returned. Here `infos.x[t]` is what step t
  returned.
- Dict spaces are groups; Tuple spaces are groups with the entries `_index_0`, `_index_1`, ...
- Text is UTF-8. Images are JPEG bytes if the space is an image space and the dataset encodes images.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath

from gear_data.errors import GearError, UnknownFormatError
from gear_data.ingest.ideas.dataset_facts import dataset_facts
from gear_data.ingest.layout import Column, ColumnRole, EpisodeRule, Kind
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.hdf5.open_file import hdf5_files
from gear_data.ingest.sources.minari.metadata import METADATA, MinariMetadata, parse_metadata, read_metadata
from gear_data.ingest.sources.tree.episodes import find_places
from gear_data.ingest.sources.tree.formats import Model, TreeFormat, count_steps, open_format
from gear_data.ingest.sources.tree.hdf5_view import hdf5_tree
from gear_data.ingest.sources.tree.source import Hooks, TreeSource
from gear_data.ingest.sources.tree.view import Container

_MAIN = "main_data.hdf5"
_EPISODES = EpisodeRule(Kind.GROUPS, ("episode_*",), numbered=True)
_STEPS = "rewards"
_TUPLE_ENTRY = re.compile(r"(?<=/)_index_([0-9]+)")
_REQUIRED = ("observations", "actions", "rewards", "terminations", "truncations")
#: Group of an array -> its role.
_ROLES = {"observations": ColumnRole.WITH_FINAL, "infos": ColumnRole.INFOS}
#: Attributes of an episode that repeat its number or its length, or statistics of its rewards.
_IGNORED = frozenset({"id", "rewards_max", "rewards_mean", "rewards_min", "rewards_std", "rewards_sum", "total_steps"})


def probe(location: Location) -> str | None:
    """Returns the reason if the first main file is Minari HDF5; otherwise None."""
    files = _main_files(location)
    if not files:
        return None
    # A damaged file is not recognised as Minari.
    with suppress(GearError), hdf5_tree(files[0]).open() as tree:
        places = find_places(tree, _EPISODES, None)
        if places and set(_REQUIRED) <= tree.children(places[0].key).keys():
            name = places[0].key
            return f"Minari HDF5: '{name}' in {files[0].name} is a group of {', '.join(_REQUIRED)}"
    return None


def open_(location: Location, options: SourceOptions) -> TreeSource:
    """Opens a Minari dataset. Raises UnknownFormatError for none or several datasets."""
    files = _main_files(location)
    if len(files) != 1:
        message = "holds no Minari HDF5 file" if not files else f"holds {len(files)} Minari datasets"
        folders = ", ".join(str(PurePosixPath(file.name).parent) for file in files[:10])
        raise UnknownFormatError(message, hint=f"convert one of: {folders}" if files else "leave --format out")
    tree = hdf5_tree(files[0])
    metadata_file = location.file(str(PurePosixPath(tree.name).with_name(METADATA)))
    metadata = _root_attributes(tree) if metadata_file is None else read_metadata(metadata_file)
    form = TreeFormat(
        episodes=_EPISODES,
        steps=_STEPS,
        column=_column,
        alias=lambda path: _TUPLE_ENTRY.sub(r"\1", path),
        declared="total_steps",
        ignored=_IGNORED,
        hooks=Hooks(
            check_file=lambda tree, places, findings: metadata.check_counts(
                len(places), sum(count_steps(tree, place, _STEPS) for place in places), findings
            )
        ),
    )
    return open_format(form, (tree,), options, metadata.facts)


def _main_files(location: Location) -> tuple[SourceFile, ...]:
    files = hdf5_files(location)
    return tuple(file for file in files if PurePosixPath(file.name).name == _MAIN) if location.folder else files


def _root_attributes(item: Container) -> MinariMetadata:
    """Reads the metadata from the file's attributes.

    Minari 0.4 stores metadata there. They are also used if `metadata.json` is missing.
    """
    with item.open() as tree:
        facts, left_out = dataset_facts(tree.attributes(""), item.name)
    metadata = parse_metadata(facts, item.name)
    return replace(metadata, left_out=(*left_out, *metadata.left_out))


def _column(model: Model, path: str, name: str) -> Column:
    # Minari writes lists of Python numbers: an episode of whole rewards is int64, the next may be float64.
    return Column(name, path, role=_ROLES.get(path.partition("/")[0], ColumnRole.STEP), fractions=name == "rewards")


FORMAT = Format(
    "minari",
    probe,
    open_,
    uses=frozenset({"dtype"}),
    suffixes=(".hdf5", ".h5"),
    beside=r"(.*/)?(namespace_)?metadata\.json",
)
