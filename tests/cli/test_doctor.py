"""Doctor: GPU checks with a fake driver and fake packages.

Packages are probed in a separate process.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from gear_data.cli import doctor
from gear_data.cli.warm import warm_kernels
from gear_data.common.extras import EXTRAS
from gear_data.kernels import cpu
from gear_data.kernels.cuda.nvml import NvidiaDriver
from tests.support.command_line import run_json

pytestmark = pytest.mark.processes

ROOT = Path(doctor.__file__).resolve().parents[2]

CUPY = """
from types import SimpleNamespace
__version__ = "14.2.0"
cuda = SimpleNamespace(
    runtime=SimpleNamespace(runtimeGetVersion=lambda: 13020, driverGetVersion=lambda: DRIVER),
    nvrtc=SimpleNamespace(getVersion=lambda: (13, 2)),
    is_available=lambda: True,
)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Installs a module first on the path, here and in new processes."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))

    def put(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)

    return put


@pytest.mark.parametrize(
    ("found", "visible", "ok", "words"),
    [
        (None, 0, False, ["no NVIDIA driver", "without a GPU needs none"]),
        (
            NvidiaDriver("580.65", (13, 0), ("H100", "H200", "H100")),
            3,
            True,
            ["2 x H100, 1 x H200; driver 580.65", "13.0"],
        ),
        (NvidiaDriver("580.65.06", (13, 0), ("H100",)), 0, False, ["1 x H100", "all hidden", "CUDA_VISIBLE_DEVICES"]),
        (NvidiaDriver("580.65.06", (13, 0), ()), 0, False, ["none; driver", "container"]),
    ],
    ids=["no driver", "three", "hidden", "none"],
)  # fmt: skip
def test_gpus_come_from_the_driver(
    found: NvidiaDriver | None, visible: int, ok: bool, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "driver", lambda: found)
    monkeypatch.setattr(doctor, "gpu_count", lambda: visible)
    check = doctor._gpu()
    assert check.ok == ok
    assert bool(check.remedy) != ok
    for word in words:
        assert word in f"{check.found} {check.remedy}"


