"""Every .cu file compiles for every generation of GPU that is supported, by the compiler that loads it there."""

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
    """NVRTC, of the wheel nvidia-cuda-nvrtc; it needs no GPU."""

    def __init__(self, library: Path) -> None:
        # Loaded here by its path: NVRTC asks for it by its name, and finds it where it is loaded already.
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
        """(the cubin, what the compiler said)."""
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
    # cu13/lib of CUDA 13's wheels, cuda_nvrtc/lib of CUDA 12's.
    found = sorted(path for folder in folders for path in folder.glob("*/lib/libnvrtc.so.*"))
    if not found:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
    return Compiler(found[-1])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", SOURCES, ids=[path.name for path in SOURCES])
def test_compiles_without_a_warning(compiler: Compiler, source: Path, architecture: str) -> None:
    # The last two CuPy adds.
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "--no-source-include", "--ftz=true",
               "--device-as-default-execution-space"]  # fmt: skip
    cubin, log = compiler.compile(source, options)
    assert cubin[:4] == b"\x7fELF"
    assert not log


def test_there_are_kernels_without_an_include() -> None:
    assert SOURCES
    assert not [path for path in SOURCES if "#include" in path.read_text()]


def test_what_does_not_compile_is_said(compiler: Compiler, tmp_path: Path) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text('extern "C" __global__ void wrong(int *out) { int unused = 1; out[0] = nowhere; }')
    with pytest.raises(RuntimeError, match="nowhere"):
        compiler.compile(source, ["--gpu-architecture=sm_90"])
