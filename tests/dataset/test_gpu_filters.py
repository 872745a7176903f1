"""Filters on a GPU: which expressions go to a fake Polars engine."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

import gear_data
from gear_data.kernels.cuda import cudf, nvml

FRAME = pl.DataFrame(
    {
        "length": [1, 5, 9, 5, 7],
        "return": [0.5, -1.0, 2.0, None, 8.0],
        "task": ["pick", "place", None, "pick up", ""],
        "done": [True, False, None, True, True],
    }
)

#: Comparisons and logic, with the rows of FRAME for which they hold, computed by hand; None is null.
EXACT: list[tuple[pl.Expr, list[bool | None]]] = [
    (pl.col("length") >= 5, [False, True, True, True, True]),
    ((pl.col("return") > 0) & pl.col("done"), [True, False, None, None, True]),
    (pl.col("return").is_null() | ~pl.col("done"), [False, True, None, True, False]),
    (pl.col("length").is_between(5, 7), [False, True, False, True, True]),
    (pl.col("task").str.starts_with("pick"), [True, False, None, True, False]),
    ((pl.col("task") != "").alias("named"), [True, True, None, True, False]),
    (pl.all_horizontal(pl.col("done"), pl.col("length") < 8), [True, False, False, True, True]),
    (pl.col("return") > pl.col("length"), [False, False, False, None, True]),
]
#: Expressions that an engine may round or order differently, or that were never checked.
OTHERS = [
    pl.col("return") > pl.col("return").mean(),
    pl.col("return") >= pl.col("return").quantile(0.9),
    pl.col("return") * 2 > 1,
    pl.col("return").exp() > 1,
    pl.col("task").str.contains("p.c"),
    pl.col("length").is_in([1, 5]),
    pl.col("return") < float("nan"),
    pl.col("length").shift(1) > 2,
    pl.when(pl.col("done")).then(pl.col("return")).otherwise(0.1) > 0,
    pl.col("length").map_batches(lambda values: values > 5, return_dtype=pl.Boolean),
    pl.col("^len.*$") > 0,
]


class FakeEngine:
    """Fake of `pl.GPUEngine` in `collect`.

    It returns the CPU's values, or raises `error`. `seen` lists the configurations it was called with.
    """

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.error: BaseException | None = None
        #: The original method of Polars.
        self.collect = pl.LazyFrame.collect

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def collected(frame: pl.LazyFrame, *, engine: Any = "auto", **options: Any) -> Any:
            if not isinstance(engine, pl.GPUEngine):
                return self.collect(frame, engine=engine, **options)
            assert engine.memory_resource == "cudaMalloc"
            self.seen.append(dict(engine.config))
            if self.error is not None:
                raise self.error
            return self.collect(frame)

        monkeypatch.setattr(pl.LazyFrame, "collect", collected)
        memory = SimpleNamespace(CudaMemoryResource=lambda: "cudaMalloc")
        monkeypatch.setitem(sys.modules, "rmm", SimpleNamespace(mr=memory))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """Fake GPU with cuDF, for frames of any size."""
    monkeypatch.setattr(cudf, "gpu_count", lambda: 1)
    monkeypatch.setattr(cudf, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setattr(cudf, "MIN_ROWS", 1)
    monkeypatch.setattr(cudf, "_cpu_expressions", set())
    monkeypatch.setattr(cudf, "_logged", set())
    fake = FakeEngine()
    fake.install(monkeypatch)
    return fake


def values(expression: pl.Expr) -> list[bool | None] | None:
    from gear_data.dataset.filters import column_names

    found = cudf.true_values(FRAME, expression, column_names(expression))
    return None if found is None else found.to_list()


@pytest.mark.parametrize(("expression", "expected"), EXACT, ids=str)
def test_comparisons_and_logic_go_to_the_gpu(
    expression: pl.Expr, expected: list[bool | None], engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    assert values(expression) == expected
    assert engine.seen == [{"executor": "in-memory", "raise_on_fail": True}]
    assert not caplog.records


@pytest.mark.parametrize("expression", OTHERS, ids=str)
def test_other_expressions_stay_on_the_cpu_with_one_log_line(
    expression: pl.Expr, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    assert values(expression) is None
    assert values(expression) is None
    assert not engine.seen
    if "^len" not in str(expression):  # names no column, so it is not checked
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "more than comparisons and logic" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        NotImplementedError("Array is not supported\nand more"),
        MemoryError("std::bad_alloc: out_of_memory"),
        pl.exceptions.ComputeError("no"),
        pl.exceptions.PanicException("a panic"),
        ModuleNotFoundError("No module named 'cudf_polars'"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_if_the_gpu_fails_the_cpu_takes_over_with_one_log_line(
    error: BaseException, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.error = error
    assert values(pl.col("length") > 5) is None
    assert values(pl.col("length") > 5) is None
    # The GPU is not tried a second time.
    assert len(engine.seen) == 1
    assert len(caplog.records) == 1
    assert f"{type(error).__name__}: {str(error).splitlines()[0]}" in caplog.text


@pytest.mark.parametrize("refuses", [False, True], ids=["answers", "refuses"])
def test_polars_calls_cudf_and_takes_its_answer(
    refuses: bool, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Polars' own engine calls a fake cudf-polars."""

    def execute_with_cudf(plan: Any, *more: Any, config: Any) -> None:
        assert (config.memory_resource, config.config["executor"]) == ("cudaMalloc", "in-memory")
        if refuses:
            raise NotImplementedError("no such function")
        plan.set_udf(lambda *arguments: pl.DataFrame({"value": [True, None, False, True, True]}))

    monkeypatch.setattr(pl.LazyFrame, "collect", engine.collect)
    monkeypatch.setitem(sys.modules, "cudf_polars", SimpleNamespace(execute_with_cudf=execute_with_cudf))
    assert values(pl.col("length") > 5) == (None if refuses else [True, None, False, True, True])
    assert ("no such function" in caplog.text) == refuses


