"""QueuePair: a reliable connection to read another process's memory."""

from __future__ import annotations

import ipaddress
import math
import os
import secrets
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from gear_data.cluster.rdma.device import Device
from gear_data.cluster.rdma.messages import QueuePairEnd
from gear_data.cluster.rdma.native import VerbsCalls
from gear_data.cluster.rdma.ports import ETHERNET
from gear_data.cluster.rdma.pyverbs_library import verbs_errors
from gear_data.cluster.rdma.work_requests import COMPLETION, SIGNAL_EVERY, WorkRequestList
from gear_data.errors import ClusterError, DeviceError, NodeRefusedError, NodeUnreachableError

#: Work requests that a queue pair holds, and completions that one poll takes.
_DEPTH, _POLL_LIMIT = 1024, 64
#: Retries of the device before it gives up. Not 7, which soft-RoCE treats as infinite.
_RETRIES = 6
#: The device gives up after this share of the timeout, or earlier.
_GIVE_UP_SHARE = 0.25
_TIMEOUT_UNIT = 4.096e-6
#: Meaning of the numbers of `enum ibv_wc_status` for a READ.
_UNREACHABLE = {12: "the peer did not answer", 13: "the peer was never ready", 20: "the peer did not answer in time"}
_REFUSED = {
    7: "the peer sent an invalid answer to a READ",
    9: "the peer does not accept such requests",
    10: "the memory may not be read: the key is unknown or was withdrawn, or the range ends past the region",
    11: "the peer could not read its memory",
    16: "the peer gave up",
}
_LOCAL = {
    1: "the target is too small",
    2: "the queue pair is in an invalid state",
    4: "the target memory is not registered for writing",
    5: "flushed after an earlier error",
}


@dataclass
class _Posted:
    """A list of READs, and how many of them are posted and done."""

    requests: WorkRequestList
    posted: int = 0
    done: int = 0


