"""The packages of a bundle: those of the checks that the machine with the GPU lacks."""

from __future__ import annotations

import email
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from packaging.requirements import Requirement

from scripts.gpu.errors import PYTHON_VERSION, ROOT, GpuCheckError

#: The platforms of the wheels. pip takes each literally.
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
#: Packages that no step needs. `datasets` reads CSV, JSON, WebDataset and the hub.
UNUSED = ("datasets",)
#: The record of a probe of a common machine: CUDA 13 and PyTorch, as found in November 2026.
MACHINE = Path(__file__).with_name("machine.json")

#: Downloads wheels of these requirements, without their dependencies. Returns the files.
Fetch = Callable[[list[str]], list[Path]]


def requirements(project: Path = ROOT / "pyproject.toml") -> list[str]:
    """Returns the requirements of the package and of the extra `gpu-test` that a bundle may hold."""
    table = tomllib.loads(project.read_text())["project"]

    def plain(texts: Iterable[str]) -> Iterator[str]:
        """Yields requirements, and those of the project's extras that they name."""
        for text in texts:
            if normalised(text) == "gear-data":
                for extra in sorted(Requirement(text).extras):
                    yield from plain(table["optional-dependencies"][extra])
            else:
                yield text

    wanted = plain([*table["dependencies"], *table["optional-dependencies"]["gpu-test"]])
    return [text for text in wanted if normalised(text) not in (*PROVIDED, *UNUSED)]


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


def installed_in(probe: Path) -> dict[str, str | None]:
    """Returns the packages in the record of a probe: normalised name -> version, or None if it is not known.

    Raises:
        GpuCheckError: the file is not such a record, or the machine has another Python.
    """
    try:
        machine = json.loads(probe.read_text())["machine"]
        python: str = machine["python"]
        packages: dict[str, str | None] = machine["packages"]
        if not python.startswith(f"{PYTHON_VERSION}."):
            raise GpuCheckError(f"{probe}: the machine has Python {python}; a bundle is for {PYTHON_VERSION}")
        return {normalised(name): version for name, version in packages.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GpuCheckError(f"{probe} is not the record of a probe: {error!r}") from error


def collect(
    roots: Iterable[str], pinned: Mapping[str, str], installed: Mapping[str, str | None], fetch: Fetch
) -> list[Path]:
    """Fetches the wheels of these requirements, of their requirements, and so on.

    Args:
        roots: requirements.
        pinned: normalised name -> version to fetch; other packages are fetched in their newest version.
        installed: normalised name -> version that the machine has; None fits every requirement. Packages that fit are
            left out.
        fetch: downloads wheels.
    """
    todo = [Requirement(text) for text in roots]
    wheels: dict[str, Path] = {}
    walked: set[tuple[str, str]] = set()
    while todo:
        wanted = {}
        for requirement in todo:
            name = normalised(requirement.name)
            present = installed.get(name)
            fits = name in installed and (present is None or requirement.specifier.contains(present, prereleases=True))
            if name not in wheels and name not in PROVIDED and not fits:
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

    def fetch(texts: list[str]) -> list[Path]:
        before = {*folder.glob("*.whl")}
        _pip("download", f"--dest={folder}", *texts)
        return sorted({*folder.glob("*.whl")} - before)

    return fetch


def install(wheels: Iterable[Path], site: Path) -> None:
    """Installs wheels of the bundle's Python into a folder, without an index."""
    if files := [*map(str, wheels)]:
        _pip("install", "--no-index", "--no-compile", f"--target={site}", *files)


def _pip(verb: str, *arguments: str) -> None:
    command = [
        sys.executable, "-m", "pip", verb, "--quiet", "--disable-pip-version-check", "--no-deps",
        "--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON_VERSION}",
        *(f"--platform={platform}" for platform in PLATFORMS), *arguments,
    ]  # fmt: skip
    if subprocess.run(command, check=False).returncode:
        raise GpuCheckError(
            f"pip {verb} failed for Python {PYTHON_VERSION}: see its output above; a package index is needed here"
        )
