"""Unpacking a bundle, and the Python that runs the steps."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from scripts.gpu.errors import ROOT, GpuCheckError
from scripts.gpu.parts import Manifest, parts_in, read_part

#: Where a bundle is unpacked: its wheels, and the packages that this machine lacks.
FOLDER = ROOT / ".gpu-bundle"
#: Modules that the steps import.
MODULES = (
    "cupy", "datasets", "h5py", "hypothesis", "msgspec", "numba", "polars", "pyarrow", "pytest", "torch", "tqdm",
    "transformers", "xxhash",
)  # fmt: skip


@dataclass(frozen=True)
class Interpreter:
    """A Python that has the packages.

    Attributes:
        path: the executable.
        folders: folders that come first on its import path.
    """

    path: str
    folders: tuple[Path, ...]

    def environment(self) -> dict[str, str]:
        """Returns the environment variables of a process that it runs."""
        before = os.environ.get("PYTHONPATH")
        found = os.pathsep.join([*map(str, self.folders), *([before] if before else [])])
        return {**os.environ, "PYTHONPATH": found, "PYTHONUNBUFFERED": "1"}


def unpack(paths: Iterable[Path], folder: Path = FOLDER) -> list[str]:
    """Unpacks parts of a bundle.

    When all wheels are there, installs the packages that this machine lacks.

    Returns:
        The wheels that are still missing, in other parts.

    Raises:
        GpuCheckError: a part is damaged, or the bundle does not fit this machine.
    """
    wheels = folder / "wheels"
    manifest: Manifest | None = None
    for part in parts_in(paths):
        manifest, contents = read_part(part)
        here = ".".join(map(str, sys.version_info[:2]))
        if manifest.python != here:
            raise GpuCheckError(f"the bundle is for Python {manifest.python}, and this is {here}: set PYTHON")
        # Wheels of another bundle would be mixed with these.
        if _other(folder, manifest):
            shutil.rmtree(folder)
        wheels.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_bytes(manifest.to_json())
        for name, data in contents:
            partial = wheels / f"{name}.partial"
            partial.write_bytes(data)
            partial.rename(wheels / name)
    missing = sorted(name for name in manifest.wheels if not (wheels / name).exists()) if manifest else []
    if manifest and not missing:
        _install(manifest, wheels, folder / "site")
    return missing


def _other(folder: Path, manifest: Manifest) -> bool:
    file = folder / "manifest.json"
    return folder.exists() and (not file.exists() or Manifest.from_json(file.read_bytes()) != manifest)


def _install(manifest: Manifest, wheels: Path, site: Path) -> None:
    """Installs packages into `site`.

    They are packages that this Python lacks, or has in a version that does not fit.
    """
    report = wheels.parent / "report.json"
    arguments = ["--dry-run", f"--report={report}", f"--find-links={wheels}", *manifest.requirements]
    _pip(wheels, arguments, "the bundle does not fit this Python's packages; PyTorch and CuPy must be installed")
    chosen = [
        unquote(urlsplit(each["download_info"]["url"]).path) for each in json.loads(report.read_text())["install"]
    ]
    partial = site.with_suffix(".partial")
    for each in (site, partial):
        shutil.rmtree(each, ignore_errors=True)
    partial.mkdir()
    if chosen:
        _pip(wheels, ["--no-deps", "--no-compile", f"--target={partial}", *chosen], "the packages cannot be installed")
    partial.rename(site)


def _pip(wheels: Path, arguments: list[str], failure: str) -> None:
    """Runs `pip install` without a package index, by the bundle's pip if it has one."""
    bundled = next((str(path / "pip") for path in wheels.glob("pip-*.whl")), None)
    command = [sys.executable, *([bundled] if bundled else ["-m", "pip"]), "install", "--isolated", "--quiet",
               "--disable-pip-version-check", "--no-index", *arguments]  # fmt: skip
    if subprocess.run(command, check=False).returncode:
        raise GpuCheckError(f"{failure}: see pip's output above")


def interpreter() -> Interpreter:
    """Returns a Python that has the packages.

    It is this one with the packages of a bundle, this one as it is, or .venv-gpu's.

    .venv-gpu is made if it is missing, which needs a package index.

    Raises:
        GpuCheckError: it cannot be made.
    """
    site = FOLDER / "site"
    if site.is_dir():
        # The checkout comes first: wheels may hold a folder `scripts` or `benchmarks`, as TorchRL's does.
        return Interpreter(sys.executable, (ROOT, site))
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if not missing:
        return Interpreter(sys.executable, (ROOT,))
    print(f"setting up .venv-gpu, because {sys.executable} lacks {', '.join(missing)}", flush=True)
    command = ["make", "VENV=.venv-gpu", f"PYTHON={sys.executable}", ".venv-gpu/installed-gpu-test"]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise GpuCheckError(
            "the packages cannot be installed. Without a network, make a bundle on another machine: "
            "scripts/gpu_check.sh --bundle DIR"
        )
    return Interpreter(str(ROOT / ".venv-gpu" / "bin" / "python"), (ROOT,))
