"""Stand-in for an RDMA device between processes of one machine.

A READ is process_vm_readv(2) of the other process.

A process with this folder's `site` on its PYTHONPATH installs it at its start, as `world`. Keys and bounds of the other
process's memory are not checked: `stand_in` does that within one process. A READ from an exited process gets no answer.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gear_data.cluster import transport_names as transport_module
from gear_data.cluster.rdma import device as device_module
from gear_data.cluster.rdma import queue_pair as queue_pair_module
from gear_data.cluster.rdma.ports import Port
from tests.support.rdma import stand_in

_LOCAL_PROTECTION, _NO_ANSWER = 4, 12
#: The last three numbers of a port's address are the process id, which is below 2^22.
_NETWORK = int(ipaddress.IPv6Address("::ffff:10.0.0.0"))


class _Span(ctypes.Structure):
    """struct iovec."""

    _fields_ = [("base", ctypes.c_uint64), ("length", ctypes.c_size_t)]


_readv = ctypes.CDLL(None, use_errno=True).process_vm_readv
_readv.argtypes = [ctypes.c_int, *[ctypes.POINTER(_Span), ctypes.c_ulong] * 2, ctypes.c_ulong]
_readv.restype = ctypes.c_ssize_t


def _port() -> Port:
    return replace(stand_in.PORT, gid=str(ipaddress.IPv6Address(_NETWORK + os.getpid())))


class ProcessStandIn(stand_in.StandIn):
    """State of the stand-in in this process."""

    def install(self, patch: pytest.MonkeyPatch) -> None:
        super().install(patch)
        queue_pair = sys.modules["pyverbs.qp"].QP

        class QP(queue_pair):  # type: ignore[misc]
            def to_rts(self, attributes: Any) -> None:
                super().to_rts(attributes)
                gid = attributes.ah_attr.options["gr"].options["dgid"].text
                self.process = int(ipaddress.IPv6Address(gid)) - _NETWORK

        patch.setattr(sys.modules["pyverbs.qp"], "QP", QP)
        patch.setattr(sys.modules["pyverbs.addr"], "GID", lambda text: SimpleNamespace(text=text))
        for module in (device_module, transport_module):
            patch.setattr(module, "choose_port", _port)
        patch.setattr(queue_pair_module, "VerbsCalls", lambda pair: _Calls(self, pair))


class _Calls(stand_in.VerbsCalls):
    def _read(self, request: stand_in.SendWr) -> int:
        place = request.sg_list.contents
        if not self._world.allows(place.addr, place.length, place.lkey, stand_in.LOCAL_WRITE):
            return _LOCAL_PROTECTION
        here, there = _Span(place.addr, place.length), _Span(request.remote_addr, place.length)
        if _readv(self._pair.process, here, 1, there, 1, 0) != place.length:
            return _NO_ANSWER
        self._world.reads.append(place.length)
        return 0


world = ProcessStandIn()
