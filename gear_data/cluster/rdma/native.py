"""Posting work requests and polling for their completions by one call each, over a queue pair of pyverbs.

pyverbs takes one object a request, which costs many times what the device takes for it. `ibv_post_send` and
`ibv_poll_cq` take lists; they are inline functions of <infiniband/verbs.h> over a table of functions in the context,
and the places of all that is used here are part of the library's binary interface. Called through ctypes they release
the GIL. What is not part of it is where pyverbs keeps its pointer to the queue pair (qp.pxd): that is checked.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from gear_data.errors import DeviceError

#: In pyverbs' object: behind its head, two references and the table of methods.
_QUEUE_PAIR = 40
#: struct ibv_qp: its context, its completion queue, its number and kind.
_CONTEXT, _SEND_CQ, _NUMBER, _TYPE, _QP_BYTES = 0, 24, 52, 60, 64
_RC = 2  # IBV_QPT_RC
#: struct ibv_context: in its table of functions.
_POLL_CQ, _POST_SEND = 96, 208

_post_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_poll_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


class VerbsCalls:
    """The two calls over a queue pair, which must live longer.

    Raises:
        DeviceError: this pyverbs keeps its pointers elsewhere.
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
        """Posts the list at an address; 0 or the error's number."""
        return int(self._post(self._pair, requests, self._bad_address))

    def poll(self, most: int, completions: int) -> int:
        """Writes at most so many completions to an address; how many, or less than 0."""
        return int(self._poll(self._queue, most, completions))


def _pointer(queue_pair: Any) -> int:
    """The address of the `struct ibv_qp` of a pyverbs QP."""
    if type(queue_pair).__basicsize__ >= _QUEUE_PAIR + 8:
        pointer = _word(id(queue_pair) + _QUEUE_PAIR)
        try:
            with open("/proc/self/mem", "rb", buffering=0) as memory:
                # Not through the pointer itself: one that is none would end the process.
                found = os.pread(memory.fileno(), _QP_BYTES, pointer)
        except (OSError, OverflowError):
            found = b""
        number, kind = (int.from_bytes(found[place : place + 4], "little") for place in (_NUMBER, _TYPE))
        if len(found) == _QP_BYTES and (number, kind) == (queue_pair.qp_num, _RC):
            return pointer
    raise DeviceError(
        "this release of pyverbs is not known: where it keeps a queue pair's address has changed",
        hint="use pyverbs 44 to 59, or transport='flight'",
    )


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value
