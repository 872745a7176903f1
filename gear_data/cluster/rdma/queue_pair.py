"""A reliable connection between two processes, through which one reads the other's memory."""

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
from gear_data.cluster.rdma.library import verbs_errors
from gear_data.cluster.rdma.messages import QueuePairEnd
from gear_data.cluster.rdma.native import VerbsCalls
from gear_data.cluster.rdma.ports import ETHERNET
from gear_data.cluster.rdma.work import COMPLETION, SIGNAL_EVERY, WorkRequestList
from gear_data.errors import ClusterError, DeviceError, NodeRefusedError, NodeUnreachableError

#: Work requests that a queue pair holds, and completions taken at once.
_DEPTH, _POLLED = 1024, 64
#: The device sends again what got no answer, so often; then it gives up. Not 7, which soft-RoCE takes for for ever.
_RETRIES = 6
#: The device gives up after this part of the limit, or less.
_GIVES_UP = 0.25
_TIMEOUT_UNIT = 4.096e-6
#: What numbers of `enum ibv_wc_status` mean here.
_NO_ANSWER = {12: "it did not answer", 13: "it was never ready", 20: "it did not answer in time"}
_REFUSED = {
    7: "its answer was none to a READ",
    9: "it takes no such request",
    10: "its memory may not be read there: the key is unknown or was withdrawn, or the bytes end before",
    11: "it could not read its memory",
    16: "it gave up",
}
_OURS = {
    1: "more bytes than there is place for",
    2: "the queue pair is inconsistent",
    4: "the place for the bytes is not registered for that",
    5: "flushed after an earlier error",
}


@dataclass
class _Posted:
    """A chain, how many of its READs were posted, and how many are done."""

    chain: WorkRequestList
    posted: int = 0
    done: int = 0


