"""A stand-in for the parts of CuPy that gear-data uses, without a GPU.

Device memory is memory of this process, and kernels run on the CPU by `cuda_shim`. Streams are queues. An operation
runs as late as possible: when something that waits for it is itself waited for. Operations of `eager` streams run at
once. So missing waits show. A copy from memory that is overwritten too early copies the new bytes. A consumer that
reads a batch without waiting, or a collector that fills a batch that is still read, gets wrong bytes. Memory is filled
with a pattern when it is allocated and when it is freed.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from gear_data.residency.device.memory import TO_DEVICE
from tests.support.cuda.host_registration import HostRegistration
from tests.support.cuda.runner import CONSTANTS, KERNELS, parameter_counts
from tests.support.cuda.streams import CudaError, Raw, Record, Streams
from tests.support.cuda.torch_stand_in import TorchStandIn

#: Name of a kernel -> number of its parameters.
KERNEL_PARAMETERS = {
    name: count for path in KERNELS.glob("*.cu") for name, count in parameter_counts(path.read_text()).items()
}


class PinnedPointer(np.ndarray):
    """Memory that can be viewed as an array, like CuPy's. Views keep it alive."""

    @property
    def ptr(self) -> int:
        return int(self.ctypes.data)


class CupyStandIn(SimpleNamespace):
    """The stand-in for the module `cupy`, with a record of its use.

    Attributes:
        allocations: allocations of device memory so far.
        host_registration: registered host memory.
        launched: names of the launched kernels.
        operations: names of the operations that streams received: kernels, `copy` and `fill`.
    """

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.device_memory: dict[int, int] = {}
        self.pinned_memory: dict[int, int] = {}
        self.allocations = 0
        self.launched: list[str] = []
        self.operations: list[str] = []
        self.torch: TorchStandIn | None = None
        self.host_registration = HostRegistration(CudaError)
        self.mapped_bytes: Callable[[], int] = lambda: 0

    @property
    def registered(self) -> dict[int, int]:
        """Returns address -> bytes of registered host memory."""
        return self.host_registration.registered

    @property
    def taken(self) -> int:
        """Returns the bytes of device memory that are held."""
        return sum(self.device_memory.copy().values()) + self.mapped_bytes()

    @property
    def pinned(self) -> int:
        """Returns the number of pieces of pinned memory that are held."""
        return len(self.pinned_memory)


