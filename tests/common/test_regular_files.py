"""Only regular files are opened, and none larger than its limit is read."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from gear_data.common.regular_files import open_regular, read_regular
from tests.support.hangs import SPECIAL_FILES, no_hang


@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_a_special_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    SPECIAL_FILES[kind](tmp_path / "x")
    gc.collect()  # datasets of other tests hold their manifests
    before = len(os.listdir("/proc/self/fd"))
    with no_hang(), pytest.raises(OSError, match=f"it is a {kind}, not a regular file"):
        open_regular(tmp_path / "x")
    assert len(os.listdir("/proc/self/fd")) == before


def test_links_to_regular_files_are_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"data"
    assert read_regular(tmp_path / "link", 4) == b"data"
    (tmp_path / "broken").symlink_to("nothing")
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "broken")


def test_a_file_above_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    with pytest.raises(OSError, match="it has 5 bytes, more than the limit of 4"):
        read_regular(tmp_path / "x", 4)
    os.truncate(tmp_path / "x", 1 << 40)
    with no_hang(), pytest.raises(OSError, match="1099511627776 bytes"):
        read_regular(tmp_path / "x", 1 << 30)
