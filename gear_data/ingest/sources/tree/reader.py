"""Any HDF5, NumPy or Zarr tree whose layout is no other format's.

A mapping says where the episodes and columns are. Without one, the names of groups and arrays must be clear:
`gear_data.ingest.sources.tree.find` has the rules.
"""

from __future__ import annotations

from gear_data.errors import GearError, UnknownFormatError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.location import Location
from gear_data.ingest.source import EpisodeSource, Format, SourceOptions
from gear_data.ingest.sources.tree.containers import SUFFIXES, containers
from gear_data.ingest.sources.tree.listed_facts import with_listed_facts
from gear_data.ingest.sources.tree.seen import unclear
from gear_data.ingest.sources.tree.source import open_mapped
from gear_data.ingest.sources.tree.suggest import suggest, suggestion_text
from gear_data.ingest.sources.tree.view import Container


def probe(location: Location) -> str | None:
    """Returns the reason if names show the episodes without doubt; otherwise None."""
    try:
        trees = containers(location)
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
    if options.mapping is not None:
        source = open_mapped(trees, options.mapping, options, location.split, location.name)
        return with_listed_facts(source, location, [item.name for item in trees])
    suggestion = suggest(trees, location.rename)
    if suggestion is None or suggestion.doubts:
        raise unclear(trees, location.name, location.rename)
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
    name="tree",
    probe=probe,
    open=open_,
    priority=-10,
    uses=frozenset({"mapping", "split", "dtype"}),
    suffixes=SUFFIXES,
    beside=r"(.*/)?zarr\.json",
)
