"""Every .cu file compiles for every supported GPU generation.

The compiler is NVRTC, as on a machine with a GPU.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gear_data.kernels.cuda.tuning import DEFAULT, Build
from scripts.gpu.probe.device import SOURCE as PROBE_KERNEL
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

    def knows(self, architecture: str) -> bool:
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        return int(architecture.removeprefix("sm_")) in numbers

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


@pytest.fixture(params=ARCHITECTURES)
def architecture(compiler: Compiler, request: pytest.FixtureRequest) -> str:
    if not compiler.knows(request.param):
        pytest.skip(f"this NVRTC is older than {request.param}")
    return str(request.param)


def spilled(log: str) -> dict[str, int]:
    """Returns the bytes that each kernel and function of a verbose log spills to memory, if it spills any."""
    found = re.findall(r"Function properties for (\w+)\n.*?(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert found
    return {name: int(stores) + int(loads) for name, stores, loads in found if (stores, loads) != ("0", "0")}


@pytest.mark.parametrize("source", SOURCES, ids=[path.name for path in SOURCES])
def test_compiles_without_a_warning_or_a_spill(compiler: Compiler, source: Path, architecture: str) -> None:
    # CuPy adds the last two options.
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "--no-source-include", "--ftz=true",
               "--device-as-default-execution-space"]  # fmt: skip
    # Equal builds are compiled once.
    for constants in {DEFAULT.options(pinned) for pinned in (False, True)}:
        cubin, log = compiler.compile(source, [*options, *constants, "--ptxas-options=-v"])
        assert cubin[:4] == b"\x7fELF"
        assert not [line for line in log.splitlines() if not line.startswith("ptxas")]
        assert not spilled(log)


def test_the_probes_kernel_compiles(compiler: Compiler, architecture: str, tmp_path: Path) -> None:
    source = tmp_path / "read_words.cu"
    source.write_text(PROBE_KERNEL)
    cubin, log = compiler.compile(source, [f"--gpu-architecture={architecture}", "--std=c++17", "--ptxas-options=-v"])
    assert cubin[:4] == b"\x7fELF"
    assert not spilled(log)


def test_spills_show_in_the_log(compiler: Compiler) -> None:
    """A build with too few registers for each thread is seen to spill."""
    tight = replace(DEFAULT, device=Build(512, 2))
    options = ["--gpu-architecture=sm_90", "--std=c++17", *tight.options(pinned=False), "--ptxas-options=-v"]
    assert "gear_collect" in spilled(compiler.compile(KERNELS / "collect.cu", options)[1])


def test_the_kernels_include_no_headers() -> None:
    assert SOURCES
    assert not [path for path in SOURCES if "#include" in path.read_text()]


def test_a_compile_error_is_reported(compiler: Compiler, tmp_path: Path) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text('extern "C" __global__ void wrong(int *out) { int unused = 1; out[0] = nowhere; }')
    with pytest.raises(RuntimeError, match="nowhere"):
        compiler.compile(source, ["--gpu-architecture=sm_90"])
