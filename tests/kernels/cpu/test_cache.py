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
from gear_data.kernels.output_plan import SOURCE_TYPES

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


#: Converts columns of some types to float32, by the kernels to which plans point.
CONVERSIONS = """
import sys
import numba, numpy as np
from gear_data.kernels.cpu import collect, convert
from gear_data.kernels.cpu.native import call
from gear_data.kernels.output_plan import KIND_CONVERT, OUT_TYPES, OUTPUT_PLAN, SOURCE_TYPES

@numba.njit
def write(plan, source, target):
    output = plan[0]
    call(output.write, (output, source, target, 7, 0))

shift, *names = sys.argv[1:]
for i in range(int(shift)):
    numba.njit(lambda x: x)(i)
affine = np.array([[0.0, 0, 0], [1, 1, 1]])
for name in names:
    source, target = np.arange(21).astype(name), np.zeros(21, np.float32)
    plan = np.zeros(1, OUTPUT_PLAN)
    plan["kind"], plan["elements"], plan["affine"], plan["affine_rows"] = KIND_CONVERT, 3, affine.ctypes.data, 1
    plan["source_type"], plan["out_type"] = SOURCE_TYPES.index(name), OUT_TYPES.index("float32")
    collect.link(plan)
    write(plan, source.ctypes.data, target.ctypes.data)
    assert (target == source).all(), name
kernels = convert._convert, convert._convert_half
assert [sum(kernel.stats.cache_hits.values()) for kernel in kernels] == ([10, 1] if len(names) == 11 else [0, 0])
"""


def test_kernels_that_two_processes_compiled_do_not_mix(tmp_path: Path) -> None:
    """Names must differ without Numba's numbers, which each process starts at 1."""
    program = tmp_path / "conversions.py"
    program.write_text(CONVERSIONS)
    for shift, names in (("0", SOURCE_TYPES[::2]), ("3", SOURCE_TYPES[1::2]), ("0", SOURCE_TYPES)):
        subprocess.run(
            [sys.executable, program, shift, *names],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            timeout=300,
            check=True,
        )


FIRST_BATCH = """
import sys
import numpy as np
import gear_data
values = {"observations": np.zeros((9, 3), np.float32), "actions": np.zeros((9, 2), np.float32)}
gear_data.convert([{**values, "rewards": np.zeros(9, np.float32), "terminated": True}], sys.argv[1], progress=False)
next(iter(gear_data.SequenceLoader(gear_data.open(sys.argv[1]), 4, context=4, framework="numpy")))
"""


def test_a_first_batch_compiles_no_kernel_of_other_loaders(tmp_path: Path) -> None:
    """Kernels for transitions, half precision, discounts, trees and distinct episodes double the time."""
    cache = tmp_path / "cache"
    subprocess.run(
        [sys.executable, "-c", FIRST_BATCH, tmp_path / "dataset"],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        timeout=300,
        check=True,
    )
    made = {path.name.split("-")[0] for path in cache.glob("*/*.nbi")}
    assert {"collect.collect", "windows.draw_windows"} <= made
    others = {"_convert_half", "_sum_discounted", "_write_single", "_make_distinct", "_find", "put", "collect_each"}
    assert not others & {name.split(".")[-1] for name in made}


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
