"""Batches that a GPU collects from rows read by RDMA.

Both devices are stand-ins. The batches equal those read from the folder.
"""

from __future__ import annotations

import ctypes
import logging
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gear_data
from gear_data import SequenceLoader
from gear_data.cluster.rdma import gpu_memory
from gear_data.errors import DeviceError, NodeUnreachableError
from gear_data.residency.device.memory import DeviceBuffer
from gear_data.residency.device.staging import StagingBuffer
from tests.support.cuda.gpu_stand_in import stand_in as gpu_stand_in
from tests.support.cuda.loader_checks import OPTIONS, convert, copies, from_device, on_gpu, same
from tests.support.cuda.streams import ORDERS
from tests.support.rdma import stand_in


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return convert(31, tmp_path_factory.mktemp("verbs_gpu") / "d")


@pytest.fixture(params=["all late"])
def gpu(request, monkeypatch, libraries):
    with gpu_stand_in(monkeypatch, libraries, order=request.param) as found:
        yield found


class Driver:
    """Stand-in for the part of CUDA's driver that exports GPU memory as a DMA-BUF."""

    def __init__(self, world, supported=1, status=0):
        self._world, self._supported, self._status = world, supported, status
        self.files = []

    def cuInit(self, flags):
        return 0

    def cuDeviceGet(self, gpu, number):
        gpu._obj.value = number + 5
        return 0

    def cuDeviceGetAttribute(self, answer, attribute, gpu):
        assert (attribute, gpu.value) == (124, 5)
        answer._obj.value = self._supported
        return 0

    def cuMemGetHandleForAddressRange(self, file, address, size, kind, flags):
        assert (kind, flags.value) == (1, 0)
        # The driver requires whole pages.
        assert not address.value % (64 << 10) and not size.value % (64 << 10)
        if not self._status:
            file._obj.value = os.memfd_create("made-up-dma-buf")
            self._world.files[file._obj.value] = address.value
            self.files.append(file._obj.value)
        return self._status


@pytest.fixture
def method(request, monkeypatch, world, tmp_path):
    """The method by which the RDMA device writes to GPU memory.

    It is "none" if this machine has no method.
    """
    (tmp_path / "module").mkdir()
    driver = Driver(world, supported=int(request.param == "DMA-BUF"))
    monkeypatch.setattr(gpu_memory, "open_driver", lambda: driver)
    monkeypatch.setattr(gpu_memory, "_MODULES", (tmp_path / ("module" if request.param == "peer memory" else "none"),))
    yield request.param
    open_now = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    assert not [name for name in open_now if "made-up-dma-buf" in name]
    assert bool(driver.files) == (request.param == "DMA-BUF")


METHODS = ["none", "peer memory", "DMA-BUF"]
every_method = pytest.mark.parametrize("method", METHODS, indirect=True)
by_gpu_memory = pytest.mark.parametrize("method", METHODS[1:2], indirect=True)


def read_to_gpu(world, gpu):
    """Counts the bytes read to GPU memory and to host memory."""
    found = [0, 0]

    def noting(remote, local, size):
        there = any(first <= local < first + count for first, count in gpu.cupy.device_memory.copy().items())
        found[not there] += size

    world.spoil = noting
    return found


@every_method
@pytest.mark.parametrize("gpu", ORDERS, indirect=True)
def test_batches_are_those_of_the_folder(folder, gpu, serve, world, method):
    local = gear_data.open(folder)
    half = len(local.manifest.shards) // 2
    places = serve(range(half)), serve(range(half, len(local.manifest.shards)))
    remote = gear_data.open("gear://" + ",".join(places), transport="verbs")
    read = read_to_gpu(world, gpu)
    cases = [
        {"preset": "decision_transformer"},
        {"columns": ["observations", "infos.half", "infos.flag"], "normalize": True, "sampler": "shuffle"},
        {"offsets": {"observations": (-5, 2), "actions": (3, 9)}, "columns": ["observations", "actions"]},
        {"preset": "d3rlpy", "prefetch": 0},
    ]
    for options in cases:
        expected = copies(SequenceLoader(local, **{**OPTIONS, **options}))
        same(from_device(gpu, on_gpu(remote, **options)), expected)
    # All bytes are read to the memory that kernels read, and none to the other.
    assert read[method == "none"] > 0 and not read[method != "none"]
    assert "gear_collect" in gpu.cupy.launched


