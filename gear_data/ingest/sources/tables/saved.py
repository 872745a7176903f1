"""Folders that `Dataset.save_to_disk` of HuggingFace `datasets` writes.

`state.json` lists the files of a dataset, in order. Other Arrow files in the folder are caches of `datasets`.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath

from gear_data.errors import CorruptSourceError, UnknownFormatError
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.sources.json_files import read_json_object

_STATE, _INFO = "state.json", "dataset_info.json"


def saved_files(location: Location) -> tuple[SourceFile, ...]:
    """Returns the Arrow files of the saved dataset at a location, in order.

    Returns none if there is no saved dataset.

    Raises:
        UnknownFormatError: there are several saved datasets.
        CorruptSourceError: `state.json` is damaged, a file that it lists is missing, or the dataset has an index.
    """
    folders = [
        folder
        for file in location.files
        if file.name.endswith(_STATE)
        and (folder := PurePosixPath(file.name).parent) / _STATE == PurePosixPath(file.name)
        and location.file(str(folder / _INFO)) is not None
    ]
    if not folders:
        return ()
    if len(folders) > 1:
        names = ", ".join(str(folder) for folder in folders[:10]) + (", ..." if len(folders) > 10 else "")
        raise UnknownFormatError(
            f"holds {len(folders)} datasets of save_to_disk: {names}", file=location.name, hint="convert one at a time"
        )
    state = location.file(str(folders[0] / _STATE))
    return () if state is None else _listed_files(location, state, folders[0])


def _listed_files(location: Location, state: SourceFile, folder: PurePosixPath) -> tuple[SourceFile, ...]:
    facts = read_json_object(state)
    if facts.get("_indices_data_files"):
        raise CorruptSourceError(
            "the dataset has an index of rows, as old versions of datasets wrote",
            file=state.name,
            column="_indices_data_files",
            hint="load it with such a version, call flatten_indices(), and save it again",
        )
    entries = facts.get("_data_files")
    listed = entries if isinstance(entries, list) else [None]
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in listed]
    if not all(isinstance(name, str) for name in names):
        raise CorruptSourceError(
            f"lists no files, but {json.dumps(entries)[:200]}",
            file=state.name,
            column="_data_files",
            hint="download it again",
        )
    files = [location.file(str(folder / str(name))) for name in names]
    found = tuple(file for file in files if file is not None)
    if len(found) < len(files):
        missing = names[files.index(None)]
        raise CorruptSourceError(
            f"lists the file '{missing}', which does not exist", file=state.name, hint="download the folder again"
        )
    return found