class QueuePair:
    """One end of a reliable connection. Used by one thread at a time.

    Args:
        device: the device; it must live longer than this object.
        can_be_read: whether the other end may read registered memory through it. If not, this end reads.

    Attributes:
        posted, done: number of lists that were posted, and number of lists that are done.
        end: description of this end for the other end.

    Raises:
        DeviceError: the device cannot create a queue pair.
    """

    def __init__(self, device: Device, *, can_be_read: bool) -> None:
        library, enums = device.library, device.library.enums
        self._device, self._can_be_read = device, can_be_read
        max_depth = max(1, min(_DEPTH, device.max_requests) // SIGNAL_EVERY) * SIGNAL_EVERY
        self._depth = SIGNAL_EVERY if can_be_read else max_depth
        with verbs_errors(f"creating a queue pair with {device.port.device}"):
            # The completion queue is as long as the queue of requests. If all requests fail, each has a completion, and
            # a completion queue that overflows is unusable.
            self._queue = library.cq.CQ(device.context, self._depth)
            capacity = library.qp.QPCap(max_send_wr=self._depth, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
            attributes = library.qp.QPInitAttr(
                qp_type=enums.IBV_QPT_RC, scq=self._queue, rcq=self._queue, cap=capacity, sq_sig_all=0
            )
            self._pair = library.qp.QP(device.domain, attributes)
        self._calls = VerbsCalls(self._pair)
        self._completions = np.zeros(_POLL_LIMIT, COMPLETION)
        self._lists: deque[_Posted] = deque()
        self.posted, self.done = 0, 0
        self._in_flight = 0
        port = device.port
        self.end = QueuePairEnd(
            self._pair.qp_num,
            secrets.randbits(24),
            port.link,  # type: ignore[arg-type]
            port.lid,
            port.gid,
            device.mtu,
            device.reads,
        )

    def connect(self, peer: QueuePairEnd, timeout: float) -> None:
        """Connects this end to the other end.

        Args:
            peer: the other end.
            timeout: seconds that a READ may take.

        Raises:
            NodeRefusedError: the other end is on another kind of network.
            DeviceError: the connection fails.
        """
        library, enums, port = self._device.library, self._device.library.enums, self._device.port
        if peer.link != port.link:
            raise NodeRefusedError(
                f"its RDMA device is on {peer.link}, this one on {port.link}", hint="use transport='flight'"
            )
        gid = library.addr.GID(ipaddress.IPv6Address(peer.gid).exploded)
        route = library.addr.GlobalRoute(dgid=gid, sgid_index=port.gid_index, hop_limit=64)
        address = library.addr.AHAttr(
            dlid=peer.lid, gr=route, is_global=int(port.link == ETHERNET), port_num=port.number
        )
        attributes = library.qp.QPAttr(port_num=port.number)
        attributes.qp_access_flags = enums.IBV_ACCESS_REMOTE_READ if self._can_be_read else 0
        attributes.path_mtu, attributes.ah_attr = min(peer.mtu, self._device.mtu), address
        attributes.dest_qp_num, attributes.rq_psn, attributes.sq_psn = peer.number, peer.sequence, self.end.sequence
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = min(peer.reads, self._device.reads)
        attributes.timeout, attributes.retry_cnt, attributes.rnr_retry = _ack_timeout(timeout), _RETRIES, _RETRIES
        attributes.min_rnr_timer = 12
        with verbs_errors(f"connecting a queue pair of {port.device} to {peer.gid}"):
            # Goes through all states; each takes the attributes that it needs.
            self._pair.to_rts(attributes)

    def post(self, requests: WorkRequestList) -> None:
        """Adds READs. They are done after the READs before them.

        Raises:
            As `poll`.
        """
        if len(requests):
            self._lists.append(_Posted(requests))
            self.posted += 1
            self._send()

    def poll(self) -> bool:
        """Returns whether any READs completed since the last call. Never waits.

        The queue pair is unusable after an error.

        Raises:
            NodeUnreachableError: the other end does not answer.
            NodeRefusedError: the other end does not let this memory be read.
            DeviceError: this end failed.
        """
        count = self._calls.poll(_POLL_LIMIT, self._completions.ctypes.data)
        if count < 0:
            raise DeviceError(f"cannot poll the completions of {self._device.port.device} (error {count})")
        for completion in self._completions[:count]:
            status = int(completion["status"])
            if status:
                raise _error(status, int(completion["vendor_err"]))
            first = self._lists[0]
            self._in_flight -= int(completion["wr_id"]) - first.done
            first.done = int(completion["wr_id"])
            if first.done == len(first.requests):
                self._lists.popleft()
                self.done += 1
        if count:
            self._send()
        return count > 0

    def _send(self) -> None:
        """Posts as many READs as the queue pair can hold."""
        for each in self._lists:
            while each.posted < len(each.requests):
                room = self._depth - self._in_flight
                count = min(len(each.requests) - each.posted, room // SIGNAL_EVERY * SIGNAL_EVERY)
                if len(each.requests) - each.posted <= room:
                    count = len(each.requests) - each.posted
                if not count:
                    return
                error = self._calls.post(each.requests.section(each.posted, each.posted + count))
                if error:
                    raise DeviceError(f"{self._device.port.device} does not accept READs: {os.strerror(error)}")
                each.posted += count
                self._in_flight += count

    def close(self) -> None:
        """Closes the queue pair. Nothing is read or written through it after this call."""
        from pyverbs.pyverbs_error import PyverbsError

        for each in (self._pair, self._queue):
            with suppress(PyverbsError):
                each.close()
        self._lists.clear()


def _error(status: int, vendor: int) -> ClusterError | DeviceError:
    """Returns the error of a completion."""
    numbers = f"(completion status {status}, vendor error {vendor:#x})"
    if status in _UNREACHABLE:
        return NodeUnreachableError(f"RDMA READ failed: {_UNREACHABLE[status]} {numbers}")
    if status in _REFUSED:
        return NodeRefusedError(f"RDMA READ failed: {_REFUSED[status]} {numbers}")
    return DeviceError(f"RDMA READ failed: {_LOCAL.get(status, 'the device reported an error')} {numbers}")


def _ack_timeout(timeout: float) -> int:
    """Returns the time after which the device sends again.

    Its unit is 4.096 us * 2^value.
    """
    longest = timeout * _GIVE_UP_SHARE / (_RETRIES + 1)
    return min(max(int(math.log2(longest / _TIMEOUT_UNIT)), 8), 20)
