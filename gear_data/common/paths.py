"""Paths and URLs of files as text."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gear_data.errors import InvalidArgumentError


def is_remote(location: str) -> bool:
    """Returns whether a text is a URL and not a path."""
    return "://" in location


def is_utf8(text: str) -> bool:
    """Returns whether a text can be encoded as UTF-8, as manifests and tables require.

    Some paths cannot.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def missing_hint(path: str) -> str:
    """Returns the hint for a path that does not exist: the closest name where a part of it is missing."""
    if any(sign in path for sign in "*?["):
        return "patterns are not expanded: give the folder"
    if path.startswith("~"):
        return "only the shell expands '~': give os.path.expanduser(...)"
    folder, name = os.path.split(os.path.abspath(path))
    while not os.path.isdir(folder):
        folder, name = os.path.split(folder)
    try:
        close = difflib.get_close_matches(name, os.listdir(folder), n=1)
    except OSError:
        close = []
    return f"did you mean {os.path.join(folder, close[0])}?" if close else f"there is no {name} in {folder}"


def absolute_path(path: str) -> str:
    """Returns an absolute path without links, whose last part stays as it is.

    A link may have the suffix that its target lacks.
    """
    folder, name = os.path.split(path.rstrip(os.sep) or os.sep)
    return os.path.realpath(path) if name in ("", ".", "..") else os.path.join(os.path.realpath(folder), name)


def plain_path(location: str | os.PathLike[str]) -> str:
    """Returns a path or URL as text. A `file:///...` URL becomes a path.

    Raises:
        InvalidArgumentError: `location` is not a path or URL, is empty, or is not UTF-8.
    """
    text = os.fspath(location) if isinstance(location, str | os.PathLike) else location
    if not isinstance(text, str):
        raise InvalidArgumentError(
            f"a path or a URL must be a str or a Path, not {type(location).__name__}",
            hint="give the path of the folder; a view has none until it is saved: view.save(path)"
            if hasattr(location, "manifest")
            else None,
        )
    if not text:
        raise InvalidArgumentError("a path or a URL must not be empty", hint="'.' is the current folder")
    if not is_utf8(text):
        raise InvalidArgumentError(
            "the path is not UTF-8", file=printable(text), hint="rename it, or make a symbolic link to it"
        )
    return text.removeprefix("file://") if text.startswith("file:///") else text


def printable(text: str) -> str:
    """Returns a text that is UTF-8: halves of surrogate pairs become `\\ud...`.

    Paths have such halves for bytes that are not UTF-8.
    """
    return text.encode("utf-8", "backslashreplace").decode()


def named(folder: Path) -> Path:
    """Returns the path of a folder that another one will replace.

    Raises:
        InvalidArgumentError: it does not end in a name, such as `.` and `..`. This process and its shell are in such a
            folder: they would stay in the one that is removed.
    """
    if folder.name not in ("", ".."):
        return folder
    raise InvalidArgumentError(
        "a new folder takes the place of this one, so its path must end in a name",
        file=str(folder),
        hint=f"name a folder inside it; or change to one outside it, and give {folder.resolve()}",
    )


def join(url: str, name: str) -> str:
    """Returns the URL or path of a file in a folder; of the folder if `name` is empty."""
    return f"{url.rstrip('/')}/{name}" if name else url


def without_folders(location: str, *, is_path: bool = False) -> str:
    """Returns the last part of a local path, without the folders of this machine. URLs and hub ids stay whole.

    Args:
        location: a path, URL or hub id.
        is_path: whether it is known to be no hub id. A relative path of one folder looks like one, USER/NAME, and else
            stays whole, too.
    """
    is_local = is_path or location.count("/") > 1 or location.startswith(("/", ".", "~"))
    return location.rstrip("/").rsplit("/", 1)[-1] if is_local and not is_remote(location) else location


def with_short_paths(value: Any, names: Mapping[str, str]) -> Any:
    """Returns a JSON value with names in place of paths in all of its texts.

    Args:
        value: the value.
        names: path -> name. Empty names are not used.
    """
    ordered = sorted((each for each in names if names[each] not in ("", each)), key=len, reverse=True)

    def shortened(value: Any) -> Any:
        if isinstance(value, str):
            for each in ordered:  # a path before the folder that it is in
                value = value.replace(each, names[each])
        elif isinstance(value, dict):
            value = {key: shortened(each) for key, each in value.items()}
        elif isinstance(value, list | tuple):
            value = [shortened(each) for each in value]
        return value

    return shortened(value)
