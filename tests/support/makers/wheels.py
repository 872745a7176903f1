"""Wheels that tests make: a few files and metadata."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def make_wheel(
    folder: Path, name: str, version: str, requires: Sequence[str] = (), files: Mapping[str, bytes] | None = None
) -> Path:
    """Writes a wheel for any Python.

    Without files it has a module of the package's name.

    Args:
        name: normalised, with hyphens.
    """
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    contents = {
        **({f"{module}.py": b""} if files is None else files),
        f"{info}/METADATA": "\n".join([*metadata, ""]).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256=stale,0\n" for path in contents) + f"{info}/RECORD,,\n"
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{info}/RECORD", record)
        for path, data in contents.items():
            archive.writestr(path, data)
    return wheel
