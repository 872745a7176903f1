"""CudaLauncher: compiles and launches the CUDA kernels with CuPy."""

from __future__ import annotations

import ctypes
import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from gear_data.common.extras import import_extra
from gear_data.errors import DeviceError, DeviceMemoryError, GearError, InvalidArgumentError
from gear_data.kernels.cuda.launch_arguments import COLLECT, COLLECT_PINNED
from gear_data.kernels.cuda.tuning import DEFAULT, Tuning

#: Blocks of a launch for each multiprocessor.
_RESIDENT = 2
_FOLDER = Path(__file__).resolve().parent
_COLLECT = "collect.cu"
_SOURCES = (_COLLECT, "copy.cu", "frames.cu", "select.cu")
#: The words of cuLaunchKernel's list `extra`: CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE and
#: CU_LAUNCH_PARAM_END.
_BUFFER, _BUFFER_SIZE, _END = 1, 2, 0
#: CUDA's error codes; the runtime and the driver share them.
_OUT_OF_MEMORY = 2
_NO_DRIVER = {34, 35, 100, 101, 803, 804}
#: The driver cannot begin in this process. Nearly always it is a forked child of a process that uses CUDA.
_NOT_INITIALIZED = 3
_NO_IMAGE = {98, 200, 209, 222}
#: Calls that are forbidden while another thread captures a CUDA graph, or that invalidate the capture.
_CAPTURE = range(900, 909)
#: After these errors, every further call of the process fails.
_FATAL = {700, 702, 710, 714, 715, 716, 717, 718, 719}


@contextmanager
def cuda_errors(doing: str) -> Iterator[None]:
    """Turns errors of CuPy, CUDA and torch's CUDA into errors with a hint.

    Args:
        doing: the operation, which begins the message.

    Raises:
        MissingExtraError: CuPy is not installed.
        DeviceMemoryError: the device has too little memory.
        DeviceError: any other error of CuPy or CUDA, also one that torch raises.
    """
    # An import statement here would cost microseconds in every launch.
    cupy = sys.modules.get("cupy") or import_extra("cupy", "gpu")
    try:
        yield
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise _no_memory(doing, error) from error
    except cupy.cuda.compiler.CompileException as error:
        raise DeviceError(
            f"{doing}: the CUDA kernels do not compile: {_first_line(error)}",
            hint="install the CuPy that fits the driver's CUDA version: pip install -U cupy-cuda13x (or cupy-cuda12x)",
        ) from error
    except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError, cupy.cuda.nvrtc.NVRTCError) as error:
        if error.status == _OUT_OF_MEMORY and not isinstance(error, cupy.cuda.nvrtc.NVRTCError):
            raise _no_memory(doing, error) from error
        raise DeviceError(f"{doing}: {_first_line(error)}", hint=_hint(int(error.status))) from error
    except RuntimeError as error:
        # torch's. Before torch 2.8 it has no type and no code of its own.
        line = _first_line(error)
        if isinstance(error, GearError) or not line.startswith("CUDA error"):
            raise
        if "out of memory" in line:
            raise _no_memory(doing, error) from error
        raise DeviceError(f"{doing}: {line}", hint=_hint(int(getattr(error, "error_code", 0)))) from error