def launch_buffer(extra: int) -> list[int]:
    """Returns the arguments of a launch, given the address of cuLaunchKernel's list `extra`."""
    pointer_kind, address, size_kind, size, end = (ctypes.c_uint64 * 5).from_address(extra)
    # CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END
    assert (pointer_kind, size_kind, end) == (1, 2, 0)
    nbytes = ctypes.c_size_t.from_address(size).value
    assert nbytes % 8 == 0
    return list((ctypes.c_uint64 * (nbytes // 8)).from_address(address))


def make_cupy(streams: Streams, libraries: dict[str, ctypes.PyDLL], device_bytes: int) -> CupyStandIn:
    """Makes a stand-in for CuPy.

    device_bytes: size of the device's memory.
    """
    fake = CupyStandIn(streams)
    handles = itertools.count(100)
    events: dict[int, Event] = {}
    functions: dict[int, tuple[ctypes.PyDLL, str]] = {}
    local = threading.local()

    class Graph:
        def __init__(self, operations: list[Callable[[], None]]) -> None:
            self._operations = operations

        def launch(self) -> None:
            for operation in self._operations:
                streams.add(current_stream(), operation)

    class Event:
        def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
            self.timed = not disable_timing
            self.ptr = next(handles)
            self.last: Record | None = None
            events[self.ptr] = self

        def record(self, stream: Stream | None = None) -> None:
            record_event(self.ptr, current_stream() if stream is None else stream.ptr)

        def synchronize(self) -> None:
            streams.complete(self.last)

    class Stream:
        def __init__(self, non_blocking: bool = False) -> None:
            assert non_blocking
            self.ptr = next(handles)

        def wait_event(self, event: Event) -> None:
            wait_event(self.ptr, event.ptr)

        def synchronize(self) -> None:
            streams.finish(self.ptr)

        def begin_capture(self) -> None:
            streams.capture(self.ptr)

        def end_capture(self) -> Graph:
            return Graph(streams.end_capture(self.ptr))

        def __enter__(self) -> None:
            local.stream = self.ptr

        def __exit__(self, *error: object) -> None:
            del local.stream

    class ExternalStream(Stream):
        def __init__(self, ptr: int) -> None:
            self.ptr = ptr

    def current_stream() -> int:
        return getattr(local, "stream", 0)

    def elapsed(begin: Event, end: Event) -> float:
        records = begin.last, end.last
        if not all(record is not None and record.done for record in records) or not (begin.timed and end.timed):
            raise CudaError(600)
        return 1e3 * (end.last.at - begin.last.at)

    def record_event(event: int, stream: int) -> None:
        events[event].last = streams.record(stream)

    def wait_event(stream: int, event: int) -> None:
        streams.wait(stream, events[event].last)

    def copy(target: int, source: int, size: int, kind: int, stream: int) -> None:
        # Kind 4 (cudaMemcpyDefault): CUDA derives the direction from the addresses.
        fake.operations.append("copy")
        here = {1: source, 2: target, 4: None}[kind]
        if here is not None and here not in fake.host_registration:
            assert any(first <= here and here + size <= last for first, last in pinned.copy().items())
        streams.add(stream, lambda: ctypes.memmove(target, source, size) and None)

    def check_status(status: int) -> None:
        if status:
            raise fake.cuda.driver.CUDADriverError(status)

    def fill(at: int, value: int, size: int, stream: int) -> None:
        fake.operations.append("fill")
        streams.add(stream, lambda: ctypes.memset(at, value, size) and None)

    def copy_pageable(target: int, source: int, size: int, kind: int) -> None:
        """Copies pageable memory.

        A copy to the device may end after the call: see "API synchronization behavior" in CUDA's documentation.
        """
        assert kind in (TO_DEVICE, 4)
        streams.finish(0)
        to_device = any(first <= target < first + size for first, size in fake.device_memory.copy().items())
        assert to_device or kind == 4
        data = ctypes.string_at(source, size)
        streams.add(0, lambda: ctypes.memmove(target, data, size) and None)
        if not to_device:
            streams.finish(0)

    pinned = fake.pinned_memory

    class Memory:
        def __init__(self, size: int) -> None:
            self._raw = None
            if fake.taken + size > device_bytes:
                raise OutOfMemory(f"out of memory allocating {size} bytes")
            self._raw, self.size = Raw(size, 0xA5), size
            self.ptr = self._raw.ptr
            fake.device_memory[self.ptr] = size
            fake.allocations += 1

        def __del__(self) -> None:
            if self._raw is not None:
                streams.finish_all()
                self._raw.fill(0x5A)
                del fake.device_memory[self.ptr]

    class PinnedMemory:
        def __init__(self, size: int, flags: int) -> None:
            assert flags == 1
            self._raw = Raw(size, 0xA5)
            self.ptr = self._raw.ptr
            pinned[self.ptr] = self.ptr + size

        def __del__(self) -> None:
            streams.finish_all()
            self._raw.fill(0x5A)
            del pinned[self.ptr]

    class OutOfMemory(MemoryError):
        pass

    def allocate_pinned(size: int) -> PinnedPointer:
        memory = PinnedMemory(size, 1)
        memory.__array_interface__ = {"data": (memory.ptr, False), "shape": (size,), "typestr": "|u1", "version": 3}
        return np.asarray(memory).view(PinnedPointer)

    class Array:
        def __init__(self, shape: tuple[int], dtype: Any, memptr: Any) -> None:
            self._memory = memptr
            interface = {"data": (memptr.ptr, False), "shape": shape, "typestr": "|u1", "version": 3}
            assert np.dtype(dtype) == np.uint8
            self.__array_interface__ = interface

        def __dlpack__(self, stream: int) -> Any:
            assert stream == -1
            return np.asarray(self).__dlpack__()

    class Device:
        def __init__(self, number: int) -> None:
            if number:
                raise CudaError(101)
            self.attributes = {"MultiProcessorCount": 2}

        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None: ...

    class RawModule:
        def __init__(self, code: str, options: tuple[str, ...], backend: str) -> None:
            (self._library,) = (each for name, each in libraries.items() if (KERNELS / name).read_text() == code)
            if options[1:] not in ((), CONSTANTS):
                raise fake.cuda.compiler.CompileException("the stand-in has only the default constants")

        def get_function(self, name: str) -> Any:
            handle = next(handles)
            functions[handle] = self._library, name
            return SimpleNamespace(kernel=SimpleNamespace(ptr=handle))

    def launch(function: int, *numbers: int) -> None:
        """Launches a kernel as cuLaunchKernel does. The arguments are copied before the call returns."""
        gx, gy, gz, bx, by, bz, shared, stream, parameters, extra = numbers
        assert (gy, gz, by, bz, shared, parameters) == (1, 1, 1, 1, 0, 0)
        library, name = functions[function]
        arguments = launch_buffer(extra)
        assert len(arguments) == KERNEL_PARAMETERS[name], name
        given = (ctypes.c_uint64 * 24)(*arguments)
        entry = ctypes.cast(getattr(library, name), ctypes.c_void_p)
        fake.launched.append(name)
        fake.operations.append(name)
        streams.add(stream, lambda: library.shim_launch(entry, gx, bx, given) and None)

    def device_pointer(address: int) -> int:
        allocated = any(first <= address < last for first, last in pinned.items())
        return address if allocated or address in fake.host_registration else 0

    fake.stand_in = True
    fake.__version__, fake.RawModule, fake.ndarray = "0", RawModule, Array
    fake.get_default_memory_pool = fake.get_default_pinned_memory_pool = lambda: SimpleNamespace(
        free_all_blocks=lambda: None
    )
    fake.cuda = SimpleNamespace(
        alloc=Memory,
        alloc_pinned_memory=allocate_pinned,
        get_current_stream=lambda: SimpleNamespace(ptr=current_stream()),
        get_elapsed_time=elapsed,
        Device=Device,
        Stream=Stream,
        ExternalStream=ExternalStream,
        Event=Event,
        Memory=Memory,
        PinnedMemory=PinnedMemory,
        UnownedMemory=lambda ptr, size, owner, device: SimpleNamespace(ptr=ptr, owner=owner),
        MemoryPointer=lambda memory, offset: SimpleNamespace(ptr=memory.ptr + offset, memory=memory),
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemory),
        compiler=SimpleNamespace(CompileException=type("CompileException", (Exception,), {})),
        driver=SimpleNamespace(
            launchKernel=launch, check_status=check_status, CUDADriverError=type("CUDADriverError", (CudaError,), {})
        ),
        nvrtc=SimpleNamespace(NVRTCError=type("NVRTCError", (CudaError,), {}), getVersion=lambda: (13, 0)),
        runtime=SimpleNamespace(
            CUDARuntimeError=CudaError,
            runtimeGetVersion=lambda: 13000,
            driverGetVersion=lambda: 13000,
            getDeviceProperties=lambda number: {
                "name": b"made up",
                "totalGlobalMem": device_bytes,
                "l2CacheSize": 1,
                "multiProcessorCount": 2,
                "uuid": b"made up",
            },
            memGetInfo=lambda: (device_bytes - fake.taken, device_bytes),
            deviceGetPCIBusId=lambda number: f"0000:0{number}:00.0",
            getDevice=lambda: 0,
            deviceSynchronize=streams.finish_all,
            memcpy=copy_pageable,
            streamSynchronize=streams.finish,
            memcpyAsync=copy,
            memsetAsync=fill,
            eventRecord=record_event,
            streamWaitEvent=wait_event,
            hostRegister=fake.host_registration.register,
            hostUnregister=fake.host_registration.unregister,
            pointerGetAttributes=lambda address: SimpleNamespace(devicePointer=device_pointer(address)),
            deviceGetAttribute=lambda attribute, device: fake.host_registration.attributes[attribute],
        ),
    )
    return fake
