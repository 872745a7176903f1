"""BatchCopy: many copies in one call of the CUDA driver, by the copy engines."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.extras import import_extra
from gear_data.kernels.cuda.driver_library import open_driver

#: The first CUDA version whose driver has cuMemcpyBatchAsync.
_FIRST_VERSION = 12080
#: CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: the sources are read in the order of the stream.
_STREAM_ORDER = 1
#: CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE: the multiprocessors stay free for other work.
_OVERLAP = 1


@dataclass(slots=True)  # not frozen: see Windows
class Copies:
    """Copies that are independent of each other.

    Attributes:
        targets, sources: int64 [N], addresses on the device.
        sizes: int64 [N], bytes, above 0.
    """

    targets: npt.NDArray[np.int64]
    sources: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes.

    The hints of locations are ignored for memory that is not managed.
    """

    _fields_ = (
        ("src_access_order", ctypes.c_int),
        ("src_location", ctypes.c_int * 2),
        ("dst_location", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


class BatchCopy:
    """Starts copies in a stream, all in one call.

    Args:
        driver: the CUDA driver's library. CUDA 13 added `cuMemcpyBatchAsync_v2`, which reports no failed copy.
        check_status: raises an error for a status other than 0.
    """

    def __init__(self, driver: Any, check_status: Any) -> None:
        self._check_status = check_status
        self._failed: tuple[Any, ...] = ()
        self._copy: Any = getattr(driver, "cuMemcpyBatchAsync_v2", None)
        if self._copy is None:
            self._copy, self._failed = driver.cuMemcpyBatchAsync, (ctypes.byref(ctypes.c_size_t()),)
        self._attributes, self._first = _Attributes(_STREAM_ORDER, flags=_OVERLAP), ctypes.c_size_t(0)

    def __call__(self, copies: Copies, stream: int) -> None:
        """Starts copies.

        Args:
            copies: at least one.
            stream: the handle of a stream other than the default stream, which CUDA refuses.
        """
        pointers = (ctypes.c_void_p(part.ctypes.data) for part in (copies.targets, copies.sources, copies.sizes))
        self._check_status(
            self._copy(
                *pointers, ctypes.c_size_t(len(copies.sizes)), ctypes.byref(self._attributes),
                ctypes.byref(self._first), ctypes.c_size_t(1), *self._failed, ctypes.c_void_p(stream),
            )
        )  # fmt: skip


def find_batch_copy() -> BatchCopy | None:
    """Returns a `BatchCopy`, or None if the driver is older than CUDA 12.8."""
    cuda = import_extra("cupy", "gpu").cuda
    if cuda.runtime.driverGetVersion() < _FIRST_VERSION:
        return None
    try:
        return BatchCopy(open_driver(), cuda.driver.check_status)
    except (OSError, AttributeError):
        return None
