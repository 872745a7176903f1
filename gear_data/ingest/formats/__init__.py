"""One module a format, each with a `FORMAT`. Adding a format is adding a file here."""

from __future__ import annotations

import importlib
import pkgutil

from gear_data.errors import UnknownFormatError, unknown_name
from gear_data.ingest.arrow_tables import open_tables
from gear_data.ingest.location import Location
from gear_data.ingest.source import EpisodeSource, Format, SourceOptions


def known_formats() -> dict[str, Format]:
    """Name -> format, in the order they are probed."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    found: list[Format] = [module.FORMAT for module in modules]
    return {item.name: item for item in sorted(found, key=lambda item: -item.priority)}


def open_source(location: Location, name: str, options: SourceOptions) -> tuple[EpisodeSource, str, str]:
    """Opens a source in the format `name`, or in the one found for "auto".

    Returns:
        The source, the format's name, and why it is that one.

    Raises:
        UnknownNameError: no such format.
        UnknownFormatError: "auto" recognises nothing.
    """
    formats = known_formats()
    if name != "auto":
        if name not in formats:
            raise unknown_name("format", name, [*formats, "auto"])
        return formats[name].open(location, options), name, "asked for"
    for item in formats.values():
        if reason := item.probe(location):
            return item.open(location, options), item.name, reason
    raise _unrecognised(location, formats)


def _unrecognised(location: Location, formats: dict[str, Format]) -> UnknownFormatError:
    tables = open_tables(location)
    if tables is not None:
        seen = "its columns are " + ", ".join(f"{field.name}: {field.type}" for field in tables.schema)
    else:
        seen = "its files are " + (", ".join(file.name for file in location.files[:10]) or "none")
    return UnknownFormatError(
        f"the format is not recognised; {seen}",
        file=location.name,
        hint="name the columns with --rename SOURCE=NAME (observations, actions, rewards, terminated, truncated), "
        f"or the format with --format: {', '.join(formats)}",
    )
