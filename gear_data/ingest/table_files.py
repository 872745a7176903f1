"""Tables among the files of a source, told by the files' names.

Parquet and Arrow files hold data. A text file may hold the data, or facts about other files. So text files of a folder
count as tables only if the folder holds no other data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

PARQUET, ARROW, CSV, JSON, TAR = "Parquet", "Arrow", "CSV", "JSON", "tar"

_COMPRESSIONS = r"(\.(gz|bz2|xz|zst|lz4|zip))?"
#: Kind -> pattern of its files' names, in lower case.
_NAMES = {
    PARQUET: re.compile(r".+\.parquet"),
    ARROW: re.compile(r".+\.(arrow|arrows|feather|ipc)"),
    CSV: re.compile(rf".+\.(csv|tsv){_COMPRESSIONS}"),
    JSON: re.compile(rf".+\.(json|jsonl|ndjson){_COMPRESSIONS}"),
    TAR: re.compile(r".+\.tar"),
}
_TEXT = (CSV, JSON, TAR)
#: Suffixes and names of files about a dataset, which hold no data.
_DOCUMENT_SUFFIXES = (".md", ".txt", ".rst", ".pdf", ".py", ".ipynb", ".yaml", ".yml", ".toml", ".cff", ".bib", ".lock")
_DOCUMENTS = re.compile(r"(readme|license|licence|notice|citation|authors|changelog|makefile|dockerfile)")
_METADATA = re.compile(
    r"(dataset_infos?|dataset_dict|state|config|metadata|meta|info|stats|statistics|features|manifest|schema|croissant|"
    r"modality|tasks|package)\.jsonl?|metadata\.csv"
)


#: Arrow files in which `datasets` caches the outcome of `map` and `filter`.
_CACHE = re.compile(r"cache-[0-9a-f]{16}.*\.arrow")


class NamedFile(Protocol):
    """A file of a source, as `SourceFile`."""

    @property
    def name(self) -> str:
        """The path relative to the source's root."""


NamedFileT = TypeVar("NamedFileT", bound=NamedFile)


def files_of_kind(files: Iterable[NamedFileT], kind: str) -> tuple[NamedFileT, ...]:
    """Returns the files whose names are of a kind."""
    return tuple(file for file in files if _NAMES[kind].fullmatch(_base(file)))


def table_kinds(files: Sequence[NamedFileT], *, requested: bool = False) -> dict[str, tuple[NamedFileT, ...]]:
    """Returns kind -> files of the tables in a source.

    There are several kinds only if the names do not tell which files are the data.

    Args:
        files: all files of the source.
        requested: whether text files count although there are files of other formats.
    """
    kinds = {kind: found for kind in (PARQUET, ARROW) if (found := files_of_kind(files, kind))}
    if ARROW in kinds:
        kinds[ARROW] = tuple(file for file in kinds[ARROW] if not _CACHE.fullmatch(_base(file))) or kinds[ARROW]
    if kinds:
        return kinds
    if len(files) == 1:
        data: list[NamedFileT] = list(files)
    else:
        data = [file for file in files if not (_is_document(file) or _METADATA.fullmatch(_base(file)))]
    kinds = {kind: found for kind in _TEXT if (found := files_of_kind(data, kind))}
    return kinds if requested or sum(map(len, kinds.values())) == len(data) else {}


def _base(file: NamedFile) -> str:
    return file.name.rpartition("/")[2].lower()  # PurePosixPath takes ten times as long, for each of many files


def _is_document(file: NamedFile) -> bool:
    return bool(_base(file).endswith(_DOCUMENT_SUFFIXES) or _DOCUMENTS.match(_base(file)))