@every_method
def test_another_discount(folder, gpu, serve, world, method):
    """The values of one column are local, the values of the others are remote."""
    local = gear_data.open(folder).with_discount(0.5)
    remote = gear_data.open(f"gear://{serve()}", transport="verbs").with_discount(0.5)
    options = {**OPTIONS, "columns": ["returns_to_go", "observations"]}
    same(from_device(gpu, on_gpu(remote, **options)), copies(SequenceLoader(local, **options)))


@every_method
def test_rows_that_arrive_by_flight(folder, gpu, serve, world, caplog, method):
    place = f"gear://{serve()}"
    local, auto, verbs = gear_data.open(folder), gear_data.open(place), gear_data.open(place, transport="verbs")
    if method == "DMA-BUF":
        same(from_device(gpu, on_gpu(auto)), copies(SequenceLoader(local, **OPTIONS)))
    world.broken = True
    with caplog.at_level(logging.WARNING, "gear_data"):
        same(from_device(gpu, on_gpu(auto)), copies(SequenceLoader(local, **OPTIONS)))
    assert [record.message for record in caplog.records if "by Arrow Flight for 60 s" in record.message]
    with pytest.raises(NodeUnreachableError, match="RDMA READ failed"):
        next(iter(on_gpu(verbs)))
    world.broken = False
    same(from_device(gpu, on_gpu(verbs)), copies(SequenceLoader(local, **OPTIONS)))


@by_gpu_memory
def test_regions_end_with_the_memory_of_the_gpu(folder, gpu, serve, world, method):
    remote = gear_data.open(f"gear://{serve()}", transport="verbs")
    before = len(world.regions)
    for context in range(3, 7):
        from_device(gpu, on_gpu(remote, context=context), 3)
        assert len(world.regions) == before
    assert not gpu.cupy.taken


def test_without_rdma_the_cpu_collects(folder, gpu, serve, world, caplog):
    remote = gear_data.open(f"gear://{serve(transport='flight')}")
    with caplog.at_level(logging.WARNING, "gear_data"):
        on_gpu(remote)
    assert "other machines send the steps, and not by RDMA" in caplog.text


@pytest.mark.parametrize(
    ("supported", "status", "message"),
    [(0, 0, "neither peer memory nor DMA-BUF"), (1, 801, r"CUresult 801")],
    ids=["no method", "refused"],
)
def test_gpu_memory_that_cannot_be_registered(gpu, world, monkeypatch, tmp_path, supported, status, message):
    monkeypatch.setattr(gpu_memory, "_MODULES", (tmp_path / "none",))
    monkeypatch.setattr(gpu_memory, "open_driver", lambda: Driver(world, supported, status))
    device = SimpleNamespace(port=stand_in.PORT)
    with pytest.raises(DeviceError, match=message) as raised:
        gpu_memory.register_gpu_memory(device, 1 << 16, 1 << 16, 1)
    assert "nvidia-peermem" in str(raised.value)


def test_without_a_driver(world, monkeypatch, tmp_path):
    def missing():
        raise OSError("libcuda.so.1: no such file")

    monkeypatch.setattr(gpu_memory, "_MODULES", (tmp_path / "none",))
    monkeypatch.setattr(gpu_memory, "open_driver", missing)
    assert gpu_memory.gpu_transfer_method(0) is None


@pytest.mark.parametrize("on_device", [False, True])
def test_a_staging_buffer_copies_each_piece_to_its_address(gpu, on_device):
    stage, rng = StagingBuffer(5000, on_device=on_device), np.random.default_rng(0)
    assert isinstance(stage.memory, DeviceBuffer) == on_device
    first, second = stage.take(700), stage.take(4000)
    assert second == first + 768
    sizes = np.array([3, 40, 1, 0, 8])
    places = np.array([first + 600, second + 5, second + 45, second + 45, first])
    data = rng.integers(0, 256, int(sizes.sum()), np.uint8)
    stage.put(data, sizes, places)
    ends = np.cumsum(sizes)
    for place, begin, end in zip(places.tolist(), (ends - sizes).tolist(), ends.tolist(), strict=True):
        assert ctypes.string_at(place, end - begin) == data[begin:end].tobytes()
