"""An RDMA device that is open, and memory registered with it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gear_data.cluster.rdma.library import Pyverbs, load_library, verbs_errors
from gear_data.cluster.rdma.ports import Port, choose_port

_MEMORY_HINT = "raise the limit of locked memory: ulimit -l unlimited (systemd: LimitMEMLOCK=infinity)"


@dataclass(frozen=True)
class Device:
    """An open device and its protection domain: only what was registered in that can be reached.

    Attributes:
        port: that all queue pairs go through.
        mtu: its largest packet, as `enum ibv_mtu` counts.
        largest: bytes of a READ at most.
        reads: READs that a queue pair can have under way, sent and answered.
        requests: work requests that one can hold.
    """

    library: Pyverbs
    port: Port
    context: Any
    domain: Any
    mtu: int
    largest: int
    reads: int
    requests: int

    def register(self, address: int, size: int, access: int) -> Any:
        """A memory region: `size` bytes from `address`, with `enum ibv_access_flags`. To be closed before the memory
        goes. Raises DeviceError."""
        with verbs_errors(f"registering {size:,} bytes of memory with {self.port.device}", _MEMORY_HINT):
            return self.library.mr.MR(self.domain, size, access, address=address)

    def close(self) -> None:
        """Closes it, after all that was made with it."""
        from pyverbs.pyverbs_error import PyverbsError

        for part in (self.domain, self.context):
            with suppress(PyverbsError):
                part.close()


@dataclass(frozen=True)
class Region:
    """Memory of this machine or of a GPU that READs may write to.

    Attributes:
        part: pyverbs' memory region.
        shift: what an address of the memory has to be added to be one of the region's.
    """

    part: Any
    shift: int = 0

    @property
    def key(self) -> int:
        return int(self.part.lkey)

    def close(self) -> None:
        self.part.close()


def open_device() -> Device:
    """Opens the device of `choose_port`.

    Raises:
        MissingExtraError: there is no pyverbs.
        DeviceError: there is no device, or it cannot be used.
    """
    port = choose_port()
    library = load_library()
    with verbs_errors(f"opening {port.device}", "may this user open /dev/infiniband/uverbs*?"):
        context = library.device.Context(name=port.device)
        facts, state = context.query_device(), context.query_port(port.number)
        domain = library.pd.PD(context)
    reads = min(facts.max_qp_rd_atom, facts.max_qp_init_rd_atom, 255)
    return Device(
        library, port, context, domain, int(state.active_mtu), state.max_msg_sz, max(1, reads), facts.max_qp_wr
    )