def test_an_interrupt_is_raised(engine: FakeEngine) -> None:
    engine.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        values(pl.col("length") > 5)


def test_columns_with_nan_are_compared_on_the_cpu(engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    frame = pl.DataFrame({"x": [1.0, float("nan"), None], "y": [1.0, 2.0, 3.0]})
    assert cudf.true_values(frame, pl.col("x") > 1, ["x"]) is None
    assert "NaN" in caplog.text
    # NaN in a column that the expression does not read does not matter.
    found = cudf.true_values(frame, pl.col("y") > 1, ["y"])
    assert found is not None
    assert found.to_list() == [False, True, True]


def test_without_cudf_there_is_one_log_line_in_total(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cudf, "find_spec", lambda name: None)
    assert values(pl.col("length") > 5) is None
    assert values(pl.col("length") > 6) is None
    assert [record.getMessage().count("gear-data[cudf]") for record in caplog.records] == [1]


@pytest.mark.parametrize("reason", ["no gpu", "few rows"])
def test_without_a_gpu_or_with_few_rows_nothing_is_logged(
    reason: str, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cudf, "find_spec", lambda name: pytest.fail("looked for cuDF"))
    if reason == "no gpu":
        monkeypatch.setattr(cudf, "gpu_count", lambda: 0)
    else:
        monkeypatch.setattr(cudf, "MIN_ROWS", len(FRAME) + 1)
    assert values(pl.col("length") > 5) is None
    assert not caplog.records


@pytest.mark.parametrize("fails", [False, True], ids=["works", "fails"])
def test_views_equal_those_of_the_cpu(
    fails: bool, engine: FakeEngine, rollouts_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ds = gear_data.open(rollouts_path)
    if fails:
        engine.error = RuntimeError("CUDA error")
    lengths = ds.lengths.tolist()
    middle = sorted(lengths)[len(lengths) // 2]
    assert ds.filter(pl.col("length") > middle).lengths.tolist() == [n for n in lengths if n > middle]
    assert len(engine.seen) == 1
    view = ds.filter_steps(pl.col("rewards") > 0)
    assert view.step_mask is not None
    assert view.step_mask.count == int((ds.steps("rewards", 0, ds.num_episodes) > 0).sum())
    assert len(caplog.records) == 2 * fails


# driver


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Builds a library from C source and installs it as NVML."""
    compiler = shutil.which("gcc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C compiler to build the fake NVML")

    def build(source: str) -> None:
        built = tmp_path / "libfake.so"
        command = [compiler, "-x", "c", "-shared", "-fPIC", "-o", str(built), "-"]
        subprocess.run(command, input=source, text=True, check=True)
        monkeypatch.setattr(nvml, "_LIBRARY", str(built))
        nvml.driver.cache_clear()

    yield build
    nvml.driver.cache_clear()


FAKE_NVML = """
#include <string.h>
static int up = 0;
int nvmlInit_v2(void) { return up++ ? 99 : 0; }
int nvmlShutdown(void) { up--; return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, "580.65.06", size); return up != 1; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12090; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **handle) {
    *handle = i ? "NVIDIA H200" : "NVIDIA H100 80GB HBM3";
    return i == 1 ? 15 : 0;
}
int nvmlDeviceGetName(void *handle, char *text, unsigned size) { strncpy(text, handle, size); return 0; }
"""


# The first GPU has two MIG instances: at index 0 and 2. The last GPU does not have MIG.
FAKE_MIG = """
int nvmlDeviceGetMigMode(char *gpu, unsigned *current, unsigned *pending) {
    *current = gpu[8] == '1' && gpu[9] == '0'; *pending = 1;
    return *current ? 0 : 3;
}
int nvmlDeviceGetMaxMigDeviceCount(char *gpu, unsigned *count) { *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(char *gpu, unsigned i, void **handle) {
    *handle = i ? "MIG-two" : "MIG-one";
    return i == 0 || i == 2 ? 0 : 6;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) { strncpy(text, handle, size); return 0; }
"""


@pytest.mark.processes
def test_mig_instances(library: Any) -> None:
    library(FAKE_NVML + FAKE_MIG)
    found = nvml.driver()
    assert found is not None
    assert found.mig == (("MIG-one", "MIG-two"), None)


@pytest.mark.processes
def test_the_driver_is_queried_once_and_shut_down(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    library(FAKE_NVML)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    # The second of the three GPUs does not answer.
    expected = nvml.NvidiaDriver("580.65.06", (12, 9), ("NVIDIA H100 80GB HBM3", "NVIDIA H200"), (None, None))
    assert nvml.driver() == expected
    nvml.driver.cache_clear()
    # A second start works only if the driver was shut down.
    assert nvml.driver() == expected
    assert nvml.gpu_count() == 2


@pytest.mark.processes
@pytest.mark.parametrize(("visible", "count"), [("", 0), ("-1", 0), ("0", 2), ("GPU-12", 2)])
def test_hidden_gpus_do_not_count(visible: str, count: int, library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    library(FAKE_NVML)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nvml.gpu_count() == count


@pytest.mark.processes
@pytest.mark.parametrize(
    "source",
    [
        "int nvmlInit_v2(void) { return 9; }",
        "int other(void) { return 0; }",
        "int nvmlInit_v2(void) { return 0; } int nvmlShutdown(void) { return 0; }",
        FAKE_NVML.replace("return up != 1", "return 3"),
    ],
    ids=["no driver", "another library", "an old driver", "a broken driver"],
)
def test_a_driver_that_does_not_respond_is_none(source: str, library: Any) -> None:
    library(source)
    assert nvml.driver() is None
    assert nvml.gpu_count() == 0


def test_the_serialized_form_of_expressions_is_known() -> None:
    """An expression of an unknown form stays on the CPU.

    The serialized form may change with the version of Polars.
    """
    assert cudf._is_exact(json.loads((pl.col("length") > 5).meta.serialize(format="json")))
    for node in (None, [], {}, {"Column": 1}, {"Column": "a", "More": 1}, {"New": {}}, {"Literal": {"Dyn": 1}}):
        assert not cudf._is_exact(node)
    assert np.all([not cudf._is_exact(json.loads(e.meta.serialize(format="json"))) for e in OTHERS])
