"""The Python that runs the steps."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from scripts.gpu.bundle import SITE
from scripts.gpu.errors import PYTHON_VERSION, ROOT, GpuCheckError

#: Modules that the steps import.
MODULES = (
    "cupy", "h5py", "hypothesis", "msgspec", "numba", "polars", "pyarrow", "pytest", "torch", "tqdm", "transformers",
    "xdist", "xxhash",
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


def interpreter(root: Path = ROOT) -> Interpreter:
    """Returns a Python that has the packages.

    It is this one with the packages of a bundle, this one as it is, or .venv-gpu's.

    .venv-gpu is made if it is missing, which needs a package index.

    Raises:
        GpuCheckError: it cannot be made, or the bundle is for another Python.
    """
    site = root / SITE
    bundled = site.is_dir()
    # The checkout comes first: wheels may hold a folder `scripts` or `benchmarks`.
    folders = (root, site) if bundled else (root,)
    missing = [name for name in MODULES if PathFinder.find_spec(name, [*map(str, folders), *sys.path]) is None]
    if bundled:
        here = ".".join(map(str, sys.version_info[:2]))
        if here != PYTHON_VERSION:
            raise GpuCheckError(f"the bundle is for Python {PYTHON_VERSION}, and this is {here}: set PYTHON")
        if missing:
            # Steps that do not need them still say something about the machine.
            print(
                f"missing: {', '.join(missing)}; make another bundle, by --bundle with --installed and the probe.json "
                "of this machine",
                flush=True,
            )
    if bundled or not missing:
        return Interpreter(sys.executable, folders)
    print(f"setting up .venv-gpu, because {sys.executable} lacks {', '.join(missing)}", flush=True)
    command = ["make", "VENV=.venv-gpu", f"PYTHON={sys.executable}", ".venv-gpu/installed-gpu-test"]
    if subprocess.run(command, cwd=root, check=False).returncode:
        raise GpuCheckError(
            "the packages cannot be installed. Without a network, make a bundle on another machine: "
            "scripts/gpu_check.sh --bundle"
        )
    return Interpreter(str(root / ".venv-gpu" / "bin" / "python"), folders)
