"""Work requests for READs, as arrays in the memory layout of libibverbs.

One call posts a whole batch.

The layouts of `struct ibv_send_wr`, `ibv_sge` and `ibv_wc` are defined in <infiniband/verbs.h>. They are part of the
library's binary interface.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.selection.windows import Int64Array

WORK_REQUEST = np.dtype(
    {
        "names": ["wr_id", "next", "sg_list", "num_sge", "opcode", "send_flags", "remote_addr", "rkey"],
        "formats": ["<u8", "<u8", "<u8", "<i4", "<i4", "<u4", "<u8", "<u4"],
        "offsets": [0, 8, 16, 24, 28, 32, 40, 48],
        "itemsize": 128,
    }
)
SGE = np.dtype([("addr", "<u8"), ("length", "<u4"), ("lkey", "<u4")])
COMPLETION = np.dtype(
    {
        "names": ["wr_id", "status", "opcode", "vendor_err"],
        "formats": ["<u8", "<i4", "<i4", "<u4"],
        "offsets": [0, 8, 12, 16],
        "itemsize": 48,
    }
)

_RDMA_READ = 4  # IBV_WR_RDMA_READ
_SIGNALED = 2  # IBV_SEND_SIGNALED
#: One in this many READs requests a completion, which also completes all READs before it.
SIGNAL_EVERY = 64


@dataclass(frozen=True)
class Reads:
    """R READs, int64 [R] each.

    Attributes:
        remote, rkey: remote address, and the key of that memory.
        local, lkey: local address, and the key of that memory.
        size: bytes.
    """

    remote: Int64Array
    rkey: Int64Array
    local: Int64Array
    lkey: Int64Array
    size: Int64Array

    def __len__(self) -> int:
        return len(self.size)

    def merged(self, largest: int) -> Reads:
        """Returns the fewest READs that move the same bytes.

        READs that are adjacent at both ends become one READ, of at most `largest` bytes. Larger READs are split, and
        empty READs are dropped.
        """
        some = self.size > 0
        reads = self if some.all() else self._take(some)
        if not len(reads):
            return reads
        begins = np.ones(len(reads), np.bool_)
        begins[1:] = (
            (reads.remote[1:] != reads.remote[:-1] + reads.size[:-1])
            | (reads.local[1:] != reads.local[:-1] + reads.size[:-1])
            | (reads.rkey[1:] != reads.rkey[:-1])
            | (reads.lkey[1:] != reads.lkey[:-1])
        )
        first = np.flatnonzero(begins)
        sizes = np.add.reduceat(reads.size, first)
        runs = Reads(reads.remote[first], reads.rkey[first], reads.local[first], reads.lkey[first], sizes)
        return runs if int(sizes.max()) <= largest else runs._split_large(largest)

    def split(self, count: int) -> list[Reads]:
        """Returns the same READs as `count` consecutive runs of about equal bytes.

        A run may be empty.
        """
        if count == 1:
            return [self]
        # Position of the middle of each READ among all bytes, 0 to 1.
        middle = (np.cumsum(self.size) - self.size / 2) / max(1, int(self.size.sum()))
        ends = np.searchsorted(middle, np.arange(count + 1) / count).tolist()
        return [self._take(slice(first, last)) for first, last in pairwise(ends)]

    def _take(self, which: npt.NDArray[Any] | slice) -> Reads:
        return Reads(self.remote[which], self.rkey[which], self.local[which], self.lkey[which], self.size[which])

    def _split_large(self, largest: int) -> Reads:
        parts = -(-self.size // largest)
        whole = self._take(np.repeat(np.arange(len(self)), parts))
        offset = (np.arange(len(whole)) - np.repeat(np.cumsum(parts) - parts, parts)) * largest
        size = np.minimum(whole.size - offset, largest)
        return Reads(whole.remote + offset, whole.rkey, whole.local + offset, whole.lkey, size)


class WorkRequestList:
    """READs as a linked list of work requests.

    Attributes:
        requests: WORK_REQUEST [R]. `wr_id` counts from 1, so that a completion tells how many READs are done.
        address: address of the first request.
    """

    def __init__(self, reads: Reads) -> None:
        count = len(reads)
        self._targets = np.empty(count, SGE)
        self._targets["addr"], self._targets["length"], self._targets["lkey"] = reads.local, reads.size, reads.lkey
        self.requests = np.zeros(count, WORK_REQUEST)
        number = np.arange(1, count + 1)
        self.address = int(self.requests.ctypes.data)
        self.requests["wr_id"] = number
        self.requests["next"] = self.address + number * WORK_REQUEST.itemsize
        self.requests["sg_list"] = self._targets.ctypes.data + (number - 1) * SGE.itemsize
        self.requests["num_sge"] = 1
        self.requests["opcode"] = _RDMA_READ
        self.requests["send_flags"][SIGNAL_EVERY - 1 :: SIGNAL_EVERY] = _SIGNALED
        self.requests["send_flags"][-1:] = _SIGNALED
        self.requests["next"][-1:] = 0
        self.requests["remote_addr"], self.requests["rkey"] = reads.remote, reads.rkey

    def __len__(self) -> int:
        return len(self.requests)

    def section(self, first: int, last: int) -> int:
        """Returns the address of request `first`, and ends the list before request `last`."""
        self.requests["next"][last - 1] = 0
        return self.address + first * WORK_REQUEST.itemsize
