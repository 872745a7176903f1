"""Which processor collects batches: the choice as a pure function."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gear_data.loaders.builders.backend import Rates, choose_backend
from gear_data.residency.device.link import LinkRates

#: Steps of a window and bytes of a step of each array: states, actions, rewards, returns, timesteps, mask of Hopper.
HOPPER = [(20, 44), (20, 12), (20, 4), (20, 4), (20, 8), (20, 4)]
STATED = Rates(LinkRates())
#: Round numbers: 1 byte a second on the CPU and over PCIe, 100 on the device; 128 seconds a request.
SLOW = Rates(LinkRates(1.0, 1.0, 128.0), cpu=1.0, device=100.0, cpu_call=0.0, copy_call=0.0, launch=0.0)


@pytest.mark.parametrize("residency", ["mmap", "host", "remote"])
def test_columns_that_no_kernel_reads_are_collected_on_the_cpu(residency: str) -> None:
    assert choose_backend([(1000, 4096)], 4096, residency, STATED) == "cpu"


@pytest.mark.parametrize("residency", ["pinned", "device", "tiered"])
def test_large_batches_are_collected_on_the_gpu(residency: str) -> None:
    assert choose_backend([(100, 44)], 4096, residency, STATED) == "cuda"
    assert choose_backend(HOPPER, 256, residency, STATED) == "cuda"


def test_a_launch_that_costs_more_than_the_cpu_is_not_made() -> None:
    rates = replace(STATED, launch=1.0)
    assert choose_backend(HOPPER, 256, "device", rates) == "cpu"


def test_more_rows_favour_the_gpu() -> None:
    rates = replace(STATED, copy_call=0.0)
    chosen = [choose_backend(HOPPER, rows, "pinned", rates) for rows in (1, 10, 100, 1000, 10_000, 100_000)]
    assert chosen == sorted(chosen)
    assert {chosen[0], chosen[-1]} == {"cpu", "cuda"}


def test_requests_cost_over_pcie() -> None:
    # 100 bytes a window: 200 s on the CPU (collected, then copied), 228 s as a request over PCIe.
    assert choose_backend([(1, 100)], 1, "pinned", SLOW) == "cpu"
    # 200 bytes: 400 s, and 328 s.
    assert choose_backend([(1, 200)], 1, "pinned", SLOW) == "cuda"
    # On the device the same 100 bytes take a second.
    assert choose_backend([(1, 100)], 1, "device", SLOW) == "cuda"
    # Each array of a window is a request: 400 s on the CPU, and 200 + 256 s over PCIe.
    assert choose_backend([(1, 100)] * 2, 1, "pinned", SLOW) == "cpu"


def test_kernels_and_the_copy_engine_have_their_own_rates() -> None:
    # A thousand bytes a window: 2,000 s on the CPU, 1,128 s by kernels.
    assert choose_backend([(1, 1000)], 1, "pinned", SLOW) == "cuda"
    slow_kernels = replace(SLOW, link=LinkRates(1.0, 0.5, 128.0))
    assert choose_backend([(1, 1000)], 1, "pinned", slow_kernels) == "cpu"
    # A faster copy engine helps the CPU: 1,010 s.
    fast_copies = replace(SLOW, link=LinkRates(100.0, 1.0, 128.0))
    assert choose_backend([(1, 1000)], 1, "pinned", fast_copies) == "cpu"
    assert choose_backend([(1, 1000)], 1, "device", fast_copies) == "cuda"


def test_many_arrays_are_many_copies() -> None:
    rates = replace(STATED, copy_call=1.0, launch=5.0)
    assert choose_backend([(1, 4)] * 4, 1, "pinned", rates) == "cpu"
    assert choose_backend([(1, 4)] * 6, 1, "pinned", rates) == "cuda"