@pytest.mark.parametrize(
    ("number", "ok", "words"),
    [
        (13020, True, ["14.2.0, CUDA runtime 13.2, NVRTC 13.2, driver for CUDA 13.2"]),
        (12090, False, ["driver for CUDA 12.9", "pip install cupy-cuda12x"]),
        (0, False, ["no driver"]),
    ],
)
def test_versions_that_do_not_fit_together_are_named(
    number: int, ok: bool, words: list[str], package: Callable[[str, str], None]
) -> None:
    package("cupy", CUPY.replace("DRIVER", str(number)))
    check = doctor._cupy()
    assert check.ok == ok
    assert bool(check.remedy) != ok
    for word in words:
        assert word in f"{check.found} {check.remedy}"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise OSError('libcuda.so.1: no such file')", "OSError: libcuda.so.1: no such file"),
        ("import os; os._exit(7)", "crashed with status 7"),
        ("import ctypes; ctypes.string_at(0)", "crashed with status -11"),
        ("import time; time.sleep(60)", "timed out after 2 s"),
        ("raise ImportError('numpy is too old')", "cupy cannot be imported: numpy is too old"),
    ],
    ids=["raises", "exits", "crashes", "hangs", "cannot be imported"],
)
def test_a_failing_probe_does_not_end_the_doctor(
    source: str, words: str, package: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    package("cupy", source)
    if "sleep" in source:
        monkeypatch.setattr(doctor, "_PROBE_SECONDS", 2.0)
    check = doctor._cupy()
    assert words in check.found
    assert not check.ok
    assert check.remedy


def test_a_filter_is_tried_only_with_a_gpu(
    package: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        missing = doctor._cudf()
    assert (missing.ok, missing.found) == (False, "not installed")
    assert "gear-data[cudf]" in str(missing.remedy)
    package("cudf_polars", "raise ImportError('polars 2.1 is too new')")
    monkeypatch.setattr(doctor, "gpu_count", lambda: 0)
    assert doctor._cudf().found == "installed, not tried"
    monkeypatch.setattr(doctor, "gpu_count", lambda: 1)
    package("rmm", "")
    assert "polars 2.1 is too new" in doctor._cudf().found


def test_kernels_are_not_tried_without_a_gpu(
    package: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    package("cupy", "import os; os._exit(7)")
    monkeypatch.setattr(doctor, "gpu_count", lambda: 0)
    assert doctor._cuda_kernels().found == "not tried"
    monkeypatch.setattr(doctor, "gpu_count", lambda: 1)
    assert "status 7" in doctor._cuda_kernels().found


@pytest.mark.parametrize(
    ("supported", "ok", "words"),
    [(0, False, "not possible"), (1, True, "by DMA-BUF; gear-data was not yet tested on hardware that can do this")],
)
def test_rdma_to_gpu_memory(
    supported: int, ok: bool, words: str, package: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "gpu_count", lambda: 0)
    assert doctor._rdma_to_gpu().found == "not tried"
    monkeypatch.setattr(doctor, "gpu_count", lambda: 1)
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        assert doctor._rdma_to_gpu().remedy == "see the pyverbs line"
    # Installs a pyverbs with DMA-BUF regions, and a driver, in the probe's process.
    package("pyverbs", "__path__ = []")
    modules = dict.fromkeys(("addr", "cq", "device", "enums", "pd", "qp"), "") | {"mr": "class DmaBufMR: ..."}
    package(
        "sitecustomize",
        f"""
import ctypes, sys, types
for name, source in {modules!r}.items():
    module = sys.modules[f"pyverbs.{{name}}"] = types.ModuleType(f"pyverbs.{{name}}")
    exec(source, vars(module))
class Driver:
    cuInit = staticmethod(lambda flags: 0)
    cuDeviceGet = staticmethod(lambda gpu, number: 0)
    def cuDeviceGetAttribute(self, answer, attribute, gpu):
        answer._obj.value = {supported}
        return 0
whole = ctypes.CDLL
ctypes.CDLL = lambda name, *more, **options: Driver() if name == "libcuda.so.1" else whole(name, *more, **options)
""",
    )
    check = doctor._rdma_to_gpu()
    assert check.ok == ok
    assert words in check.found
    assert bool(check.remedy) != ok


def test_warm_compiles_the_kernels_that_batches_need() -> None:
    assert warm_kernels(progress=False) > 0
    for kernel in (cpu.windows.draw_windows, cpu.collect.collect, cpu.weight_tree.put, cpu.turns.deal):
        assert kernel.signatures


def test_every_failed_check_has_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    checks = {check["name"]: check for check in run_json(capsys, "doctor")["checks"]}
    assert {"cpu kernels", "gpu", "cupy", "cudf", "rdma devices", "locked memory", "shared memory"} <= checks.keys()
    assert checks["cpu kernels"]["ok"]
    for check in checks.values():
        assert check["ok"] or check["remedy"], check


def test_extras_are_listed_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "numpy>=1.26",
        "h5py>=3.12; extra == 'hdf5'",
        "gear-data[hdf5]; extra == 'all'",
        "pillow>=99; extra == 'all'",
    ]
    versions = {"numpy": "2.4.6", "h5py": "3.16.0", "pillow": "13.0.0", "gear-data": "0.1.0"}
    monkeypatch.setattr(doctor, "EXTRAS", {"hdf5": "HDF5 files", "all": "all formats"})
    monkeypatch.setattr("importlib.metadata.requires", lambda name: lines)
    monkeypatch.setattr("importlib.metadata.version", lambda name: versions[name])
    assert doctor._packages().found.endswith(", gear-data 0.1.0, numpy 2.4.6")
    assert doctor._extra("hdf5") == doctor.MachineCheck("extra hdf5", True, "h5py 3.16.0, for HDF5 files")
    remedy = "pip install 'gear-data[all]', for all formats"
    assert doctor._extra("all") == doctor.MachineCheck("extra all", False, "missing: pillow>=99", remedy)


def test_extras_are_those_that_the_package_has() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert EXTRAS.keys() == project.keys() - {"rdma", "docs", "test", "gpu-test", "release"}
    page = (ROOT / "docs/how-to/install.md").read_text()
    for name, purpose in EXTRAS.items():
        assert f"| `{name}` | {purpose} |" in page


def test_errors_name_extras_that_bring_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    of_packages = {"PIL": "pillow", "lance": "pylance", "rmm": "cudf"}
    found = set()
    for folder in ("gear_data", "loaders", "kernels"):
        for file in (ROOT / folder).rglob("*.py"):
            found |= set(re.findall(r'(?:import_extra|_Lazy)\("([\w.]+)", "([\w-]+)"\)', file.read_text()))
    assert ("h5py", "hdf5") in found
    for module, extra in found:
        package = module.partition(".")[0].replace("_", "-")
        package = of_packages.get(package, package)
        assert any(package in line for line in project[extra]), (module, extra)
