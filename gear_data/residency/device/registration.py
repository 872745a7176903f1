"""RegisteredMemory: shared memory that CUDA has registered for kernels to read.

Why: docs/explanation/decisions/memory.md
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import mmap
import os
import weakref
from typing import Any

import pyarrow as pa

from gear_data.common.extras import import_extra
from gear_data.errors import DeviceError, DeviceMemoryError, HostMemoryError, InvalidArgumentError
from gear_data.kernels.cuda.launcher import cuda_errors
from gear_data.residency.shared_memory import writable

_log = logging.getLogger(__name__)
#: If CUDA does not register shared memory: `error` (default), or `copy`.
FALLBACK_VARIABLE = "GEAR_DATA_PINNED_FALLBACK"
#: cudaHostRegisterPortable, cudaHostRegisterMapped and cudaHostRegisterReadOnly; CuPy has no names for them.
_PORTABLE, _MAPPED, _READ_ONLY = 1, 2, 8
#: cudaDevAttrHostRegisterReadOnlySupported. It is 0 on x86 with a discrete GPU, where the flag gives NotSupported.
_READ_ONLY_SUPPORTED = 113


class RegisteredMemory:
    """A registrable segment of shared memory that devices read in place.

    The mapping is registered as long as this object lives. CUDA needs a writable mapping for that: it is writable while
    CUDA registers it, and read-only afterwards. Pages that are pinned stay readable by devices.

    A forked child has the mapping, but must not use it on a device.

    Args:
        buffer: the mapping, see `map_segment`.

    Attributes:
        shift: address on the device minus address in this process.

    Raises:
        DeviceError: the device or its driver does not register such memory.
        HostMemoryError: the driver cannot pin this much memory.
    """

    def __init__(self, buffer: pa.Buffer) -> None:
        runtime = import_extra("cupy", "gpu").cuda.runtime
        doing = f"registering {buffer.size:,} bytes of shared memory"
        try:
            with cuda_errors(doing), writable(buffer):
                # Older drivers register whole pages only; a mapping has whole pages.
                size = -(-buffer.size // mmap.PAGESIZE) * mmap.PAGESIZE
                runtime.hostRegister(buffer.address, size, _flags(runtime))
        except DeviceMemoryError as error:
            raise HostMemoryError(error.message, hint=_remedy(buffer)) from error
        except DeviceError as error:
            raise DeviceError(error.message, hint=_remedy(buffer)) from error
        except OSError as error:
            raise DeviceError(f"{doing}: mprotect: {error.strerror}", hint=_remedy(buffer)) from error
        # The finalizer holds `buffer`, so the memory is unregistered before it is unmapped.
        self.close = weakref.finalize(self, _unregister, runtime, buffer, os.getpid())
        self.close.atexit = False
        _registered.add(self)
        with cuda_errors(doing):
            pointer = int(runtime.pointerGetAttributes(buffer.address).devicePointer)
        if not pointer:
            self.close()
            raise DeviceError(f"{doing}: the memory has no address on the device", hint=_remedy(buffer))
        self.shift = pointer - buffer.address


def register(buffer: pa.Buffer) -> RegisteredMemory | None:
    """Registers a segment of shared memory.

    Returns:
        None if CUDA refuses, and $GEAR_DATA_PINNED_FALLBACK allows a copy for each process. A warning is logged.

    Raises:
        DeviceError, HostMemoryError: CUDA refuses; see `RegisteredMemory`.
        InvalidArgumentError: $GEAR_DATA_PINNED_FALLBACK has an invalid value.
    """
    fallback = os.environ.get(FALLBACK_VARIABLE, "")
    if fallback not in ("", "error", "copy"):
        raise InvalidArgumentError(f"${FALLBACK_VARIABLE} is {fallback!r}; set it to error or copy")
    try:
        return RegisteredMemory(buffer)
    except (DeviceError, HostMemoryError) as error:
        if fallback != "copy":
            raise
        _log.warning("%s; this process makes its own pinned copy", error.message)
        return None


def _flags(runtime: Any) -> int:
    supported = runtime.deviceGetAttribute(_READ_ONLY_SUPPORTED, runtime.getDevice())
    return _PORTABLE | _MAPPED | (_READ_ONLY if supported else 0)


def _remedy(buffer: pa.Buffer) -> str:
    return (
        f"set {FALLBACK_VARIABLE}=copy: each process then makes its own pinned copy, {buffer.size:,} bytes; or use "
        "residency='device', residency='host', or a plan with host_bytes=0"
    )


def _unregister(runtime: Any, buffer: pa.Buffer, process: int) -> None:
    if os.getpid() == process:
        # After an error that ends the CUDA context there is nothing left to unregister.
        with contextlib.suppress(runtime.CUDARuntimeError):
            runtime.deviceSynchronize()
            runtime.hostUnregister(buffer.address)


#: Registered memory, to unregister before the CUDA context ends. Exit handlers run in reverse order. This module is
#: imported before modules that start threads which launch kernels, so these threads have ended by then.
_registered: weakref.WeakSet[RegisteredMemory] = weakref.WeakSet()


@atexit.register
def _unregister_all() -> None:
    for memory in list(_registered):
        memory.close()
