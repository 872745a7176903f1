"""The bundle: one archive of the checkout and of the packages that the machine with the GPU lacks."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scripts.gpu.errors import ROOT, GpuCheckError

#: Bytes of a bundle. Machines that limit uploads to 64 MiB take it.
LIMIT = 62 << 20
#: Folder of the archive, and the folder of the packages in it and in the unpacked checkout.
TOP, SITE = Path("gear-data"), Path(".gpu-packages")
#: Preset of xz. The next one takes twice as long, and saves a fourteenth.
_PRESET = 0


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
        made = Path(folder, file.name)
        with tarfile.open(made, "w:xz", preset=_PRESET) as archive:
            for path in tree:
                archive.add(path, TOP / path.relative_to(root), filter=_without_owner)
            archive.add(packages, TOP / SITE, filter=_without_owner)
        if (size := made.stat().st_size) > LIMIT:
            raise GpuCheckError(
                f"the bundle has {size:,} bytes, and may have {LIMIT:,}: pass the record of the machine's probe by "
                "--installed, so that it holds what is missing there only"
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(made, file)


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
