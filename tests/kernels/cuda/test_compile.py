"""Every .cu file compiles for every supported GPU generation.

The compiler is NVRTC, as on a machine with a GPU.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.cuda.runner import KERNELS

SOURCES = sorted(KERNELS.glob("*.cu"))
ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")


class Compiler:
    """NVRTC, from the wheel nvidia-cuda-nvrtc. It needs no GPU."""

    def __init__(self, library: Path) -> None:
        # Loaded by its path. NVRTC requests the library by name, and finds the loaded one.
        self._builtins = [ctypes.CDLL(str(path)) for path in library.parent.glob("libnvrtc-builtins.so.*")]
        self._library = ctypes.CDLL(str(library))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: {self._library.nvrtcGetErrorString(status).decode()}")

    def _text(self, program: ctypes.c_void_p, kind: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{kind}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{kind}", program, text)
        return text.raw

    def compile(self, source: Path, options: Sequence[str]) -> tuple[bytes, str]:
        """Returns (the cubin, the compiler's log)."""
        program = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram", ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None
        )
        try:
            given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._library.nvrtcCompileProgram(program, len(options), given)
            log = self._text(program, "ProgramLog").rstrip(b"\0").decode()
            if status:
                raise RuntimeError(log)
            return self._text(program, "CUBIN"), log
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    package = importlib.util.find_spec("nvidia")
    folders = [] if package is None else [Path(folder) for folder in package.submodule_search_locations or ()]
    # cu13/lib in CUDA 13's wheels, cuda_nvrtc/lib in CUDA 12's.
    found = sorted(path for folder in folders for path in folder.glob("*/lib/libnvrtc.so.*"))
    if not found:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
    return Compiler(found[-1])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", SOURCES, ids=[path.name for path in SOURCES])
def test_compiles_without_a_warning(compiler: Compiler, source: Path, architecture: str) -> None:
    # CuPy adds the last two options.
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "--no-source-include", "--ftz=true",
               "--device-as-default-execution-space"]  # fmt: skip
    cubin, log = compiler.compile(source, options)
    assert cubin[:4] == b"\x7fELF"
    assert not log


def test_the_kernels_include_no_headers() -> None:
    assert SOURCES
    assert not [path for path in SOURCES if "#include" in path.read_text()]


def test_a_compile_error_is_reported(compiler: Compiler, tmp_path: Path) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text('extern "C" __global__ void wrong(int *out) { int unused = 1; out[0] = nowhere; }')
    with pytest.raises(RuntimeError, match="nowhere"):
        compiler.compile(source, ["--gpu-architecture=sm_90"])
