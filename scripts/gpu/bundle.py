"""The bundle: one archive of the checkout and of the packages that the machine with the GPU lacks."""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scripts.gpu.errors import ROOT, GpuCheckError

#: Bytes of a bundle. Machines that limit uploads to 64 MiB take it.
LIMIT = 62 << 20
#: Folder of the archive, and the folder of the packages in it and in the unpacked checkout.
TOP, SITE = Path("gear-data"), Path(".gpu-packages")
#: Preset of xz. The next one takes twice as long, and saves a fourteenth.
_PRESET = 0
_BLOCK_BYTES = 16 << 20


def write_bundle(file: Path, packages: Path, root: Path = ROOT) -> None:
    """Writes a bundle.

    Args:
        file: the archive to write, a tar file that xz compresses. If it exists, it is replaced.
        packages: the folder of the installed packages.
        root: the checkout. Files that git ignores are left out.

    Raises:
        GpuCheckError: git cannot list the checkout, or the bundle is too large.
    """
    tree = [path for path in _checkout(root) if path != file.resolve()]
    with tempfile.TemporaryDirectory() as folder:
        plain, made = Path(folder, "plain"), Path(folder, "made")
        with tarfile.open(plain, "w") as archive:
            for path in tree:
                archive.add(path, TOP / path.relative_to(root), filter=_without_owner)
            archive.add(packages, TOP / SITE, filter=_without_owner)
        _compress(plain, made)
        if (size := made.stat().st_size) > LIMIT:
            raise GpuCheckError(
                f"the bundle has {size:,} bytes, and may have {LIMIT:,}: pass the record of the machine's probe by "
                "--installed, so that it holds what is missing there only"
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(made, file)


def _compress(plain: Path, made: Path) -> None:
    """Compresses a file by xz. Every block is a stream of its own, so that all cores compress."""
    with plain.open("rb") as source, made.open("wb") as target, ThreadPoolExecutor(os.cpu_count()) as pool:
        blocks = iter(lambda: source.read(_BLOCK_BYTES), b"")
        for packed in pool.map(lambda block: lzma.compress(block, preset=_PRESET), blocks):
            target.write(packed)


def _checkout(root: Path) -> Iterator[Path]:
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError) as error:
        raise GpuCheckError(f"git cannot list the files of {root}: {error}") from error
    for name in sorted({*listed.split("\0")} - {""}):
        path = root / name
        # Git also lists files that were removed and not committed.
        if path.is_symlink() or path.is_file():
            yield path


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Root would otherwise give the files to a user who may not exist there."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
