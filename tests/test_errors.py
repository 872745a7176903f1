"""Errors: their text, pickling, and builtin base classes."""

from __future__ import annotations

import errno
import inspect
import pickle

import pytest

from gear_data import errors
from gear_data.errors import GearError, StorageFullError, is_disk_full, unknown_name

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, GearError)]


def test_the_text_names_the_place() -> None:
    assert str(GearError("is bad", file="a.parquet", column="x", row=0, hint="mend it")) == (
        "a.parquet, column 'x', row 0: is bad\n  mend it"
    )
    assert str(GearError("is bad")) == "is bad"
    assert str(GearError("is bad", row=7)) == "row 7: is bad"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_pickle_keeps_the_place(kind: type[GearError]) -> None:
    error = kind("is bad", file="f", column="c", row=3, hint="h")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.message, copy.file, copy.column, copy.row, copy.hint) == ("is bad", "f", "c", 3, "h")
    assert str(copy) == str(error) == "f, column 'c', row 3: is bad\n  h"


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("InvalidArgumentError", ValueError),
        ("EpisodeIndexError", IndexError),
        ("UnknownNameError", ValueError),
        ("UnknownArgumentError", TypeError),
        ("SourceNotFoundError", FileNotFoundError),
        ("DatasetNotFoundError", FileNotFoundError),
        ("DestinationExistsError", FileExistsError),
        ("StorageFullError", OSError),
        ("VersionError", errors.ManifestError),
        ("DeviceError", RuntimeError),
    ],
)
def test_errors_are_builtin_errors_too(name: str, builtin: type[Exception]) -> None:
    with pytest.raises(builtin, match="is bad"):
        raise getattr(errors, name)("is bad")


def test_unknown_name_lists_the_known_names_and_the_closest() -> None:
    error = unknown_name("preset", "decision-transformer", ["raw", "decision_transformer"])
    assert str(error) == (
        "unknown preset 'decision-transformer'\n  did you mean 'decision_transformer'? known: decision_transformer, raw"
    )
    assert str(unknown_name("preset", "xyz", [])).endswith("known: none")
    assert unknown_name("column", "x", ["y"]).column == "x"


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "x"), True),
        (OSError(errno.EDQUOT, "x"), True),
        (OSError("Error writing bytes. Detail: [errno 28] No space left on device"), True),
        (OSError(errno.EACCES, "x"), False),
        (StorageFullError("full"), False),
    ],
)
def test_is_disk_full(error: OSError, full: bool) -> None:
    assert is_disk_full(error) is full
