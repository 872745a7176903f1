"""Which processor collects batches: the choice as a pure function."""

from __future__ import annotations

import pytest

from gear_data.loaders.builders.backend import Rates, choose_backend

#: Steps of a window and bytes of a step of each array: states, actions, rewards, returns, timesteps, mask of Hopper.
HOPPER = [(20, 44), (20, 12), (20, 4), (20, 4), (20, 8), (20, 4)]
#: Round numbers: 1 byte a second on the CPU and over PCIe, 100 on the device.
SLOW = Rates(cpu=1.0, copy=1.0, device=100.0, cpu_call=0.0, copy_call=0.0, launch=0.0, line=128)


@pytest.mark.parametrize("residency", ["mmap", "host", "remote"])
def test_columns_that_no_kernel_reads_are_collected_on_the_cpu(residency: str) -> None:
    assert choose_backend([(1000, 4096)], 4096, residency) == "cpu"


@pytest.mark.parametrize("residency", ["pinned", "device", "tiered"])
def test_large_batches_are_collected_on_the_gpu(residency: str) -> None:
    assert choose_backend([(100, 44)], 4096, residency) == "cuda"
    assert choose_backend(HOPPER, 256, residency) == "cuda"


def test_a_launch_that_costs_more_than_the_cpu_is_not_made() -> None:
    rates = Rates(launch=1.0)
    assert choose_backend(HOPPER, 256, "device", rates) == "cpu"


def test_more_rows_favour_the_gpu() -> None:
    rates = Rates(copy_call=0.0)
    chosen = [choose_backend(HOPPER, rows, "pinned", rates) for rows in (1, 10, 100, 1000, 10_000, 100_000)]
    assert chosen == sorted(chosen)
    assert {chosen[0], chosen[-1]} == {"cpu", "cuda"}


def test_short_runs_cost_whole_lines_only_over_pcie() -> None:
    # 100 bytes a window: 200 s on the CPU (collected, then copied), 228 s as 100 + 128 bytes over PCIe.
    assert choose_backend([(1, 100)], 1, "pinned", SLOW) == "cpu"
    # 200 bytes: 400 s, and 328 s.
    assert choose_backend([(1, 200)], 1, "pinned", SLOW) == "cuda"
    # On the device the same 100 bytes take 2.28 s.
    assert choose_backend([(1, 100)], 1, "device", SLOW) == "cuda"


def test_many_arrays_are_many_copies() -> None:
    rates = Rates(copy_call=1.0, launch=5.0)
    assert choose_backend([(1, 4)] * 4, 1, "pinned", rates) == "cpu"
    assert choose_backend([(1, 4)] * 6, 1, "pinned", rates) == "cuda"
