"""Stand-in for pyverbs and a device in one process.

A posted READ is copied at once, if its keys and bounds are valid.

`guest_checks` tests the further behaviour of a device with soft-RoCE.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gear_data.cluster import transport_names as transport_module
from gear_data.cluster.rdma import device as device_module
from gear_data.cluster.rdma import queue_pair as queue_pair_module
from gear_data.cluster.rdma.ports import ETHERNET, Port

LOCAL_WRITE, REMOTE_READ = 1, 4
PORT = Port("fake0", 1, ETHERNET, 0, "::ffff:10.9.0.1", 1)
_OK, _LOCAL_PROTECTION, _FLUSHED, _REMOTE_ACCESS = 0, 4, 5, 10


class SendWr(ctypes.Structure):
    """struct ibv_send_wr, with the fields of a READ."""


class Sge(ctypes.Structure):
    _fields_ = [("addr", ctypes.c_uint64), ("length", ctypes.c_uint32), ("lkey", ctypes.c_uint32)]


SendWr._fields_ = [
    ("wr_id", ctypes.c_uint64),
    ("next", ctypes.POINTER(SendWr)),
    ("sg_list", ctypes.POINTER(Sge)),
    ("num_sge", ctypes.c_int),
    ("opcode", ctypes.c_int),
    ("send_flags", ctypes.c_uint),
    ("imm_data", ctypes.c_uint32),
    ("remote_addr", ctypes.c_uint64),
    ("rkey", ctypes.c_uint32),
    ("others", ctypes.c_uint8 * 72),
]


class Wc(ctypes.Structure):
    _fields_ = [
        ("wr_id", ctypes.c_uint64),
        ("status", ctypes.c_int),
        ("opcode", ctypes.c_int),
        ("vendor_err", ctypes.c_uint32),
        ("others", ctypes.c_uint8 * 28),
    ]


def walk(address: int) -> list[SendWr]:
    """Returns the requests of a linked list."""
    found, each = [], ctypes.cast(address, ctypes.POINTER(SendWr))
    while each:
        found.append(each.contents)
        each = each.contents.next
    return found


class StandIn:
    """State of the stand-in: its objects, and the READs so far."""

    def __init__(self) -> None:
        self.regions: dict[int, tuple[int, int, int]] = {}
        self.pairs: set[int] = set()
        self.reads: list[int] = []  # bytes of each READ
        self.posts: list[int] = []  # READs of each post
        self.broken = False  # whether every READ fails as if the peer were gone
        self.read_by: Counter[int] = Counter()  # bytes by queue pair
        self.files: dict[int, int] = {}  # DMA-BUF file -> address of its memory
        self.shifts: dict[int, int] = {}  # key -> address of the region's first byte
        #: Called after each READ with the remote address, the local address and the size; may change the bytes.
        self.spoil: Callable[[int, int, int], None] | None = None
        self._numbers = itertools.count(17)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        world = self

        class Part:
            def __init__(self, *args: Any, **options: Any) -> None:
                self.number = next(world._numbers)
                self.options = options

            def close(self) -> None:
                pass

        class Context(Part):
            def query_device(self) -> Any:
                return SimpleNamespace(max_qp_rd_atom=16, max_qp_init_rd_atom=8, max_qp_wr=256)

            def query_port(self, number: int) -> Any:
                return SimpleNamespace(active_mtu=3, max_msg_sz=1 << 20)

        class MR(Part):
            def __init__(self, domain: Any, size: int, access: int, address: int) -> None:
                super().__init__()
                self.lkey = self.rkey = self.number
                world.regions[self.number] = (address, size, access)

            def close(self) -> None:
                world.regions.pop(self.number, None)

        class DmaBufMR(MR):
            def __init__(self, domain: Any, size: int, access: int, dmabuf: int) -> None:
                super().__init__(domain, size, access, 0)
                os.fstat(dmabuf)
                world.shifts[self.number] = world.files[dmabuf]

        class QP(Part):
            def __init__(self, domain: Any, how: Any) -> None:
                super().__init__()
                self.qp_num = self.number
                world.pairs.add(self.number)

            def to_rts(self, attributes: Any) -> None:
                self.peer = attributes.dest_qp_num

            def close(self) -> None:
                world.pairs.discard(self.number)

        class Attributes(SimpleNamespace):
            pass

        error = type("PyverbsError", (Exception,), {})
        modules = {
            "": {},
            ".device": {"Context": Context},
            ".pd": {"PD": Part},
            ".cq": {"CQ": Part},
            ".mr": {"MR": MR, "DmaBufMR": DmaBufMR},
            ".qp": {"QP": QP, "QPAttr": Attributes, "QPCap": Part, "QPInitAttr": Part},
            ".addr": {"GID": Part, "GlobalRoute": Part, "AHAttr": Part},
            ".enums": {
                "IBV_ACCESS_LOCAL_WRITE": LOCAL_WRITE, "IBV_ACCESS_REMOTE_READ": REMOTE_READ, "IBV_QPT_RC": 2,
            },
            ".pyverbs_error": {"PyverbsError": error},
        }  # fmt: skip
        for name, contents in modules.items():
            module = ModuleType(f"pyverbs{name}")
            vars(module).update(contents)
            patch.setitem(sys.modules, f"pyverbs{name}", module)
        for module in (device_module, transport_module):
            patch.setattr(module, "choose_port", lambda: PORT)
        patch.setattr(queue_pair_module, "VerbsCalls", lambda pair: VerbsCalls(self, pair))

    def wait_for_no_pairs(self) -> None:
        """Waits until all queue pairs are closed.

        A node closes its end when it notices that the client has.
        """
        limit = time.monotonic() + 120
        while self.pairs:
            assert time.monotonic() < limit, self.pairs
            time.sleep(0.01)

    def allows(self, address: int, size: int, key: int, access: int) -> bool:
        start, length, allowed = self.regions.get(key, (0, 0, 0))
        return bool(allowed & access) and start <= address and address + size <= start + length


class VerbsCalls:
    """The calls of one queue pair. A poll returns at most three completions."""

    def __init__(self, world: StandIn, pair: Any) -> None:
        self._world, self._pair = world, pair
        self._done: deque[tuple[int, int]] = deque()
        self._failed = False

    def post(self, address: int) -> int:
        requests = walk(address)
        self._world.posts.append(len(requests))
        for request in requests:
            status = self._read(request)
            self._failed = self._failed or status != _OK
            if request.send_flags & 2 or status:
                self._done.append((request.wr_id, status))
        return 0

    def _read(self, request: SendWr) -> int:
        place, world = request.sg_list.contents, self._world
        if self._failed:
            return _FLUSHED
        if world.broken or self._pair.peer not in world.pairs:
            return 12  # no answer
        if not world.allows(request.remote_addr, place.length, request.rkey, REMOTE_READ):
            return _REMOTE_ACCESS
        if not world.allows(place.addr, place.length, place.lkey, LOCAL_WRITE):
            return _LOCAL_PROTECTION
        target = world.shifts.get(place.lkey, 0) + place.addr
        ctypes.memmove(target, request.remote_addr, place.length)
        world.reads.append(place.length)
        world.read_by[self._pair.number] += place.length
        if world.spoil is not None:
            world.spoil(request.remote_addr, target, place.length)
        return _OK

    def poll(self, most: int, address: int) -> int:
        count = min(most, len(self._done), 3)
        for wc in (Wc * count).from_address(address) if count else ():
            wc.wr_id, wc.status = self._done.popleft()
        return count
