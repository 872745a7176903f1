"""A bucket for tests: an fsspec file system over a folder.

As in a bucket, an object is complete or missing.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

#: `objects:///path/of/the/folder` is the URL of a folder.
PROTOCOL = "objects"


class ObjectFolder(LocalFileSystem):  # type: ignore[misc]
    """Local folders, with uploads as buckets have them."""

    protocol = (PROTOCOL,)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(LocalFileSystem._strip_protocol(path.removeprefix(f"{PROTOCOL}://")))

    def put_file(self, lpath: str, rpath: str, *_: Any, **__: Any) -> None:
        Path(rpath).parent.mkdir(parents=True, exist_ok=True)
        # A bucket does not show uploads that are under way, so they go to another folder.
        with tempfile.TemporaryDirectory(dir="/tmp") as elsewhere:
            shutil.copyfile(lpath, f"{elsewhere}/upload")
            try:
                os.replace(f"{elsewhere}/upload", rpath)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                try:
                    shutil.copyfile(f"{elsewhere}/upload", rpath)  # on a small disk, where nothing is killed
                except OSError:
                    os.unlink(rpath)
                    raise


def register() -> None:
    """Makes fsspec know the file system, in this process and its forks."""
    fsspec.register_implementation(PROTOCOL, ObjectFolder, clobber=True)
