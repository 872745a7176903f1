"""`gear_data.kernels.cuda.launcher` with a stand-in for CuPy.

The tests check launches, and the translation of errors.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gear_data.errors import DeviceError, DeviceMemoryError, GearError, InvalidArgumentError, MissingExtraError
from gear_data.kernels.cuda import launch_arguments
from gear_data.kernels.cuda import launcher as cuda
from gear_data.kernels.cuda.tuning import DEFAULT, Build, Tuning
from tests.support.cuda.cupy_stand_in import CupyStandIn, launch_buffer, make_cupy
from tests.support.cuda.runner import KERNELS, parameter_counts
from tests.support.cuda.streams import CudaError, Streams


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[CupyStandIn]:
    """A stand-in for CuPy whose device has 132 multiprocessors.

    Launches are recorded with their device, and not run.
    """
    fake = make_cupy(Streams(lambda stream: False), {}, 0)
    current: list[int] = []

    class Device:
        def __init__(self, number: int) -> None:
            self._number = number

        @property
        def attributes(self) -> dict[str, int]:
            if self._number:
                raise CudaError(101)
            return {"MultiProcessorCount": 132}

        def __enter__(self) -> None:
            current.append(self._number)

        def __exit__(self, *error: object) -> None:
            current.pop()

    class RawModule:
        def __init__(self, code: str, options: tuple[str, ...], backend: str) -> None:
            self._code = code

        def get_function(self, name: str) -> Any:
            assert f"{name}(" in self._code
            return SimpleNamespace(kernel=SimpleNamespace(ptr=name))

    def launch(name: Any, gx: int, gy: int, gz: int, bx: int, *rest: int) -> None:
        fake.launched.append((current[-1], name, gx, bx, rest[3], launch_buffer(rest[-1])))

    fake.cuda.Device, fake.RawModule, fake.cuda.driver.launchKernel = Device, RawModule, launch
    monkeypatch.setitem(sys.modules, "cupy", fake)
    cuda._compiled.cache_clear()
    yield fake
    cuda._compiled.cache_clear()


def test_all_kernels_are_found_and_their_arguments_have_64_bits(cupy: CupyStandIn) -> None:
    launcher = cuda.CudaLauncher()
    sources = [path.read_text() for path in sorted(KERNELS.glob("*.cu"))]
    declared = [name for source in sources for name in parameter_counts(source)]
    assert sorted(declared) == sorted(name for source in sources for name in cuda.kernel_names(source))
    assert len(declared) > 10
    for name in declared:
        launcher.launch(name, 3, 64, 2**64 - 1, -1, True)
    assert [one[1] for one in cupy.launched] == declared
    assert cupy.launched[0] == (0, declared[0], 3, 64, 0, [2**64 - 1, 2**64 - 1, 1])


def test_a_launch_is_in_the_current_stream_and_without_arguments(cupy: CupyStandIn) -> None:
    launcher, stream = cuda.CudaLauncher(), cupy.cuda.Stream(non_blocking=True)
    with stream:
        launcher.launch("gear_collect", 1, 32)
    assert cupy.launched == [(0, "gear_collect", 1, 32, stream.ptr, [])]


def test_every_launched_kernel_exists_and_every_kernel_is_launched() -> None:
    python = "".join(path.read_text() for path in KERNELS.glob("*.py"))
    launched = set(re.findall(r'"(gear_\w+)"', python)) - {launch_arguments.COLLECT_PINNED}
    declared = {name for path in KERNELS.glob("*.cu") for name in cuda.kernel_names(path.read_text())}
    # gear_philox exists only for the known answers of Philox.
    assert declared - launched == {"gear_philox"}
    assert not launched - declared


def test_a_budget_is_a_share_of_the_multiprocessors(cupy: CupyStandIn) -> None:
    launchers = [cuda.CudaLauncher(sm_budget=share) for share in (1.0, 0.5, 0.1, 0.001)]
    assert [one.blocks for one in launchers] == [264, 66, 14, 1]
    # Without a budget, few blocks read pinned memory.
    assert [one.collect_blocks(pinned=False) for one in launchers] == [132, 66, 14, 1]
    assert [one.collect_blocks(pinned=True) for one in launchers] == [32, 66, 14, 1]
    for share in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(InvalidArgumentError, match="sm_budget"):
            cuda.CudaLauncher(sm_budget=share)


def test_a_tuning_sets_constants_blocks_and_threads(cupy: CupyStandIn) -> None:
    compiled = []
    cupy.RawModule = type("RawModule", (cupy.RawModule,), {
        "__init__": lambda self, code, options, backend: compiled.append(options) or setattr(self, "_code", code)
    })  # fmt: skip
    tuning = Tuning(device=Build(128, 5, 2), pinned=Build(256, 2), pinned_blocks=9, piece=4096)
    launcher = cuda.CudaLauncher(tuning=tuning)
    assert launcher.collect_blocks(pinned=False) == 5 * 132
    assert [options[1:] for options in compiled if options[1:]] == [tuning.options(False), tuning.options(True)]
    plan = launch_arguments.PlanTables(0, 1, 0, 0, 1000)
    for pinned, expected in ((False, (660, 128)), (True, (9, 256))):
        tables = launch_arguments.EpisodeTables(0, 0, 0, 0, 0, 1, pinned)
        launch_arguments.collect(launcher, tables, plan, launch_arguments.WindowRows(0, 0, 0, 64), 0)
        assert cupy.launched[-1][2:4] == expected
    # A little work is spread over small blocks.
    launch_arguments.collect(launcher, tables, plan, launch_arguments.WindowRows(0, 0, 0, 0), 0)
    assert len(cupy.launched) == 2
    few = launch_arguments.PlanTables(0, 1, 0, 0, 1)
    launch_arguments.collect(launcher, tables, few, launch_arguments.WindowRows(0, 0, 0, 30), 0)
    assert cupy.launched[-1][2:4] == (8, 128)


def test_equal_builds_are_compiled_once(cupy: CupyStandIn) -> None:
    launcher = cuda.CudaLauncher()
    assert DEFAULT.options(pinned=True) == DEFAULT.options(pinned=False)
    names = launch_arguments.COLLECT, launch_arguments.COLLECT_PINNED
    assert launcher._kernels[names[0]] is launcher._kernels[names[1]]


def test_no_such_device(cupy: CupyStandIn) -> None:
    with pytest.raises(DeviceError, match="CUDA device 3: cudaError 101: in words\n  install or update the NVIDIA"):
        cuda.CudaLauncher(3)


CASES = [
    ("memory.OutOfMemoryError", "allocating 9 bytes", DeviceMemoryError, "smaller budget"),
    ("runtime.CUDARuntimeError", 2, DeviceMemoryError, "smaller budget"),
    ("driver.CUDADriverError", 2, DeviceMemoryError, "smaller budget"),
    ("runtime.CUDARuntimeError", 35, DeviceError, "NVIDIA driver"),
    ("runtime.CUDARuntimeError", 3, DeviceError, "by spawn"),
    ("driver.CUDADriverError", 209, DeviceError, "compute capability"),
    ("driver.CUDADriverError", 700, DeviceError, "restart it"),
    ("runtime.CUDARuntimeError", 900, DeviceError, "capture_error_mode='thread_local'"),
    ("driver.CUDADriverError", 1, DeviceError, "doctor"),
    ("nvrtc.NVRTCError", 2, DeviceError, "doctor"),
    ("compiler.CompileException", "nothing compiles", DeviceError, "CuPy that fits"),
]


@pytest.mark.parametrize(("error", "about", "kind", "hint"), CASES)
def test_errors_say_what_to_do(cupy: CupyStandIn, error: str, about: Any, kind: type[GearError], hint: str) -> None:
    raised = attrgetter(error)(cupy.cuda)(about)
    with pytest.raises(kind, match="gear_collect: ") as told, cuda.cuda_errors("gear_collect"):
        raise raised
    assert hint in str(told.value.hint)
    assert told.value.__cause__ is raised
    assert "and more" not in told.value.message


class AcceleratorError(RuntimeError):
    """torch's, since 2.8."""

    error_code = 710


