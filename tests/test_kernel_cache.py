"""Where compiled kernels are kept when neither the package nor the home folder can be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def cache_folder(temporary: Path) -> Path:
    """What a new process takes, in this folder for temporary files."""
    code = (
        "import os; os.access = lambda *arguments, **options: False\n"
        "import numba, gear_data.kernels.native\n"
        "print(numba.config.CACHE_DIR)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return Path(result.stdout.strip())


def test_processes_of_a_user_share_one_private_folder(tmp_path: Path) -> None:
    folder = cache_folder(tmp_path)
    assert folder == cache_folder(tmp_path)
    assert list(tmp_path.iterdir()) == [folder]
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("planted", ["open to others", "of another user", "a link", "a file"])
def test_a_folder_that_others_could_have_filled_is_not_used(planted: str, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    name = temporary / f"gear-data-numba-{os.geteuid()}"
    if planted == "a file":
        name.touch()
    elif planted == "a link":
        (tmp_path / "theirs").mkdir(0o700)
        name.symlink_to(tmp_path / "theirs")
    else:
        name.mkdir(0o700)
        if planted == "open to others":
            name.chmod(0o777)
        elif os.geteuid():
            pytest.skip("only root can give a folder to another user")
        else:
            os.chown(name, 12345, -1)
    folder = cache_folder(temporary)
    assert folder.parent == temporary
    assert folder != name
    # A process's own folder goes with it.
    assert list(temporary.iterdir()) == [name]
