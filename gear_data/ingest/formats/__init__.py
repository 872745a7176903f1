"""One module a format, each with a `FORMAT`. Adding a format is adding a file here."""

from __future__ import annotations

import importlib
import pkgutil

from gear_data.errors import InvalidArgumentError, UnknownFormatError, unknown_name
from gear_data.ingest.arrow_tables import open_tables
from gear_data.ingest.arrow_values import is_list
from gear_data.ingest.columns import structure
from gear_data.ingest.findings import Finding
from gear_data.ingest.location import Location
from gear_data.ingest.source import EpisodeSource, Format, SourceOptions

_TABLES = ("episode-rows", "step-rows")
#: Options that not every format has a use for.
_OPTIONAL = ("episode_column", "step_column", "end_column", "max_episode_steps")
#: Of files that hold episodes, as a rule. A source that has some of another kind than its format's has more to say.
_DATA_SUFFIXES = (".parquet", ".hdf5", ".h5", ".npz", ".npy", ".arrow", ".memmap")


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
        return _open(formats[name], location, options), name, "asked for"
    for item in formats.values():
        # What a user says of columns goes before what their names and types suggest.
        if item.name in _TABLES and (found := _by_named_columns(location, options)) is not None:
            return _open(formats[found[0]], location, options), *found
        if reason := item.probe(location):
            return _open(item, location, options), item.name, reason
    raise _unrecognised(location, formats)


def _open(item: Format, location: Location, options: SourceOptions) -> EpisodeSource:
    """Opens a source, and notes what data in its folder another format would have to read."""
    for name in _OPTIONAL:
        if getattr(options, name) is not None and name not in item.uses:
            flag = "--" + name.replace("_", "-")
            raise InvalidArgumentError(
                f"the format {item.name} has no use for {name} ({flag})", file=location.name, hint="leave it out"
            )
    source = item.open(location, options)
    if item.suffixes:
        left = [file for file in location.with_suffix(*_DATA_SUFFIXES) if not file.path.lower().endswith(item.suffixes)]
        if left:
            message = f"files of another kind than {item.name}; left out: convert them by themselves"
            source.findings.add(Finding("files-left-out", message, len(left), left[0].name))
    return source


def _by_named_columns(location: Location, options: SourceOptions) -> tuple[str, str] | None:
    """The format of a table that columns named by the user imply, and why: lists where a row is an episode."""
    flags = {
        "--episode-column": options.episode_column,
        "--step-column": options.step_column,
        "--end-column": options.end_column,
    }
    tables = open_tables(location) if any(flags.values()) else None
    if tables is None:
        return None
    named = structure(tables.schema.names, options)
    for flag, name in flags.items():
        if name is not None:
            type_ = tables.schema.field(name).type
            if named.episode_column is None and is_list(type_):
                return "episode-rows", f"a row is an episode: '{name}', given as {flag}, is {type_}"
            return "step-rows", f"a row is a step: '{name}' is given as {flag}"
    return None


def _unrecognised(location: Location, formats: dict[str, Format]) -> UnknownFormatError:
    tables = open_tables(location)
    hint = f"name the format with --format: {', '.join(formats)}"
    if tables is not None:
        seen = "its columns are " + ", ".join(f"{field.name}: {field.type}" for field in tables.schema)
        hint = (
            "where a row is a step, say which column tells episodes apart with --episode-column, which numbers their "
            "steps with --step-column, or which is true at their ends with --end-column; give columns their usual "
            "names (observations, actions, rewards, terminated, truncated) with --rename SOURCE=NAME; or " + hint
        )
    else:
        seen = "its files are " + (", ".join(file.name for file in location.files[:10]) or "none")
    return UnknownFormatError(f"the format is not recognised; {seen}", file=location.name, hint=hint)
