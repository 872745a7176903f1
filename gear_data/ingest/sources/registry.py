"""Registry of the source formats.

To add a format, write a module with a `FORMAT` and add its name to `_MODULES`.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from dataclasses import replace

from gear_data.errors import GearError, InvalidArgumentError, UnsupportedColumnError, unknown_name
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.location import Location, placed
from gear_data.ingest.pipeline.columns import SCALAR_COLUMNS, resolve_structure_columns
from gear_data.ingest.pipeline.names import usual_name
from gear_data.ingest.source import EpisodeSource, Format, SourceOptions
from gear_data.ingest.sources.mixed_files import PICKLES, files_left_out, refuse_files_of_other_formats
from gear_data.ingest.sources.tables.open import open_tables
from gear_data.ingest.sources.tables.stream import TableStream
from gear_data.ingest.sources.tables.to_numpy import is_list, list_lengths, storage_array
from gear_data.ingest.sources.tree.containers import containers
from gear_data.ingest.sources.tree.reader import named_ids
from gear_data.ingest.sources.unrecognised import unrecognised
from gear_data.ingest.splits import no_such_split

#: Modules with a `FORMAT`, below `gear_data.ingest.sources`, in the order in which the formats are probed.
_MODULES = (
    "journal",
    "memory.episodes",
    "minari.hdf5",
    "minari.arrow",
    "rlds",
    "robomimic",
    "torchrl",
    "act",
    "arrays.calvin",  # before the tables, which look at every file
    "lerobot.reader",
    "zarr.replay_buffer",
    "tables.episode_rows",
    "tables.step_rows",
    "arrays.dqn_replay",
    "stable_baselines3",
    "d3rlpy",
    "arrays.ogbench",
    "arrays.npz",
    "arrays.npy_folder",
    "vd4rl",
    "d4rl",
    "tree.reader",
)
_TABLES = ("episode-rows", "step-rows")
_IN_MEMORY = "in-memory"
#: Rows that are read to see whether a list column holds one value per row (a step) or several (an episode).
_HEAD_ROWS = 64
_TREE = "tree"


def known_formats() -> dict[str, Format]:
    """Returns name -> format, in the order in which they are probed."""
    modules = [importlib.import_module(f"gear_data.ingest.sources.{name}") for name in _MODULES]
    return {module.FORMAT.name: module.FORMAT for module in modules}


def open_source(location: Location, name: str, options: SourceOptions) -> tuple[EpisodeSource, str, str]:
    """Opens a source in the format `name`, or in the recognised one for "auto".

    Returns:
        The source, the name of the format, and the reason for the format.

    Raises:
        UnknownNameError: there is no such format.
        UnknownFormatError: "auto" recognises no format.
    """
    formats = known_formats()
    if name != "auto" and name not in formats:
        raise unknown_name("format", name, [*formats, "auto"])
    ids = options.episodes.episode_columns
    location = replace(location, rename=options.rename or {}, tables=options.tables, episode_columns=ids)
    with placed(location.name):
        return _open_as(location, formats, name, options)


def _open_as(
    location: Location, formats: dict[str, Format], name: str, options: SourceOptions
) -> tuple[EpisodeSource, str, str]:
    if name != "auto":
        return _open(formats[name], location, options), name, "given by the user"
    if options.mapping is not None:
        return _open(formats[_TREE], location, options), _TREE, "the mapping describes its episodes and columns"
    for item in formats.values():
        # Columns that the user names come before what names and types suggest.
        if item.name in _TABLES and (table_format := _format_of_named_columns(location, options)) is not None:
            return _open(formats[table_format[0]], location, options), *table_format
        if reason := item.probe(location):
            refuse_files_of_other_formats(item, location, formats.values())
            return _open(item, location, options), item.name, reason
    # Episodes in memory are always recognised, so that format is no suggestion for other sources.
    raise unrecognised(location, {name: item for name, item in formats.items() if name != _IN_MEMORY})


def _open(item: Format, location: Location, options: SourceOptions) -> EpisodeSource:
    """Opens a source, and adds a finding for data files of other formats."""
    for name in (*options.episodes.given, *options.tables.given, *(() if options.mapping is None else ("mapping",))):
        if name not in item.uses:
            flag = "--map" if name == "mapping" else "--" + name.replace("_", "-")
            hint = "leave it out"
            if item.name == _TREE:
                hint += "; or load the arrays: gear_data.convert reads a mapping of arrays, with a row a step"
            elif name == "episode_column" and _holds_ids(location):
                hint += f"; or give --format {_TREE} beside --episode-column, to read flat arrays by their ids"
            raise InvalidArgumentError(f"the format {item.name} does not support {name} ({flag})", hint=hint)
    if location.split is not None and "split" not in item.uses:
        raise no_such_split(location.name, location.split, ())
    source = item.open(location, options)
    for spec in source.columns:
        if spec.name in SCALAR_COLUMNS and spec.variable_length:
            raise UnsupportedColumnError(
                f"holds {spec.dtype}, where {spec.name} must be numbers",
                column=spec.source_name,
                hint="if it means something else, give it another name with --rename",
            )
    for file in location.with_suffix(*PICKLES):
        source.findings.add(Finding("pickle-left-out", "a pickle, which is never loaded; left out", file=file.name))
    if (finding := files_left_out(item, location, getattr(source, "files_read", frozenset()))) is not None:
        source.findings.add(finding)
    return source


def _holds_ids(location: Location) -> bool:
    """Returns whether the arrays that the user names as ids are in a file that the format tree reads."""
    with suppress(GearError):
        return bool(named_ids(containers(location), location))
    return False


def _format_of_named_columns(location: Location, options: SourceOptions) -> tuple[str, str] | None:
    """Returns the table format that the user's columns imply, and the reason.

    A list implies that a row is an episode. None if the user names no column, or the source is not a table.
    """
    named, by_file = options.episodes.columns, options.episodes.file_is_episode
    tables = open_tables(location) if named or by_file else None
    if tables is None:
        return None
    resolved = resolve_structure_columns(tables.schema.names, options)
    if by_file:
        if (steps := _list_of_steps(tables, resolved)) is not None:
            raise InvalidArgumentError(
                f"a row is an episode: '{steps}' is a list, so a file is no episode (--file-is-episode)",
                hint="leave it out",
            )
        return "step-rows", "a row is a step: each file is an episode, as --file-is-episode says"
    name, flag = next(iter(resolved.episodes.columns.items()))
    type_ = tables.schema.field(name).type
    if not resolved.episodes.episode_columns and is_list(type_):
        return "episode-rows", f"a row is an episode: '{name}', given as {flag}, is {type_}"
    if (steps := _list_of_steps(tables, resolved)) is not None:
        return "episode-rows", f"a row is an episode: '{steps}' is a list"
    return "step-rows", f"a row is a step: '{name}' is given as {flag}"


def _list_of_steps(tables: TableStream, options: SourceOptions) -> str | None:
    """Returns a column of rewards or end flags with several values per row, or None."""
    names: list[str] = [field.name for field in tables.schema if is_list(field.type)]
    names = [name for name in names if usual_name(name, options.rename) in SCALAR_COLUMNS]
    if not names:
        return None
    tables.select(names[:1])
    head = tables.head(_HEAD_ROWS)
    if head is None or (list_lengths(storage_array(head.column(names[0])).drop_null()) == 1).all():
        return None
    return names[0]
