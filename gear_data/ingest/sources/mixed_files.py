"""Folders in which a format reads some of the data files, and not the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gear_data.errors import GearError, UnknownFormatError
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.source import DATA_SUFFIXES, Format

#: Suffixes of pickles. None is ever loaded.
PICKLES = (".pickle", ".pkl", ".pt", ".pth")
#: Files of a folder that are recognised one by one, if the folder is not; and names in a message.
_MAX_FILES, _MAX_NAMES = 100, 10


def files_of_other_formats(item: Format, location: Location) -> list[SourceFile]:
    """Returns the data files that a format does not read."""
    if not item.suffixes:
        return []
    return [file for file in location.with_suffix(*DATA_SUFFIXES) if not file.path.lower().endswith(item.suffixes)]


def refuse_files_of_other_formats(item: Format, location: Location) -> None:
    """Raises UnknownFormatError if the recognised format would leave data files out."""
    if left_out := files_of_other_formats(item, location):
        raise UnknownFormatError(
            f"holds files of the format {item.name}, and {len(left_out)} data files of other formats: "
            f"{_listed(left_out)}",
            file=location.name,
            hint=f"convert them separately; --format {item.name} leaves them out",
        )


def mixed_files_error(formats: Iterable[Format], location: Location) -> UnknownFormatError | None:
    """Returns the error for an unrecognised folder with files of known formats.

    Returns None if no file has a known format.
    """
    files = location.with_suffix(*DATA_SUFFIXES)[:_MAX_FILES]
    if len(files) < 2:
        return None
    recognised: dict[bool, list[SourceFile]] = {True: [], False: []}
    for file in files:
        recognised[_is_recognised(formats, Location(file.name, (file,)))].append(file)
    if not recognised[True]:
        return None
    return UnknownFormatError(
        f"some files are recognised, and others are not; recognised: {_listed(recognised[True])}; not recognised: "
        f"{_listed(recognised[False]) or 'the folder as a whole'}",
        file=location.name,
        hint="move the other files out of the folder, or convert one file",
    )


def _is_recognised(formats: Iterable[Format], location: Location) -> bool:
    try:
        return any(item.probe(location) for item in formats)
    except GearError:
        return False


def _listed(files: Sequence[SourceFile]) -> str:
    return ", ".join(file.name for file in files[:_MAX_NAMES]) + (", ..." if len(files) > _MAX_NAMES else "")
