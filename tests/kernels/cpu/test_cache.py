"""The cache of compiled kernels if package and home folder are read-only."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.dispatcher import Dispatcher

from gear_data import kernels

pytestmark = pytest.mark.processes


def cache_folder(temporary: Path) -> Path:
    """Returns the cache folder that a new process uses.

    temporary: the process's folder for temporary files.
    """
    code = (
        "import os; os.access = lambda *arguments, **options: False\n"
        "import numba, gear_data.kernels.cpu.native\n"
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
def test_a_folder_that_is_not_private_is_not_used(planted: str, tmp_path: Path) -> None:
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
    # The private folder of a process is removed at its end.
    assert list(temporary.iterdir()) == [name]


#: Converts a column of each type to float32, by a kernel that is compiled for each kind of array in the arguments.
#: `gear_data.kernels.cpu.collect` calls the same converters, and takes ten times as long to compile.
CONVERSIONS = """
import sys
import numba, numpy as np
from gear_data.kernels.cpu.convert import _to_float32
from gear_data.kernels.output_plan import SOURCE_TYPES

@numba.njit(cache=True)
def convert(kind, source_type, source, target, count, affine, period):
    _to_float32(source_type, source, target, count, affine, period)

shift, *kinds = sys.argv[1:]
for i in range(int(shift)):
    numba.njit(lambda x: x)(i)
affine = np.repeat([0.0, 1.0], 3)
for kind in kinds:
    array = np.zeros(1)
    array.flags.writeable = kind == "writable"
    for source_type, name in enumerate(SOURCE_TYPES):
        source = np.arange(21).astype(name)
        target = np.zeros(21, np.float32)
        convert(array, source_type, source.ctypes.data, target.ctypes.data, 21, affine.ctypes.data, 3)
        assert (target == source).all(), (kind, name)
assert bool(convert.stats.cache_hits) is (len(kinds) == 2)
"""


def test_kernels_that_two_processes_compiled_do_not_mix(tmp_path: Path) -> None:
    """Names must differ without Numba's numbers, which each process starts at 1."""
    program = tmp_path / "conversions.py"
    program.write_text(CONVERSIONS)
    for arguments in (("0", "writable"), ("3", "read-only"), ("0", "writable", "read-only")):
        subprocess.run(
            [sys.executable, program, *arguments],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            timeout=300,
            check=True,
        )


def test_every_kernel_has_a_name_of_its_own() -> None:
    found: dict[int, Dispatcher] = {}

    def look(value: object) -> None:
        if isinstance(value, Dispatcher) and id(value) not in found:
            found[id(value)] = value
            for cell in value.py_func.__closure__ or ():
                look(cell.cell_contents)

    for module in pkgutil.walk_packages(kernels.__path__, f"{kernels.__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            look(value)
    names = [(kernel.py_func.__module__, kernel.py_func.__qualname__) for kernel in found.values()]
    assert len(names) > 50
    assert sorted(set(names)) == sorted(names)
