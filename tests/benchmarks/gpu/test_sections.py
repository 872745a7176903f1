"""benchmarks/gpu.py without a GPU.

The sections run on a stand-in for CuPy, whose kernels run on the CPU.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_sections import ceilings as gpu_ceilings
from gpu_sections import collection as gpu_collection
from gpu_sections import device as gpu_device
from gpu_sections import footprints as gpu_footprints
from gpu_sections import frames as gpu_frames
from gpu_sections import knobs as gpu_knobs
from gpu_sections import selection as gpu_selection
from gpu_sections.collection import CollectCase
from gpu_sections.report import Section

import gear_data
from gear_data.errors import DeviceError, DeviceMemoryError
from tests.support.benchmarks.gpu import SMALL, left, small_sections, small_training
from tests.support.cuda.cupy_stand_in import CupyStandIn
from tests.support.cuda.gpu_stand_in import stand_in


@pytest.fixture
def cupy(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CupyStandIn]:
    with stand_in(monkeypatch, libraries, order="all late") as found:
        yield found.cupy


@pytest.fixture
def gpu(cupy: CupyStandIn, monkeypatch: pytest.MonkeyPatch) -> gpu_device.Gpu:
    """Measures each call once, because the stand-in is slow."""
    small_sections(monkeypatch)
    return gpu_device.Gpu()


def test_calls_are_timed_in_groups_that_take_turns(cupy: CupyStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_device, "WARM_SECONDS", 0.01)
    gpu, called = gpu_device.Gpu(), []
    calls = [
        lambda: cupy.streams.add(0, lambda: called.append(0)),
        lambda: cupy.streams.add(0, lambda: (called.append(1), time.sleep(1e-4))[0]),
    ]
    begun = time.perf_counter()
    seconds = gpu.seconds(calls)
    # All in turn until the clocks are warm, and then as often as fits a group of about 2 ms.
    assert time.perf_counter() - begun > 0.01
    assert 2e-5 < seconds < 5e-3
    assert len(called) > 4
    assert abs(called.count(0) - called.count(1)) <= gpu_device._REPEATS


def test_a_graph_holds_all_calls(gpu: gpu_device.Gpu, cupy: CupyStandIn) -> None:
    called: list[int] = []

    def call(number: int) -> None:
        cupy.streams.add(cupy.cuda.get_current_stream().ptr, lambda: called.append(number))

    assert gpu.graph_seconds([lambda: call(0), lambda: call(1)]) > 0
    assert called[:4] == [0, 1, 0, 1]

    def waits() -> None:
        cupy.cuda.runtime.streamSynchronize(cupy.cuda.get_current_stream().ptr)

    # As on a GPU, nothing may wait while a graph is captured.
    with pytest.raises(DeviceError, match="capturing a CUDA graph"):
        gpu.graph_seconds([waits])


def test_what_is_taken_in_a_scope_is_given_back(cupy: CupyStandIn) -> None:
    gpu = gpu_device.Gpu()
    with gpu.scope():
        outer = gpu.device(100)
        with pytest.raises(ZeroDivisionError), gpu.scope():
            gpu.host(4096)
            gpu.pinned(100)
            assert len(cupy.registered) == 1
            raise ZeroDivisionError
        assert not cupy.registered
        assert len(gpu._held) == 1
        assert outer % 256 == 0
    assert not gpu._held


def test_host_memory_is_the_segment_of_pinned(cupy: CupyStandIn) -> None:
    gpu = gpu_device.Gpu()
    size = len(gpu_device.numbers()) + 100
    with gpu.scope():
        host = gpu.host(size)
        expected = np.empty(size, np.uint8)
        gpu_device.fill_raw(expected)
        assert np.array_equal(host.data, expected)
        assert not host.data.flags.writeable
        (registered,) = cupy.registered.items()
        assert registered[0] <= host.address < host.address + size <= sum(registered)
    assert not cupy.registered

    def refuse(*_: Any) -> None:
        raise cupy.cuda.runtime.CUDARuntimeError(801)

    # There is no other memory to fall back to.
    cupy.cuda.runtime.hostRegister = refuse
    with gpu.scope(), pytest.raises(DeviceError, match="registering"):
        gpu.host(4096)


def test_memory_that_runs_out_is_an_error_that_says_so(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        stand_in(monkeypatch, libraries, order="all late", device_bytes=1000),
        pytest.raises(DeviceMemoryError, match=r"1,000 bytes of GPU memory"),
    ):
        gpu_device.Gpu().device(1000)


@pytest.mark.parametrize("where", ["pinned", "device"])
def test_collection_is_compared_with_the_cpus(where: str, gpu: gpu_device.Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_collection, "all_cases", lambda most, quick: SMALL)
    monkeypatch.setitem(gpu_collection.LARGE, where, CollectCase(44, 20, 70).nbytes)
    section = gpu_collection.collection(gpu, where, 1e9, 1e-6, True, left)
    named = {row.name: row for row in section.rows}
    assert [case.name for case in SMALL] == list(named)[: len(SMALL)]
    row = named["44 B x 20 x 70"]
    assert row.ratio == pytest.approx(44 * 20 * 70 / (row.values["us"] * 1e-6) / 1e9)
    assert row.values["empty launches"] == pytest.approx(row.values["us"])
    # Too small for a comparison with a copy.
    assert named["1024 B x 7 x 5"].ratio is None


def test_a_kernel_that_is_wrong_is_not_measured(gpu: gpu_device.Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = gpu.pinned(4 << 20)
    gpu_device.fill_raw(raw)
    made = gpu_collection.GpuCollection(gpu, raw, raw.ctypes.data, CollectCase(44, 20, 70), pinned=True)
    made.check()
    raw[:] = raw[::-1].copy()
    with pytest.raises(RuntimeError, match="44 B x 20 x 70: rows differs from the CPU's batch"):
        made.check()


def test_ceilings_and_selection(gpu: gpu_device.Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    section = gpu_ceilings.ceilings(gpu, True)
    rates = section.facts["bytes_per_second"]
    assert rates.keys() == {
        gpu_ceilings.SM_READS, f"{gpu_ceilings.SM_READS}, allocated",
        gpu_ceilings.COPY_ENGINE, f"{gpu_ceilings.COPY_ENGINE}, allocated", gpu_ceilings.DEVICE_COPY,
    }  # fmt: skip
    by_blocks = [row for row in section.rows if re.fullmatch(rf"{gpu_ceilings.SM_READS}, \d+ blocks", row.name)]
    assert max(row.values["GB/s"] for row in by_blocks) == pytest.approx(rates[gpu_ceilings.SM_READS] / 1e9)
    monkeypatch.setattr(gpu_selection, "EPISODES", (300, 5000))
    monkeypatch.setattr(gpu_selection, "DRAWS", (50, 500))
    monkeypatch.setattr(gpu_selection, "TARGET", (500, 5000, 1e-3))
    found = gpu_selection.selection(gpu, section.facts["empty_launch_seconds"], True, left)
    assert len(found.rows) == 2 * (3 * 2 + 1)
    judged = [row for row in found.rows if row.target is not None]
    assert [row.name for row in judged] == ["weighted by episode, 500 of 5,000", "weighted by step, 500 of 5,000"]
    for row in judged:
        assert row.met == (row.values["us"] <= 1000)


def test_draws_that_are_wrong_are_not_measured(gpu: gpu_device.Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_selection, "EPISODES", (100,))
    monkeypatch.setattr(gpu_selection, "DRAWS", (50, 60))
    monkeypatch.setattr(gpu_selection.launches, "draw_windows", lambda *arguments: None)
    with pytest.raises(RuntimeError, match="uniform by step, 100 episodes"):
        gpu_selection.selection(gpu, 1e-6, True, left)


def test_knobs_are_turned_and_turned_back(gpu: gpu_device.Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = (gpu_knobs.Variant(), gpu_knobs.Variant(unroll=2))
    monkeypatch.setattr(gpu_knobs, "VARIANTS", variants)
    before = gpu.tuning, gpu._collect_blocks, dict(gpu._kernels)
    section = gpu_knobs.knobs(gpu, True, left)
    assert (gpu.tuning, gpu._collect_blocks, gpu._kernels) == before
    assert [row.ratio for row in section.rows[:2]] == [1.0, 1.0]
    assert [row.name.partition(",")[0] for row in section.rows[2:]] == ["CPU or GPU", "CPU or GPU"]
    # The stand-in has only the built-in constants. The report says so, and the section continues.
    assert [text.partition(" (")[0] for text in section.left_out] == [variants[1].name]


def training_data(gpu_training: Any, folder: Path) -> Any:
    """Writes a dataset, and returns its episodes."""
    episodes = gpu_training.synthetic_episodes(2000)
    gpu_training.write_parquet(episodes, folder / "source.parquet")
    gear_data.convert(folder / "source.parquet", folder / "dataset")
    return episodes


def test_training_goes_on_without_the_loaders_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_training = small_training(monkeypatch)
    episodes = training_data(gpu_training, tmp_path)
    section = Section([])
    gpu_training._measure(section, tmp_path / "dataset", 2, episodes, 1, 1, left)
    rows = {row.name.removeprefix("batch 2: "): row for row in section.rows}
    graph = "batch 2, as a graph: "
    titles = [gpu_training.COSTLESS, gpu_training.OURS]
    assert [*rows] == [*titles, *(f"{graph}{title}" for title in titles)]
    assert [row.target for row in rows.values()] == [None, 0.98] * 2
    in_graph = rows[f"{graph}{gpu_training.OURS}"]
    assert in_graph.ratio == pytest.approx(in_graph.values["steps/s"] / rows[f"{graph}{titles[0]}"].values["steps/s"])
    ours, costless = rows[gpu_training.OURS], rows[gpu_training.COSTLESS]
    assert ours.ratio == pytest.approx(ours.values["steps/s"] / costless.values["steps/s"])
    reasons = "".join(section.notes)
    assert "on no GPU, batch 2: not run: InvalidArgumentError" in reasons
    assert f"{gpu_training.TORCHRL}, batch 2: not run: ModuleNotFoundError" in reasons


def test_training_steps_are_compared_with_the_same_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_training = small_training(monkeypatch)
    episodes = training_data(gpu_training, tmp_path)
    # The time is over in the last round, in which the machine is slower.
    times = itertools.chain([1e9] * 9, itertools.repeat(0.0))
    rates = iter([1.0] * 4 + [100.0, 98.0] * 2 + [50.0])
    monkeypatch.setattr(gpu_training, "steps_per_second", lambda *_: next(rates))
    section = Section([])
    gpu_training._measure(section, tmp_path / "dataset", 2, episodes, 1, 2, lambda: next(times))
    assert [row.ratio for row in section.rows] == pytest.approx([1.0, 0.98, 1.0, 0.98])
    assert len(section.left_out) == 3


def test_frames_are_compared_with_the_cpus(gpu: gpu_device.Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    section = gpu_frames.frames(gpu, True, left)
    assert [row.name for row in section.rows] == ["3 x 16 x 18 uint8", "2 x 8 x 8 float32"]
    row = section.rows[0]
    assert row.ratio == pytest.approx(row.values["us as the array"] / row.values["us as YUV"])
    assert row.values["MB of the array"] == 2 * row.values["MB as YUV"]
    assert gpu_frames.frames(gpu, True, lambda: 0.0).left_out == [each.name for each in gpu_frames.QUICK_CASES]
    monkeypatch.setattr(gpu_frames, "convert_frames", lambda *arguments: None)
    with pytest.raises(RuntimeError, match="3 x 16 x 18 uint8: frame 0 differs"):
        gpu_frames.frames(gpu, True, left)


def test_filters_are_measured_where_cudf_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import polars as pl
    from gpu_sections import filters as gpu_filters

    monkeypatch.setattr(gpu_filters, "find_spec", lambda name: None if name == "cudf_polars" else object())
    assert gpu_filters.filters(True, left).notes == ["not run: cudf_polars not installed (see docs/how-to/gpu.md)"]
    monkeypatch.setattr(gpu_filters, "find_spec", lambda name: object())
    monkeypatch.setattr(gpu_filters, "ROWS", (10, 1000))

    def right(frame: Any, expression: Any) -> Any:
        return frame.select(expression.alias("found")).to_series(), False

    monkeypatch.setattr(gpu_filters.cudf, "evaluate", right)
    assert [row.name for row in gpu_filters.filters(True, left).rows] == ["10 rows", "1,000 rows"]
    monkeypatch.setattr(gpu_filters.cudf, "evaluate", lambda frame, _: (pl.Series([True] * len(frame)), False))
    with pytest.raises(RuntimeError, match="rows: the GPU's are not the CPU's"):
        gpu_filters.filters(True, left)


def test_tables_that_do_not_fit_are_left_out(gpu: gpu_device.Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {gpu_ceilings.SM_READS: 1e9, gpu_ceilings.DEVICE_COPY: 1e9}
    monkeypatch.setattr(gpu_footprints, "QUICK_FOOTPRINTS", (1 << 20, 1 << 50))
    section = gpu_footprints.footprints(gpu, rates, True, lambda: 1e9)
    assert ["available" in text for text in section.left_out] == [True]
    case = gpu_footprints.CASES[0].name
    places = [f"{where} 0.000977 GiB: {case}{order}" for where in ("pinned", "device") for order in ("", ", in order")]
    assert [row.name for row in section.rows] == places
    # Little time: the larger one would take half a second to fill.
    monkeypatch.setattr(gpu_footprints, "QUICK_FOOTPRINTS", (1 << 20, 1 << 30))
    times = itertools.chain([0.5, 0.5], itertools.repeat(4.0))
    section = gpu_footprints.footprints(gpu, rates, True, lambda: next(times))
    assert "s to fill it" in section.left_out[0]
    # The GPU's memory is smaller.
    gpu.free_bytes = lambda: 100  # type: ignore[method-assign]
    monkeypatch.setattr(gpu_footprints, "QUICK_FOOTPRINTS", (1 << 20,))
    section = gpu_footprints.footprints(gpu, rates, True, left)
    assert [row.name for row in section.rows] == places[:2]
    assert "of the GPU's memory are free" in section.left_out[0]


def test_sets_of_windows_exceed_the_cache(gpu: gpu_device.Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CollectCase(44, 20, 70)
    monkeypatch.setattr(gpu_device.Gpu, "l2_bytes", 10 * case.nbytes)
    raw = gpu.pinned(4 << 20)
    gpu_device.fill_raw(raw)
    made = gpu_collection.GpuCollection(gpu, raw, raw.ctypes.data, case, pinned=True, in_order=True)
    assert len(made.sets) == 40
    made.check()
    # Every set has its own outputs.
    targets = made.targets[:, 0]
    assert (np.diff(targets) >= case.nbytes).all()
    for windows in made.sets:
        assert (np.diff(windows.episode_id * gpu_collection.STEPS_AN_EPISODE + windows.start) >= 0).all()
