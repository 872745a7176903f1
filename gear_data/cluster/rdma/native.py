"""Direct calls of `ibv_post_send` and `ibv_poll_cq` on a queue pair of pyverbs.

pyverbs needs one Python object for each work request, at many times the cost of the device. `ibv_post_send`
and `ibv_poll_cq` take lists. They are inline functions of <infiniband/verbs.h> that call a table of functions in the
context. The offsets used here are part of the library's binary interface. Calls through ctypes release the GIL.

One offset is not part of that interface: where a pyverbs object keeps its pointer to the queue pair (qp.pxd). The
pointer is checked before it is used.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from gear_data.errors import DeviceError

#: Offset of the pointer in pyverbs' object: behind the object header, two references and the method table.
_QUEUE_PAIR = 40
#: Offsets in struct ibv_qp: context, completion queue, number and type; and the bytes that are read of it.
_CONTEXT, _SEND_CQ, _NUMBER, _TYPE, _QP_BYTES = 0, 24, 52, 60, 64
_RC = 2  # IBV_QPT_RC
#: Offsets in struct ibv_context, of entries in its table of functions.
_POLL_CQ, _POST_SEND = 96, 208

_post_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_poll_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


class VerbsCalls:
    """The two calls for one queue pair, which must live longer than this object.

    Raises:
        DeviceError: this release of pyverbs keeps its pointer elsewhere.
    """

    def __init__(self, queue_pair: Any) -> None:
        self._pair = _pointer(queue_pair)
        context = _word(self._pair + _CONTEXT)
        self._queue = _word(self._pair + _SEND_CQ)
        self._post = _post_type(_word(context + _POST_SEND))
        self._poll = _poll_type(_word(context + _POLL_CQ))
        self._bad = ctypes.c_void_p()
        self._bad_address = ctypes.addressof(self._bad)

    def post(self, requests: int) -> int:
        """Posts the linked list of work requests at an address. Returns 0 or an errno."""
        return int(self._post(self._pair, requests, self._bad_address))

    def poll(self, limit: int, completions: int) -> int:
        """Writes at most `limit` completions to an address.

        Returns their number, or a negative number on error.
        """
        return int(self._poll(self._queue, limit, completions))


def _pointer(queue_pair: Any) -> int:
    """Returns the address of the `struct ibv_qp` of a pyverbs QP."""
    if type(queue_pair).__basicsize__ >= _QUEUE_PAIR + 8:
        pointer = _word(id(queue_pair) + _QUEUE_PAIR)
        try:
            with open("/proc/self/mem", "rb", buffering=0) as memory:
                # Read through a file: dereferencing an invalid pointer would kill the process.
                found = os.pread(memory.fileno(), _QP_BYTES, pointer)
        except (OSError, OverflowError):
            found = b""
        number, kind = (int.from_bytes(found[offset : offset + 4], "little") for offset in (_NUMBER, _TYPE))
        if len(found) == _QP_BYTES and (number, kind) == (queue_pair.qp_num, _RC):
            return pointer
    raise DeviceError(
        "this release of pyverbs is not supported: it keeps the address of a queue pair at another offset",
        hint="use pyverbs 44 to 59, or transport='flight'",
    )


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value
