"""The wheel has every module and every file that the modules read."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.support.docs.examples import ROOT

#: Folders of the wheel, and their folders in the checkout.
_FOLDERS = {"gear_data": "gear_data", "gear_data/kernels": "kernels", "gear_data/loaders": "loaders"}
_CACHES = shutil.ignore_patterns("__pycache__")


def test_the_wheel_has_all_files_of_the_packages(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in _FOLDERS.values():
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=_CACHES)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, tree],
        check=True,
    )
    [wheel] = tmp_path.glob("*.whl")
    found = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        f"{folder}/{path.relative_to(ROOT / source)}"
        for folder, source in _FOLDERS.items()
        for path in (ROOT / source).rglob("*")
        if path.is_file() and not path.is_relative_to(ROOT / "gear_data/kernels") and "__pycache__" not in path.parts
    }
    assert "gear_data/examples/pendulum.parquet" in found
    assert wanted - found == set()
