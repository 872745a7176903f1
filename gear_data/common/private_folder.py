"""Folders for temporary files that no other user can read or fill."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path


def user_folder(name: str, base: str | None = None) -> Path:
    """Creates or finds the folder `NAME-UID`, which all processes of this user share.

    Args:
        name: start of the folder's name.
        base: parent folder; None is the system's folder for temporary files.

    Raises:
        PermissionError: the folder exists, and another user owns it or may open it.
        OSError: the folder cannot be created.
    """
    user = os.geteuid()
    folder = Path(base or tempfile.gettempdir(), f"{name}-{user}")
    folder.mkdir(0o700, exist_ok=True)
    # `lstat`, because `stat` follows a symbolic link that another user could have placed here.
    status = folder.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == user and status.st_mode & 0o777 == 0o700:
        return folder
    raise PermissionError(f"{folder} is not a private folder of this user: remove it, or give it mode 0700")


def process_folder(name: str) -> Path:
    """Creates a folder that only this process uses.

    It is removed when the process exits.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    # Unlike atexit, Finalize runs in multiprocessing's children. It does not run in other forked children, which do
    # not own the folder.
    Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=0)
    return folder
