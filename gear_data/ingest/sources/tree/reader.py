"""Any HDF5, NumPy or Zarr tree whose layout is no other format's.

A mapping says where the episodes and columns are. Without one, the names of groups and arrays must be clear:
`gear_data.ingest.sources.tree.find` has the rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from gear_data.errors import GearError, InvalidArgumentError, UnknownFormatError
from gear_data.ingest.episode_boundaries import EpisodeBoundaries
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.location import Location
from gear_data.ingest.pipeline.columns import resolve_structure_columns
from gear_data.ingest.source import EpisodeSource, Format, SourceOptions
from gear_data.ingest.sources.tree.containers import SUFFIXES, containers
from gear_data.ingest.sources.tree.listed_facts import with_listed_facts
from gear_data.ingest.sources.tree.source import open_mapped
from gear_data.ingest.sources.tree.suggest import USERS_IDS, suggest, suggestion_text, unclear
from gear_data.ingest.sources.tree.view import Container, paths_below


def probe(location: Location) -> str | None:
    """Returns the reason if names, or the user, show the episodes without doubt; otherwise None."""
    try:
        trees = containers(location)
        if trees and location.episode_columns:
            return USERS_IDS
        suggestion = suggest(trees, location.rename) if trees else None
    except GearError:
        return None  # a damaged file is not recognised
    if suggestion is None or suggestion.doubts:
        return None
    return f"{suggestion.reason} (--suggest-map prints the mapping)"


def open_(location: Location, options: SourceOptions) -> EpisodeSource:
    """Opens a source with its mapping, or with the one that its names suggest.

    Raises:
        UnknownFormatError: the source has no tree, or its names suggest no mapping without doubts.
    """
    trees = _trees(location)
    ids = named_ids(trees, location)
    if options.mapping is not None and ids:
        raise InvalidArgumentError(
            "the mapping and --episode-column both say where the episodes are",
            hint="leave one of them out; episodes of a mapping may have several ids: [SEED, EPISODE]",
        )
    if options.mapping is not None:
        source = open_mapped(trees, options.mapping, options, location.split, location.name)
        return with_listed_facts(source, location, [item.name for item in trees])
    suggestion = suggest(trees, location.rename, ids)
    if suggestion is None or suggestion.doubts:
        raise unclear(trees, location.name, location.rename, ids)
    source = open_mapped(trees, suggestion.mapping, options, location.split, location.name)
    for path, why in suggestion.left_out.items():
        source.findings.add(Finding("column-left-out", f"{why}; left out", 1, trees[0].name, None, path))
    return with_listed_facts(source, location, [item.name for item in trees])


def suggest_mapping(location: Location) -> str:
    """Returns a first mapping for a source, as YAML.

    Raises:
        UnknownFormatError: the source has no tree, or it holds no array.
    """
    return suggestion_text(_trees(location), location.name)


def named_ids(trees: Sequence[Container], location: Location) -> tuple[str, ...]:
    """Returns the paths of the arrays that the user names as ids of episodes.

    Raises UnknownNameError if there is no such array in the first tree.
    """
    if not trees or not location.episode_columns:
        return ()
    boundaries = EpisodeBoundaries(episode_column=location.episode_columns)
    with trees[0].open() as tree:
        options = resolve_structure_columns(
            paths_below(tree), SourceOptions(rename=location.rename, episodes=boundaries)
        )
        return options.episodes.episode_columns


def _trees(location: Location) -> tuple[Container, ...]:
    found = containers(location)
    if not found:
        raise UnknownFormatError(
            f"holds no file that a mapping can describe: {', '.join(SUFFIXES)}",
            file=location.name,
            hint="leave --map and --format out",
        )
    return found


FORMAT = Format(
    "tree",
    probe,
    open_,
    uses=frozenset({"mapping", "split", "dtype", "episode_column"}),
    suffixes=SUFFIXES,
    beside=r"(.*/)?zarr\.json",
    in_time_order=True,
)
