"""The rates of a link, measured on a stand-in for CuPy and kept in the cache folder."""

from __future__ import annotations

import functools
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gear_data.kernels.cuda import copies
from gear_data.kernels.cuda.launcher import CudaLauncher
from gear_data.residency.device import link
from gear_data.residency.device.link import LinkRates
from gear_data.residency.device.memory import DeviceBuffer, PinnedBuffer
from tests.support.cuda.cupy_stand_in import CupyStandIn
from tests.support.cuda.gpu_stand_in import stand_in

pytestmark = pytest.mark.processes

LINK_RATES = link.link_rates


@pytest.fixture
def cupy(libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CupyStandIn]:
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path))
    monkeypatch.setattr(link, "_LEAST_BYTES", 1 << 12)
    monkeypatch.setattr(link, "WARM_SECONDS", 0.0)
    link._measured.cache_clear()
    with stand_in(monkeypatch, libraries, order="all late") as found:
        yield found.cupy
    link._measured.cache_clear()


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "gpu").glob("*.json"))


def test_a_device_is_measured_once_and_its_rates_are_kept(cupy: CupyStandIn, tmp_path: Path) -> None:
    gc.collect()
    others = cupy.taken  # what loaders of earlier tests have mapped
    rates = LINK_RATES(0)
    assert rates.copy > 0 and rates.reads > 0 and rates.request >= 0
    assert {"gear_copy_words", "gear_copy_runs"} <= set(cupy.launched)
    assert (cupy.taken, cupy.pinned) == (others, 0)
    (file,) = kept(tmp_path)
    assert json.loads(file.read_text()) == {"copy": rates.copy, "reads": rates.reads, "request": rates.request}
    launched = len(cupy.launched)
    # Another process reads the file.
    link._measured.cache_clear()
    assert LINK_RATES(0) == rates
    assert len(cupy.launched) == launched


def test_another_driver_or_device_is_measured_again(cupy: CupyStandIn, tmp_path: Path) -> None:
    LINK_RATES(0)
    cupy.cuda.runtime.driverGetVersion = lambda: 13010
    LINK_RATES(0)
    cupy.cuda.runtime.getDeviceProperties = lambda number: {"uuid": b"\xff\x00", "l2CacheSize": 1}
    LINK_RATES(0)
    assert len(kept(tmp_path)) == 3


@pytest.mark.parametrize(
    "text", ["", "[]", '{"copy": 1}x', '{"copy": 0, "reads": 1, "request": 1}', '{"reads": "NaN"}', '{"other": 1}']
)
def test_a_file_that_holds_no_rates_is_replaced(
    text: str, cupy: CupyStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = LinkRates(3.0, 2.0, 1.0)
    monkeypatch.setattr(link, "measure_link", lambda device: measured)
    LINK_RATES(0)
    (file,) = kept(tmp_path)
    file.write_text(text)
    assert LINK_RATES(0) == measured
    assert json.loads(file.read_text())["copy"] == 3.0


def test_a_folder_that_cannot_be_written_is_no_error(
    cupy: CupyStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path / "file"))
    measured: list[int] = []
    monkeypatch.setattr(link, "measure_link", lambda device: measured.append(device) or LinkRates(3.0))
    assert LINK_RATES(0) == LINK_RATES(0) == LinkRates(3.0)
    assert measured == [0]


def test_a_device_that_cannot_be_measured_has_the_stated_rates(
    cupy: CupyStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise cupy.cuda.memory.OutOfMemoryError("no memory")

    monkeypatch.setattr(cupy.cuda, "Memory", full)
    assert LINK_RATES(0) == LinkRates(55e9, 35e9, 128 / 35e9)
    assert not kept(tmp_path)


def test_rates_follow_from_the_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"copy": 2.0, "few reads": 5.0, "many reads": 4.0, "few runs": 8.0, "many runs": 12.0}
    calls = {name: functools.partial(int, 0) for name in names}
    seconds = {call: names[name] for name, call in calls.items()}
    monkeypatch.setattr(link, "event_seconds", seconds.__getitem__)
    found = link.LinkCopies(
        calls["copy"], {1: calls["few reads"], 2: calls["many reads"]}, {1: calls["few runs"], 2: calls["many runs"]}
    )
    monkeypatch.setattr(link, "WARM_SECONDS", 0.0)
    # 8 runs of 128 bytes. The better number of blocks counts: 4 s in one piece, 8 s in runs.
    assert link._rates(found, 1024) == LinkRates(512.0, 256.0, 0.5)


@pytest.mark.parametrize("nbytes", [16, 4096 - 16, 4096])
def test_the_copies_copy(nbytes: int, cupy: CupyStandIn) -> None:
    launcher, places = CudaLauncher(), 32
    source, target = PinnedBuffer(places * copies.RUN_BYTES + copies.RUN_BYTES), DeviceBuffer(4096, 16)
    link.fill(source.array())
    words = source.array().view(np.uint64).reshape(-1, 2).copy()

    def read() -> np.ndarray:
        back = PinnedBuffer(nbytes)
        cupy.cuda.runtime.memcpyAsync(back.address, target.address, nbytes, 2, 0)
        cupy.cuda.runtime.deviceSynchronize()
        return back.array().view(np.uint64).reshape(-1, 2).copy()

    copies.copy_words(launcher, target.address, source.address, nbytes, 2)
    assert np.array_equal(read(), words[: nbytes // 16])
    copies.copy_runs(launcher, target.address, source.address, nbytes, places, 3)
    run = np.arange(nbytes // 16) >> 3
    place = [(number * 0x9E3779B97F4A7C15 % 2**64 >> 20) % places for number in run.tolist()]
    assert np.array_equal(read(), words[np.array(place) * 8 + 4 + (np.arange(nbytes // 16) & 7)])
    # The places are scattered.
    assert len(set(place)) > len(set(run.tolist())) // 2