@pytest.mark.parametrize(
    ("error", "text", "kind", "hint"),
    [
        (AcceleratorError, "device-side assert triggered", DeviceError, "restart it"),
        (RuntimeError, "device-side assert triggered", DeviceError, "CUDA_LAUNCH_BLOCKING"),
        (RuntimeError, "out of memory", DeviceMemoryError, "smaller budget"),
    ],
)
def test_torchs_errors_say_what_to_do(
    cupy: CupyStandIn, error: type[Exception], text: str, kind: type[GearError], hint: str
) -> None:
    with pytest.raises(kind) as told, cuda.cuda_errors("collecting"):
        raise error(f"CUDA error: {text}\nand more")
    assert told.value.message == f"collecting: CUDA error: {text}"
    assert hint in str(told.value.hint)


@pytest.mark.parametrize("error", [ZeroDivisionError(), RuntimeError("another"), DeviceError("CUDA error")], ids=repr)
def test_errors_that_are_not_cudas_stay(cupy: CupyStandIn, error: Exception) -> None:
    with pytest.raises(type(error)) as told, cuda.cuda_errors("doing"):
        raise error
    assert told.value is error


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingExtraError, match=r"gear-data\[gpu\]"):
        cuda.CudaLauncher()


def test_without_a_gpu() -> None:
    cupy = pytest.importorskip("cupy")
    if cupy.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError, match="CUDA device 0"):
        cuda.CudaLauncher()


def test_the_sources_are_beside_the_launcher() -> None:
    assert {path.name for path in KERNELS.glob("*.cu")} == set(cuda._SOURCES)
    assert Path(cuda.__file__).resolve().parent == KERNELS


def test_cupy_has_the_attributes_of_the_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that the stand-ins of these tests do not drift from CuPy."""
    cupy = pytest.importorskip("cupy")
    made_up = make_cupy(Streams(lambda stream: False), {}, 0)
    for name, value in vars(made_up.cuda).items():
        there = getattr(cupy.cuda, name)
        if isinstance(value, SimpleNamespace):
            assert set(vars(value)) <= set(dir(there)), name
        elif isinstance(value, type):
            # Attributes that only instances have are not in the class.
            assert {n for n in vars(value) if not n.startswith("_")} <= set(dir(there)), name
    assert {"RawModule", "ndarray"} <= set(dir(cupy))
