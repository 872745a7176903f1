"""Folders in which a format reads some of the data files, and not the others."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from itertools import islice

from gear_data.errors import GearError, UnknownFormatError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.location import Location, SourceFile, holds_several, listed
from gear_data.ingest.source import DATA_SUFFIXES, Format
from gear_data.ingest.sources.tables.open import TABLE_SUFFIXES
from gear_data.ingest.table_files import table_kinds

#: Suffixes of pickles. None is ever loaded.
PICKLES = (".pickle", ".pkl", ".pt", ".pth")
#: Suffixes of text files that may hold facts about the episodes.
_TEXT_SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".yaml", ".yml", ".txt")
#: Beginnings of the names of files that describe a dataset or a program, in lower case.
_DESCRIPTIONS = re.compile(
    r"readme|licen[cs]e|notice|citation|authors|changelog|contributing|makefile|dockerfile|requirements|pyproject|"
    r"package(-lock)?\.json|croissant|dataset_infos?\.json|dataset_dict\.json|state\.json"
)
#: Files of a folder that are recognised one by one, if the folder is not.
_MAX_FILES = 100


def files_of_other_formats(item: Format, location: Location) -> list[SourceFile]:
    """Returns the data files that a format does not read."""
    if not item.suffixes:
        return []
    return [file for file in location.with_suffix(*DATA_SUFFIXES) if not file.name.lower().endswith(item.suffixes)]


def files_left_out(item: Format, location: Location, read: Container[str]) -> Finding | None:
    """Returns the finding about files that may belong to the data, and that a format does not read; None without.

    Args:
        item: the format.
        location: the source.
        read: the names of further files that the source reads.
    """
    others = files_of_other_formats(item, location)
    texts = [file for file in _text_files(item, location) if file.name not in read]
    if not others and not texts:
        return None
    names = listed(file.name for file in (*others, *texts))
    message = f"no column or fact is read from {names}; left out"
    if others:
        message = f"files of another format than {item.name}; left out: convert them separately: {names}"
    return Finding("files-left-out", message, len(others) + len(texts), (others or texts)[0].name)


def _text_files(item: Format, location: Location) -> list[SourceFile]:
    """Returns the text files that neither the format reads, nor describe the dataset in words."""
    tables = table_kinds(location.files, requested=True) if item.suffixes == TABLE_SUFFIXES else {}
    read = {file.name for files in tables.values() for file in files}
    return [
        file
        for file in location.with_suffix(*_TEXT_SUFFIXES)
        if file.name not in read
        and not _DESCRIPTIONS.match(file.name.rpartition("/")[2].lower())
        and not re.fullmatch(item.beside, file.name)
    ]


def refuse_files_of_other_formats(item: Format, location: Location, formats: Iterable[Format]) -> None:
    """Raises UnknownFormatError if the recognised format would leave data files out."""
    if left_out := files_of_other_formats(item, location):
        inside = _sources_inside(formats, location)
        if item.name in inside.values():
            raise _holds_sources(inside, f"; --format {item.name} reads only files of this format")
        if inside and item.suffixes == TABLE_SUFFIXES:  # these take any folder
            raise _holds_sources(inside)
        raise UnknownFormatError(
            f"holds files of the format {item.name}, and {len(left_out)} data files of other formats: "
            f"{listed(file.name for file in left_out)}",
            hint=f"convert them separately; --format {item.name} leaves them out",
        )


def mixed_files_error(formats: Iterable[Format], location: Location) -> UnknownFormatError | None:
    """Returns the error for an unrecognised folder with files of known formats.

    Returns None if no file has a known format.
    """
    files = location.with_suffix(*DATA_SUFFIXES)[:_MAX_FILES]
    if len(files) < 2:
        return None
    if inside := _sources_inside(formats, location):
        return _holds_sources(inside)
    recognised: dict[bool, list[SourceFile]] = {True: [], False: []}
    for file in files:
        recognised[_format_of(formats, Location(file.name, (file,))) is not None].append(file)
    if not recognised[True]:
        return None
    known, unknown = (listed(file.name for file in recognised[is_known]) for is_known in (True, False))
    return UnknownFormatError(
        f"some files are recognised, and others are not; recognised: {known}; not recognised: "
        f"{unknown or 'the folder as a whole'}",
        hint="move the other files out of the folder, or convert one file",
    )


def _sources_inside(formats: Iterable[Format], location: Location) -> dict[str, str]:
    """Returns folder or file in a folder -> its format, if some of them are sources of several formats.

    Returns nothing if all of them are files: then the names of the files say more.
    """
    parts: dict[str, list[SourceFile]] = {}
    for file in location.files:
        parts.setdefault(file.name.partition("/")[0], []).append(file)
    folders = {name for name, files in parts.items() if files[0].name != name}
    inside: dict[str, str] = {}
    for name, files in islice(parts.items(), _MAX_FILES) if folders else ():
        own = tuple(replace(file, name=file.name.partition("/")[2] or name) for file in files)
        found = _format_of(formats, Location(name, own, folder=name in folders))
        if found is not None:
            inside[name] = found
    return inside if len({*inside.values()}) > 1 and folders & inside.keys() else {}


def _holds_sources(inside: Mapping[str, str], more: str = "") -> UnknownFormatError:
    return holds_several(
        "sources", (f"{name} ({format})" for name, format in inside.items()), f"give one of them, or several{more}"
    )


def _format_of(formats: Iterable[Format], location: Location) -> str | None:
    try:
        return next((item.name for item in formats if item.probe(location)), None)
    except GearError:
        return None
