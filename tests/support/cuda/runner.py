"""Runners of CUDA kernels in tests: a device's memory and its kernels.

`ShimRunner` runs them on the CPU, in a process built with the address and undefined behaviour sanitizers (see
`cuda_shim`). The checks of the kernels take any runner.

Why: docs/explanation/decisions/cuda-shim.md
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

import gear_data
from gear_data.kernels.cuda import launch_arguments
from gear_data.kernels.cuda.tuning import DEFAULT, Tuning

KERNELS = Path(gear_data.__file__).resolve().parent.parent / "kernels" / "cuda"
SHIM = Path(__file__).resolve().parent / "shim"
_FLAGS = ["-std=c++17", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-rdynamic"]
#: Both builds of the collecting kernel have the same constants on a CPU, which knows no launch bounds.
CONSTANTS = DEFAULT.options(pinned=True)
_SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


class Runner(Protocol):
    """A `Launcher` with memory. Addresses stay valid until `clear`.

    Attributes:
        blocks: of a launch, at most; checks set it.
    """

    blocks: int
    tuning: Tuning

    def collect_blocks(self, pinned: bool) -> int: ...

    def put(self, array: np.ndarray, *, align: int = 256) -> int:
        """Copies a contiguous array to memory of exactly its size.

        Returns the address.
        """

    def get(self, address: int, shape: Any, dtype: Any) -> np.ndarray: ...

    def launch(self, kernel: str, grid: int, block: int, *arguments: int) -> None:
        """Runs a kernel to its end. Arguments are integers of 64 bits, or addresses.

        Raises:
            RuntimeError: it did something that it must not.
        """

    def clear(self) -> None:
        """Frees all memory."""


def parameter_counts(source: str) -> dict[str, int]:
    """Returns the number of parameters of each kernel of a source."""
    declared = re.findall(r"__global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(([^)]*)\)", source)
    return {name: parameters.count(",") + 1 for name, parameters in declared}


class ShimRunner:
    """Kernels of one file, in a separate process."""

    blocks = 3
    tuning = DEFAULT

    def __init__(self, source: Path, executable: Path, errors: Path) -> None:
        self._parameters = parameter_counts(source.read_text())
        self._errors = errors
        with errors.open("wb") as stream:
            self._process = subprocess.Popen(
                [executable],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env={"ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0"},
            )
        self._held: list[int] = []

    def _ask(self, line: str, data: bytes = b"", answer: int = 8) -> bytes:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(line.encode() + b"\n" + data)
            stdin.flush()
            got = stdout.read(answer)
        except BrokenPipeError:
            got = b""
        if len(got) < answer:
            self._process.wait()
            raise RuntimeError(f"the kernel's process died at '{line}':\n{self._errors.read_text()}")
        return got

    def put(self, array: np.ndarray, *, align: int = 256) -> int:
        address = int.from_bytes(self._ask(f"a {array.nbytes} {align}"), "little")
        self._held.append(address)
        self._ask(f"w {address} {array.nbytes}", np.ascontiguousarray(array).tobytes())
        return address

    def get(self, address: int, shape: Any, dtype: Any) -> np.ndarray:
        array = np.empty(shape, dtype)
        data = self._ask(f"r {address} {array.nbytes}", answer=array.nbytes)
        return np.frombuffer(data, dtype).reshape(array.shape)

    def launch(self, kernel: str, grid: int, block: int, *arguments: int) -> None:
        kernel = launch_arguments.COLLECT if kernel == launch_arguments.COLLECT_PINNED else kernel
        assert len(arguments) == self._parameters[kernel], kernel
        self._ask(" ".join(["l", kernel, str(grid), str(block), *(str(number % (1 << 64)) for number in arguments)]))

    def collect_blocks(self, pinned: bool) -> int:
        return self.blocks

    def clear(self) -> None:
        for address in self._held:
            self._ask(f"f {address}")
        self._held.clear()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def shim_runner(source: str) -> Iterator[ShimRunner]:
    """Makes a runner of a file's kernels. Skips the test without a C++ compiler."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ to build the kernels for the CPU with")
    with tempfile.TemporaryDirectory() as folder:
        executable = Path(folder) / "driver"
        defined = f'-DKERNELS="{KERNELS / source}"'
        for sanitizers in (_SANITIZERS, []):
            command = [
                compiler,
                *_FLAGS,
                *CONSTANTS,
                *sanitizers,
                defined,
                str(SHIM / "driver.cpp"),
                "-ldl",
                "-o",
                str(executable),
            ]
            built = subprocess.run(command, capture_output=True, text=True)
            # A compiler may lack the sanitizers' libraries.
            if built.returncode == 0 or "asan" not in built.stderr:
                break
        assert built.returncode == 0, built.stderr
        if not sanitizers:
            warnings.warn("the compiler has no sanitizers: the kernels run without them", stacklevel=2)
        runner = ShimRunner(KERNELS / source, executable, Path(folder) / "errors.txt")
        try:
            yield runner
        finally:
            runner.close()
