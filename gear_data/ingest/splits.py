"""Splits of a source, where its files' names say which split they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TypeVar

from gear_data.errors import InvalidArgumentError, SplitNeededError
from gear_data.ingest.table_files import ARROW, NamedFileT, table_kinds

SplitT = TypeVar("SplitT")
_VAL_ARCHIVE = "-val.npz"
_SPLITS = {
    split: (re.compile(rf"{split}([-_.]|$)"), re.compile(rf".+-{split}(-\d+-of-\d+)?\.arrow"))
    for split in ("train", "validation", "valid", "val", "test", "dev", "eval")
}
#: Files of `datasets.DatasetDict.save_to_disk`: one of the dictionary, and one of each split.
_SAVED_DICT, _SAVED_SPLIT = "dataset_dict.json", "state.json"


def choose_split(name: str, files: Sequence[NamedFileT], split: str | None) -> tuple[Sequence[NamedFileT], str | None]:
    """Keeps the files of one split, where their names say which split they are.

    Tables follow the hub's naming: `train-00000-of-00002.parquet`, `train/...`, `test.csv`. The cache of `datasets`
    has `NAME-train.arrow`, and `DatasetDict.save_to_disk` a folder for each split. NumPy archives follow OGBench's
    naming: `NAME.npz` is train, and `NAME-val.npz` beside it is val.

    Args:
        name: the name of the source, for errors.
        files: all files.
        split: the user's choice; None if the user made none.

    Returns:
        The files, and the split that the source's format must choose.

    Raises:
        SplitNeededError: there are several splits and no choice.
        InvalidArgumentError: the split does not exist.
    """
    splits = _saved_splits(files) or _named_splits(files)
    if not splits:
        return files, split
    found = one_split(name, splits, split)
    return files if split is None else found, None


def one_split(name: str, splits: Mapping[str, SplitT], split: str | None) -> SplitT:
    """Returns what belongs to a split, or to the only one.

    Args:
        name: the name of the source, for errors.
        splits: name of a split -> what belongs to it, for at least one split.
        split: the user's choice; None if the user made none.

    Raises:
        SplitNeededError: there are several splits and no choice.
        InvalidArgumentError: the split does not exist.
    """
    if split is None and len(splits) > 1:
        raise several_splits(name, splits)
    if split is not None and split not in splits:
        raise no_such_split(name, split, splits)
    return next(iter(splits.values())) if split is None else splits[split]


def several_splits(name: str, splits: Iterable[str], hint: str = "") -> SplitNeededError:
    """Returns the error for a source of several splits, of which none is chosen.

    Args:
        name: the name of the source.
        splits: its splits.
        hint: what else `split` may be.
    """
    error = SplitNeededError(
        f"the source has several splits: {', '.join(sorted(splits))}",
        file=name,
        hint=f"choose one with --split (split=), or --split all for a column 'split'{hint}",
    )
    error.splits = tuple(sorted(splits))
    return error


def no_such_split(name: str, split: str, splits: Iterable[str]) -> InvalidArgumentError:
    """Returns the error for a split that a source does not have."""
    known = ", ".join(sorted(filter(None, splits))) or "none"
    return InvalidArgumentError(f"the source has no split '{split}'", file=name, hint=f"its splits: {known}")


def _saved_splits(files: Sequence[NamedFileT]) -> dict[str, list[NamedFileT]]:
    """Returns split -> files of a saved `DatasetDict`.

    Returns nothing if there is no dictionary, or several.
    """
    if not any(file.name.endswith(_SAVED_DICT) for file in files):
        return {}
    paths = [PurePosixPath(file.name) for file in files]
    roots = [path.parent for path in paths if path.name == _SAVED_DICT]
    if len(roots) != 1:
        return {}
    folders = [path.parent for path in paths if path.name == _SAVED_SPLIT and path.parent.parent == roots[0]]
    return {
        folder.name: [file for file, path in zip(files, paths, strict=True) if path.is_relative_to(folder)]
        for folder in folders
        if folder != roots[0]
    }


def _named_splits(files: Sequence[NamedFileT]) -> dict[str, list[NamedFileT]]:
    """Returns split -> files whose names say that they are of the split."""
    splits: dict[str, list[NamedFileT]] = {}
    for kind, tables in table_kinds(files).items():
        for file in tables:
            if (name := _table_split(file.name, kind)) is not None:
                splits.setdefault(name, []).append(file)
    archive_folders = _folders_of_split_archives(files)
    for file in files if archive_folders else ():
        path = PurePosixPath(file.name)
        if path.suffix == ".npz" and path.parent in archive_folders:
            splits.setdefault("val" if path.name.endswith(_VAL_ARCHIVE) else "train", []).append(file)
    return splits


def _table_split(path: str, kind: str) -> str | None:
    *folders, name = path.split("/")
    for split, (begins, ends) in _SPLITS.items():
        if split in folders or begins.match(name) or (kind == ARROW and ends.fullmatch(name)):
            return split
    return None


def _folders_of_split_archives(files: Sequence[NamedFileT]) -> set[PurePosixPath]:
    """Returns the folders in which an archive `NAME-val.npz` is beside `NAME.npz`."""
    names = {file.name for file in files}
    pairs = (
        name for name in names if name.endswith(_VAL_ARCHIVE) and f"{name.removesuffix(_VAL_ARCHIVE)}.npz" in names
    )
    return {PurePosixPath(name).parent for name in pairs}
