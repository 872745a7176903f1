"""Locks of folders that other processes create and remove."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gear_data.errors import UnwritableError
from gear_data.storage.writing.folder_lock import folder_lock


def test_a_folder_that_is_removed_meanwhile_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Path.mkdir` says that the folder exists, and looks at it when another process has removed it."""
    mkdir, calls = Path.mkdir, []

    def late(self: Path, *arguments: Any, **options: Any) -> None:
        calls.append(self)
        if len(calls) == 1:
            raise FileExistsError(17, "File exists")
        mkdir(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", late)
    with folder_lock(tmp_path / "locked", name="here", hint="wait"):
        assert (tmp_path / "locked").is_dir()
    assert not (tmp_path / "locked").exists()


@pytest.mark.parametrize("link", [False, True])
def test_a_file_of_that_name_is_an_error(tmp_path: Path, link: bool) -> None:
    path = tmp_path / "locked"
    if link:
        path.symlink_to(tmp_path / "nowhere")
    else:
        path.touch()
    with pytest.raises(UnwritableError, match="File exists"), folder_lock(path, name="here", hint="wait"):
        pass
