"""An open RDMA device, and memory registered with it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gear_data.cluster.rdma.ports import Port, choose_port
from gear_data.cluster.rdma.pyverbs_library import Pyverbs, load_library, verbs_errors

_MEMORY_HINT = "raise the limit for locked memory: ulimit -l unlimited (systemd: LimitMEMLOCK=infinity)"


@dataclass(frozen=True)
class Device:
    """An open device and its protection domain.

    Only memory registered in that domain can be read or written.

    Attributes:
        library: pyverbs.
        port: the port of all queue pairs.
        context, domain: pyverbs' context and protection domain.
        mtu: largest packet of the port, as `enum ibv_mtu` counts.
        max_read_bytes: most bytes of one READ.
        reads: most READs that a queue pair can have in flight, in each direction; at most 255.
        max_requests: most work requests that a queue pair can hold.
    """

    library: Pyverbs
    port: Port
    context: Any
    domain: Any
    mtu: int
    max_read_bytes: int
    reads: int
    max_requests: int

    def register(self, address: int, size: int, access: int) -> Any:
        """Registers memory. Close the region before the memory is freed.

        Args:
            address, size: the memory.
            access: `enum ibv_access_flags`.

        Returns:
            pyverbs' memory region.

        Raises:
            DeviceError: the memory cannot be registered.
        """
        with verbs_errors(f"registering {size:,} bytes of memory with {self.port.device}", _MEMORY_HINT):
            return self.library.mr.MR(self.domain, size, access, address=address)

    def close(self) -> None:
        """Closes the device. Close everything that was created with it first."""
        from pyverbs.pyverbs_error import PyverbsError

        for each in (self.domain, self.context):
            with suppress(PyverbsError):
                each.close()


@dataclass(frozen=True)
class Region:
    """Registered memory of this machine or of a GPU.

    Attributes:
        handle: pyverbs' memory region.
        address_offset: added to an address of the memory, gives the address in the region.
    """

    handle: Any
    address_offset: int = 0

    @property
    def key(self) -> int:
        return int(self.handle.lkey)

    def close(self) -> None:
        """Deregisters the memory. If the device has failed, nothing is left to do."""
        from pyverbs.pyverbs_error import PyverbsError

        with suppress(PyverbsError):
            self.handle.close()


def open_device() -> Device:
    """Opens the device of `choose_port`.

    Raises:
        MissingExtraError: pyverbs is not installed.
        DeviceError: there is no device, or it cannot be opened.
    """
    port = choose_port()
    library = load_library()
    with verbs_errors(f"opening {port.device}", "check that this user may open /dev/infiniband/uverbs*"):
        context = library.device.Context(name=port.device)
        facts, state = context.query_device(), context.query_port(port.number)
        domain = library.pd.PD(context)
    reads = min(facts.max_qp_rd_atom, facts.max_qp_init_rd_atom, 255)
    return Device(
        library, port, context, domain, int(state.active_mtu), state.max_msg_sz, max(1, reads), facts.max_qp_wr
    )
