"""The wheels of a bundle: all packages of the checks except PyTorch and CuPy."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from packaging.requirements import Requirement

from scripts.gpu.errors import ROOT, GpuCheckError

#: The Python and the platforms of the wheels. pip takes each platform literally.
PYTHON_VERSION = "3.12"
PLATFORMS = tuple(
    f"{name}_x86_64"
    for name in (
        *(f"manylinux_2_{minor}" for minor in range(28, 4, -1)),
        "manylinux2014",
        "manylinux2010",
        "manylinux1",
    )
)
#: Packages that the machine must have: they fit its driver, and are far larger than a bundle.
PROVIDED = ("torch", "cupy-cuda13x", "cupy-cuda12x")
#: It installs the bundle, since the machine's own pip may be missing or old.
_INSTALLER = "pip>=25"

#: Downloads wheels of these requirements, without their dependencies. Returns the files.
Fetch = Callable[[list[str]], list[Path]]


def requirements(project: Path = ROOT / "pyproject.toml") -> list[str]:
    """Returns the requirements of the package and of the extra `gpu-test`."""
    table = tomllib.loads(project.read_text())["project"]
    wanted = [*table["dependencies"], *table["optional-dependencies"]["gpu-test"]]
    return [text for text in wanted if normalised(text) not in (*PROVIDED, "gear-data")]


def normalised(requirement: str) -> str:
    """Returns the normalised name of a requirement or wheel."""
    found = re.match(r"[A-Za-z0-9._-]*[A-Za-z0-9]", requirement.strip())
    return re.sub(r"[-_.]+", "-", found.group() if found else "").lower()


def pins(constraints: Path = ROOT / "constraints.txt") -> dict[str, str]:
    """Returns normalised name -> version, for the bundle's Python."""
    found = {}
    for line in constraints.read_text().splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            if pin.marker is None or pin.marker.evaluate(_environment()):
                (found[normalised(pin.name)],) = (each.version for each in pin.specifier)
    return found


def _environment() -> dict[str, str]:
    return {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{PYTHON_VERSION}.0",
        "python_version": PYTHON_VERSION,
        "sys_platform": "linux",
        "extra": "",
    }


def collect(roots: Iterable[str], pinned: Mapping[str, str], installed: Mapping[str, str], fetch: Fetch) -> list[Path]:
    """Fetches the wheels of these requirements, of their requirements, and so on.

    Args:
        roots: requirements.
        pinned: normalised name -> version to fetch; other packages are fetched in their newest version.
        installed: normalised name -> version that the machine has. Packages that satisfy a requirement are left out.
        fetch: downloads wheels.
    """
    todo = [Requirement(text) for text in (*roots, _INSTALLER)]
    wheels: dict[str, Path] = {}
    walked: set[tuple[str, str]] = set()
    while todo:
        wanted = {}
        for requirement in todo:
            name = normalised(requirement.name)
            present = installed.get(name)
            satisfied = present is not None and requirement.specifier.contains(present, prereleases=True)
            if name not in wheels and name not in PROVIDED and not satisfied:
                wanted[name] = f"{name}=={pinned[name]}" if name in pinned else f"{name}{requirement.specifier}"
        wheels |= {
            normalised(path.name.split("-")[0]): path for path in (fetch(sorted(wanted.values())) if wanted else ())
        }
        if missing := sorted(wanted.keys() - wheels.keys()):
            raise GpuCheckError(f"no wheels of {', '.join(missing)} were fetched; see pip's output above")
        following = []
        for requirement in todo:
            name = normalised(requirement.name)
            for extra in ("", *sorted(requirement.extras)):
                if name in wheels and (name, extra) not in walked:
                    walked.add((name, extra))
                    following += _requires(wheels[name], extra)
        todo = following
    return sorted(wheels.values())


def _requires(wheel: Path, extra: str) -> list[Requirement]:
    """Returns the requirements of a wheel with an extra ("" for none)."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        metadata = email.message_from_bytes(archive.read(name))
    found = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    environment = {**_environment(), "extra": extra}
    return [each for each in found if each.marker is None or each.marker.evaluate(environment)]


def download(folder: Path) -> Fetch:
    """Returns a function that downloads wheels into a folder by pip."""
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON_VERSION}", f"--dest={folder}",
        *(f"--platform={platform}" for platform in PLATFORMS),
    ]  # fmt: skip

    def fetch(texts: list[str]) -> list[Path]:
        before = {*folder.glob("*.whl")}
        if subprocess.run([*command, *texts], check=False).returncode:
            raise GpuCheckError(
                f"pip could not download {', '.join(texts)} for Python {PYTHON_VERSION}: see its output above; "
                "a package index is needed here"
            )
        return sorted({*folder.glob("*.whl")} - before)

    return fetch