class QueuePair:
    """One end of a reliable connection. For one thread at a time.

    Args:
        device: what it goes through; it must live longer.
        answers: whether the other end may read registered memory through it; else this end reads.

    Raises:
        DeviceError: it cannot be made.
    """

    def __init__(self, device: Device, *, answers: bool) -> None:
        library, enums = device.library, device.library.enums
        self._device, self._answers = device, answers
        self._depth = SIGNAL_EVERY if answers else max(1, min(_DEPTH, device.requests) // SIGNAL_EVERY) * SIGNAL_EVERY
        with verbs_errors(f"making a queue pair with {device.port.device}"):
            # If all of them fail, there is a completion for each; and one that finds no place breaks the queue.
            self._queue = library.cq.CQ(device.context, self._depth)
            capacity = library.qp.QPCap(max_send_wr=self._depth, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
            how = library.qp.QPInitAttr(
                qp_type=enums.IBV_QPT_RC, scq=self._queue, rcq=self._queue, cap=capacity, sq_sig_all=0
            )
            self._pair = library.qp.QP(device.domain, how)
        self._calls = VerbsCalls(self._pair)
        self._completions = np.zeros(_POLLED, COMPLETION)
        self._chains: deque[_Posted] = deque()
        #: How many chains were posted, and how many of them are done.
        self.posted, self.done = 0, 0
        self._under_way = 0
        port = device.port
        #: What the other end must know of this one.
        self.end = QueuePairEnd(
            self._pair.qp_num, secrets.randbits(24), port.link, port.lid, port.gid, device.mtu, device.reads
        )

    def connect(self, peer: QueuePairEnd, limit: float) -> None:
        """Connects it to the other end.

        Args:
            limit: seconds that a READ may take.

        Raises:
            NodeRefusedError: that end is on a network of another kind.
            DeviceError: it cannot be connected.
        """
        library, enums, port = self._device.library, self._device.library.enums, self._device.port
        if peer.link != port.link:
            raise NodeRefusedError(
                f"its RDMA device is on {peer.link}, this one on {port.link}", hint="use transport='flight'"
            )
        gid = library.addr.GID(ipaddress.IPv6Address(peer.gid).exploded)
        route = library.addr.GlobalRoute(dgid=gid, sgid_index=port.gid_index, hop_limit=64)
        way = library.addr.AHAttr(dlid=peer.lid, gr=route, is_global=int(port.link == ETHERNET), port_num=port.number)
        wanted = library.qp.QPAttr(port_num=port.number)
        wanted.qp_access_flags = enums.IBV_ACCESS_REMOTE_READ if self._answers else 0
        wanted.path_mtu, wanted.ah_attr = min(peer.mtu, self._device.mtu), way
        wanted.dest_qp_num, wanted.rq_psn, wanted.sq_psn = peer.number, peer.sequence, self.end.sequence
        wanted.max_rd_atomic = wanted.max_dest_rd_atomic = min(peer.reads, self._device.reads)
        wanted.timeout, wanted.retry_cnt, wanted.rnr_retry = _timeout(limit), _RETRIES, _RETRIES
        wanted.min_rnr_timer = 12
        with verbs_errors(f"connecting a queue pair of {port.device} to {peer.gid}"):
            # Through all states: it takes of these attributes what each of them needs.
            self._pair.to_rts(wanted)

    def post(self, chain: WorkRequestList) -> None:
        """Adds READs, which are done after those before them. Raises as `poll` does."""
        if len(chain):
            self._chains.append(_Posted(chain))
            self.posted += 1
            self._send()

    def poll(self) -> bool:
        """Whether any READs were done since the last call; never waits.

        Raises:
            NodeUnreachableError: the other end does not answer.
            NodeRefusedError: it does not let this memory be read.
            DeviceError: something is wrong at this end.
            After any of these the queue pair is of no use any more.
        """
        count = self._calls.poll(_POLLED, self._completions.ctypes.data)
        if count < 0:
            raise DeviceError(f"completions of {self._device.port.device} cannot be taken (error {count})")
        for completion in self._completions[:count]:
            status = int(completion["status"])
            if status:
                raise _error(status, int(completion["vendor_err"]))
            first = self._chains[0]
            self._under_way -= int(completion["wr_id"]) - first.done
            first.done = int(completion["wr_id"])
            if first.done == len(first.chain):
                self._chains.popleft()
                self.done += 1
        if count:
            self._send()
        return count > 0

    def _send(self) -> None:
        for each in self._chains:
            while each.posted < len(each.chain):
                room = self._depth - self._under_way
                count = min(len(each.chain) - each.posted, room // SIGNAL_EVERY * SIGNAL_EVERY)
                if len(each.chain) - each.posted <= room:
                    count = len(each.chain) - each.posted
                if not count:
                    return
                error = self._calls.post(each.chain.cut(each.posted, each.posted + count))
                if error:
                    raise DeviceError(f"{self._device.port.device} takes no READs: {os.strerror(error)}")
                each.posted += count
                self._under_way += count

    def close(self) -> None:
        """After this nothing is written to memory, or read from it, through this queue pair any more."""
        from pyverbs.pyverbs_error import PyverbsError

        for part in (self._pair, self._queue):
            with suppress(PyverbsError):
                part.close()
        self._chains.clear()


def _error(status: int, vendor: int) -> ClusterError | DeviceError:
    number = f"(completion status {status}, vendor's {vendor:#x})"
    if status in _NO_ANSWER:
        return NodeUnreachableError(f"RDMA READ failed: {_NO_ANSWER[status]} {number}")
    if status in _REFUSED:
        return NodeRefusedError(f"RDMA READ failed: {_REFUSED[status]} {number}")
    return DeviceError(f"RDMA READ failed: {_OURS.get(status, 'the device is at fault')} {number}")


def _timeout(limit: float) -> int:
    """How long the device waits for an answer before it sends again, as it counts: 4.096 us * 2^timeout."""
    longest = limit * _GIVES_UP / (_RETRIES + 1)
    return min(max(int(math.log2(longest / _TIMEOUT_UNIT)), 8), 20)
