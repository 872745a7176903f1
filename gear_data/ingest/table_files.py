"""Tables among the files of a source, told by the files' names.

Parquet and Arrow files hold data. A text file may hold the data, or facts about other files. So text files of a folder
count as tables only if the folder holds no other data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, TypeVar

PARQUET, ARROW, CSV, JSON, TAR = "Parquet", "Arrow", "CSV", "JSON", "tar"

_TEXT = (CSV, JSON, TAR)
#: Names of tables, in lower case. The group that matches is the kind.
_NAMES = re.compile(
    rf".+\.(?:(?P<{PARQUET}>parquet)|(?P<{ARROW}>arrow|arrows|feather|ipc)|(?P<{TAR}>tar)"
    rf"|(?:(?P<{CSV}>csv|tsv)|(?P<{JSON}>json|jsonl|ndjson))(?:\.(?:gz|bz2|xz|zst|lz4|zip))?)"
)
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


def table_kinds(files: Sequence[NamedFileT], *, requested: bool = False) -> dict[str, tuple[NamedFileT, ...]]:
    """Returns kind -> files of the tables in a source.

    There are several kinds only if the names do not tell which files are the data.

    Args:
        files: all files of the source.
        requested: whether text files count although there are files of other formats.
    """
    # Each step is a single pass: a source may have a file an episode.
    named = [(file, file.name.rpartition("/")[2].lower()) for file in files]
    tables: dict[str, list[tuple[NamedFileT, str]]] = {}
    for file, base in named:
        if (match := _NAMES.fullmatch(base)) is not None and match.lastgroup is not None:
            tables.setdefault(match.lastgroup, []).append((file, base))
    if ARROW in tables:
        tables[ARROW] = [item for item in tables[ARROW] if not _CACHE.fullmatch(item[1])] or tables[ARROW]
    kinds = {kind: tables[kind] for kind in (PARQUET, ARROW) if kind in tables}
    if not kinds and tables:
        data = named if len(files) == 1 else [item for item in named if not _is_about_others(item[1])]
        kept = {file.name for file, _ in data}
        kinds = {kind: [item for item in tables.get(kind, ()) if item[0].name in kept] for kind in _TEXT}
        kinds = {kind: found for kind, found in kinds.items() if found}
        if not requested and sum(map(len, kinds.values())) < len(data):
            kinds = {}
    return {kind: tuple(file for file, _ in found) for kind, found in kinds.items()}


def _is_about_others(base: str) -> bool:
    """Returns whether a file of this name holds no data."""
    return bool(base.endswith(_DOCUMENT_SUFFIXES) or _DOCUMENTS.match(base) or _METADATA.fullmatch(base))
