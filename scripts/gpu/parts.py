"""The parts of a bundle. Each is an archive, small enough to upload.

Every part has the same manifest, so the parts can be unpacked in any order, and one at a time.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import lzma
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.gpu.errors import ROOT, GpuCheckError

#: Bytes of the checkout and one part together.
LIMIT = 60 << 20
#: Wheels above this are stored without compression, and packed with xz, which is a third smaller.
_LARGE = 32 << 20
#: Shared libraries that are stripped in large wheels.
_STRIPPED = ("llvmlite/binding/libllvmlite.so",)
_BLOCK = 512
#: Bytes of an archive without its wheels: the manifest and the end.
_OVERHEAD = 128 << 10
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """The contents of a bundle.

    Attributes:
        python: version of Python, such as 3.12.
        requirements: the requirements that are installed.
        parts: the number of parts.
        wheels: name of a wheel -> SHA-256 of it, unpacked.
    """

    python: str
    requirements: tuple[str, ...]
    parts: int
    wheels: dict[str, str]

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        values = json.loads(text)
        return cls(**{**values, "requirements": tuple(values["requirements"])})

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()


def checkout_bytes(root: Path = ROOT) -> int:
    """Returns the bytes of the checkout's files that git does not ignore."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError) as error:
        raise GpuCheckError(f"git cannot list the files of {root}: {error}") from error
    paths = [root / name for name in listed.split("\0") if name]
    return sum(path.lstat().st_size for path in paths if path.is_symlink() or path.is_file())