def _no_memory(doing: str, error: Exception) -> DeviceMemoryError:
    return DeviceMemoryError(
        f"{doing}: {_first_line(error)}",
        hint="give a smaller budget of device memory, a smaller batch or fewer columns, or end other GPU processes",
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _hint(status: int) -> str:
    if status == _NOT_INITIALIZED:
        return (
            "a forked child cannot use CUDA if its parent does: start processes by spawn; otherwise see nvidia-smi and "
            "`gear-data doctor`"
        )
    if status in _NO_DRIVER:
        return "install or update the NVIDIA driver (see nvidia-smi and `gear-data doctor`), or use the CPU"
    if status in _NO_IMAGE:
        return "the kernels need compute capability 7.5 or later; use the CPU"
    if status in _CAPTURE:
        return "capture the graph with torch.cuda.graph(..., capture_error_mode='thread_local'): see docs/how-to/gpu.md"
    if status in _FATAL:
        return (
            "this process can no longer use the GPU: restart it; run it in compute-sanitizer to find the faulty access"
        )
    return "run `gear-data doctor`; the error may come from an earlier call: set CUDA_LAUNCH_BLOCKING=1 to find it"


class CudaLauncher:
    """A `Launcher` on one device, in CuPy's current stream.

    Args:
        device: the device's number.
        sm_budget: the share of the multiprocessors that launches use, above 0 and at most 1. 1: all of them, but only
            `Tuning.pinned_blocks` blocks read pinned memory.
        tuning: constants of the collecting kernel.

    Raises:
        InvalidArgumentError: sm_budget is out of range.
        MissingExtraError: CuPy is not installed.
        DeviceError: there is no such device, or the kernels do not compile for it.
    """

    def __init__(self, device: int = 0, sm_budget: float = 1.0, tuning: Tuning = DEFAULT) -> None:
        if not 0 < sm_budget <= 1:
            raise InvalidArgumentError(f"sm_budget is {sm_budget}; it must be above 0 and at most 1")
        cupy = import_extra("cupy", "gpu")
        with cuda_errors(f"CUDA device {device}"):
            self._device = cupy.cuda.Device(device)
            multiprocessors = int(self._device.attributes["MultiProcessorCount"])
            # Each multiprocessor gets one block first, so fewer blocks leave whole multiprocessors free.
            self.blocks = multiprocessors * _RESIDENT if sm_budget == 1 else math.ceil(multiprocessors * sm_budget)
            self._collect_blocks = self.blocks, self.blocks
            if sm_budget == 1:
                self._collect_blocks = multiprocessors * tuning.device.resident, tuning.pinned_blocks
            self.tuning = tuning
            self._kernels = _kernels(device, tuning)
        self._current_stream, self._launch = cupy.cuda.get_current_stream, cupy.cuda.driver.launchKernel

    def collect_blocks(self, pinned: bool) -> int:
        """Returns the most blocks of a collection from pinned or from device memory."""
        return self._collect_blocks[pinned]

    def launch(self, kernel: str, grid: int, block: int, *arguments: int) -> None:
        """Launches a kernel.

        All arguments go to the driver as one buffer. Every argument has 64 bits, so the buffer has the layout of the
        kernel's parameters. CuPy's own launch would make an object of each argument.

        Raises:
            DeviceError: the launch fails. An error inside the kernel is raised by the next call that waits for it.
        """
        words = packed(arguments)
        extra = ctypes.addressof(words) + 8 * (len(arguments) + 1)
        with cuda_errors(kernel), self._device:
            stream = self._current_stream().ptr
            self._launch(self._kernels[kernel].ptr, grid, 1, 1, block, 1, 1, 0, stream, 0, extra)


def packed(arguments: tuple[int, ...]) -> ctypes.Array[ctypes.c_uint64]:
    """Packs the arguments of a launch, uint64 [len(arguments) + 6].

    The words are the arguments (modulo 2^64), their size in bytes, and the five words of cuLaunchKernel's list `extra`,
    which points to the arguments and to their size.
    """
    count = len(arguments)
    words = (ctypes.c_uint64 * (count + 6))(*arguments, 8 * count, _BUFFER, 0, _BUFFER_SIZE, 0, _END)
    address = ctypes.addressof(words)
    words[count + 2], words[count + 4] = address, address + 8 * count
    return words


def _kernels(device: int, tuning: Tuning) -> dict[str, Any]:
    """Compiles the kernels for a device. Returns name -> CuPy's `Function`."""
    kernels: dict[str, Any] = {}
    for name in _SOURCES:
        kernels |= _compiled(device, name, tuning.options(pinned=False) if name == _COLLECT else ())
    kernels[COLLECT_PINNED] = _compiled(device, _COLLECT, tuning.options(pinned=True))[COLLECT]
    return kernels


@cache
def _compiled(device: int, name: str, constants: tuple[str, ...]) -> dict[str, Any]:
    """Compiles a source for a device. Returns name -> CuPy's `Function`, which keeps its module loaded."""
    cupy = import_extra("cupy", "gpu")
    source = (_FOLDER / name).read_text()
    with cupy.cuda.Device(device):
        module = cupy.RawModule(code=source, options=("--std=c++17", *constants), backend="nvrtc")
        return {kernel: module.get_function(kernel).kernel for kernel in kernel_names(source)}


def kernel_names(source: str) -> list[str]:
    """Returns the names of the kernels that a source declares."""
    return re.findall(r"__global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)", source)