def divide(sizes: Sequence[int], limit: int) -> list[int]:
    """Assigns sizes to parts: the largest first, each to the first part with room.

    Returns the number of each one's part, from 0.

    Raises:
        GpuCheckError: a size is above the limit.
    """
    if max(sizes, default=0) > limit:
        raise GpuCheckError(f"a wheel has {max(sizes):,} bytes packed, and a part has room for {limit:,}")
    rooms: list[int] = []
    found = [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        part = next((part for part, room in enumerate(rooms) if room >= sizes[number]), len(rooms))
        if part == len(rooms):
            rooms.append(limit)
        rooms[part] -= sizes[number]
        found[number] = part
    return found


def write_parts(
    wheels: Sequence[Path], folder: Path, python: str, requirements: Sequence[str], tree: int
) -> list[Path]:
    """Packs wheels, and writes the parts of a bundle.

    Args:
        tree: bytes of the checkout, which a part must leave room for.

    Raises:
        GpuCheckError: the checkout is too large, or a wheel is.
    """
    room = LIMIT - tree - _OVERHEAD
    if room <= 0:
        raise GpuCheckError(f"the checkout has {tree:,} bytes; with a part it may have {LIMIT:,}")
    with ThreadPoolExecutor(2) as pool:
        packed = list(pool.map(_packed, wheels))
    # In an archive, a file takes whole blocks, and one more for its name.
    numbers = divide([-(-len(wheel.data) // _BLOCK) * _BLOCK + _BLOCK for wheel in packed], room)
    parts = max(numbers, default=-1) + 1
    manifest = Manifest(python, tuple(requirements), parts, {wheel.name: wheel.digest for wheel in packed})
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("gear-data-gpu-*-of-*.tar"):
        old.unlink()
    paths = []
    for part in range(parts):
        paths.append(folder / f"gear-data-gpu-{part + 1}-of-{parts}.tar")
        with tarfile.open(paths[-1], "w") as archive:
            _add(archive, _MANIFEST, manifest.to_json())
            for wheel, number in zip(packed, numbers, strict=True):
                if number == part:
                    _add(archive, f"{wheel.name}.xz" if wheel.compressed else wheel.name, wheel.data)
    return paths


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


@dataclass(frozen=True)
class _Packed:
    """A wheel as it is sent: its name, its SHA-256, and its bytes or their xz."""

    name: str
    digest: str
    data: bytes
    compressed: bool


def _packed(wheel: Path) -> _Packed:
    data = wheel.read_bytes()
    compressed = len(data) > _LARGE
    data = _stored(wheel) if compressed else data
    return _Packed(
        wheel.name, hashlib.sha256(data).hexdigest(), lzma.compress(data) if compressed else data, compressed
    )


def _stored(wheel: Path) -> bytes:
    """Returns the same wheel with uncompressed files and stripped libraries."""
    out = io.BytesIO()
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as target:
        changed: dict[str, bytes] = {}
        for entry in sorted(source.infolist(), key=lambda entry: entry.filename.endswith(".dist-info/RECORD")):
            data = source.read(entry)
            if entry.filename in _STRIPPED:
                data = changed[entry.filename] = _strip(data)
            elif entry.filename.endswith(".dist-info/RECORD"):
                data = _recorded(data.decode(), changed).encode()
            plain = zipfile.ZipInfo(entry.filename, entry.date_time)
            plain.external_attr = entry.external_attr
            target.writestr(plain, data)
    return out.getvalue()


def _strip(library: bytes) -> bytes:
    """Removes the symbols that linking does not need."""
    if shutil.which("strip") is None:
        raise GpuCheckError("`strip` is missing: install binutils")
    with tempfile.NamedTemporaryFile() as file:
        file.write(library)
        file.flush()
        done = subprocess.run(["strip", "--strip-unneeded", file.name], capture_output=True, text=True, check=False)
        if done.returncode:
            raise GpuCheckError(f"`strip` failed: {done.stderr.strip()}; the libraries are for x86-64")
        return Path(file.name).read_bytes()


def _recorded(record: str, changed: dict[str, bytes]) -> str:
    """Returns a wheel's RECORD with the hashes and sizes of changed files."""
    lines = []
    for line in record.splitlines():
        name = line.split(",")[0]
        if name in changed:
            digest = base64.urlsafe_b64encode(hashlib.sha256(changed[name]).digest()).decode().rstrip("=")
            line = f"{name},sha256={digest},{len(changed[name])}"
        lines.append(line)
    return "\n".join([*lines, ""])


def parts_in(paths: Iterable[Path]) -> list[Path]:
    """Returns the parts among files and folders."""
    found = [
        part for path in paths for part in (sorted(path.glob("gear-data-gpu-*-of-*.tar")) if path.is_dir() else [path])
    ]
    if not found:
        raise GpuCheckError(f"no parts in {', '.join(map(str, paths))}; make them by scripts/gpu_check.sh --bundle DIR")
    return found


def read_part(part: Path) -> tuple[Manifest, Iterator[tuple[str, bytes]]]:
    """Returns (the manifest, the names and bytes of the part's wheels).

    Raises:
        GpuCheckError: it is not a part, or it is damaged.
    """
    try:
        with tarfile.open(part) as archive:
            manifest = Manifest.from_json(_content(archive, _MANIFEST))
            names = [name for name in archive.getnames() if name != _MANIFEST]
    except (OSError, tarfile.TarError, KeyError, ValueError, TypeError) as error:
        raise GpuCheckError(f"{part} is not a part of a bundle, or it is damaged: {error}; upload it again") from error

    def wheels() -> Iterator[tuple[str, bytes]]:
        with tarfile.open(part) as archive:
            for name in names:
                wheel = name.removesuffix(".xz")
                if wheel not in manifest.wheels or not re.fullmatch(r"[\w.+-]+\.whl", wheel):
                    raise GpuCheckError(f"{part}: unexpected file {name!r}; make the bundle again")
                try:
                    data = _content(archive, name)
                    data = data if name == wheel else lzma.decompress(data)
                except (OSError, tarfile.TarError, lzma.LZMAError) as error:
                    raise GpuCheckError(f"{part}: {name} is damaged: {error}; upload the part again") from error
                if hashlib.sha256(data).hexdigest() != manifest.wheels[wheel]:
                    raise GpuCheckError(f"{part}: {name} is damaged: its SHA-256 differs; upload the part again")
                yield wheel, data

    return manifest, wheels()


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(name)
    return file.read()
