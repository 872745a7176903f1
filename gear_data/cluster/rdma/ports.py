"""The RDMA ports of this machine, as the kernel lists them (Documentation/ABI/stable/sysfs-class-infiniband)."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gear_data.errors import DeviceError

DEVICE_VARIABLE = "GEAR_DATA_RDMA_DEVICE"
ETHERNET, INFINIBAND = "Ethernet", "InfiniBand"
_ROOT = Path("/sys/class/infiniband")
_ACTIVE = "ACTIVE"
_ROCE_V2 = "RoCE v2"


@dataclass(frozen=True)
class Port:
    """An active port.

    Attributes:
        device: the device's name, such as mlx5_0.
        number: of the port, from 1.
        link: `Ethernet` (RoCE) or `InfiniBand`.
        lid: its local identifier on InfiniBand; 0 on Ethernet.
        gid: its global identifier, as an IPv6 address; that of RoCE v2 on Ethernet.
        gid_index: the place of it in the port's table.
    """

    device: str
    number: int
    link: str
    lid: int
    gid: str
    gid_index: int


def choose_port(root: Path = _ROOT) -> Port:
    """The first active port, or that which $GEAR_DATA_RDMA_DEVICE names: `mlx5_0`, or `mlx5_0:2` for its second port.

    Raises:
        DeviceError: there is none.
    """
    named = os.environ.get(DEVICE_VARIABLE)
    found = list(_active_ports(root))
    for port in found:
        if named in (None, port.device, f"{port.device}:{port.number}"):
            return port
    known = ", ".join(f"{port.device}:{port.number}" for port in found)
    if named is not None:
        raise DeviceError(f"${DEVICE_VARIABLE} is {named!r}, and there is no such active port", hint=f"known: {known}")
    raise DeviceError(
        "this machine has no RDMA device with an active port", hint="see `rdma link`, or use transport='flight'"
    )


def _active_ports(root: Path) -> Iterator[Port]:
    for folder in sorted(root.glob("*/ports/*"), key=lambda path: (path.parts[-3], int(path.name))):
        with suppress(OSError, ValueError):  # gone meanwhile, or of a kind that has no such facts
            if _read(folder / "state").rpartition(" ")[2] != _ACTIVE:
                continue
            link = _read(folder / "link_layer")
            lid = int(_read(folder / "lid"), 16) if link == INFINIBAND else 0
            gid = _gid(folder, link)
            if gid is not None and link in (ETHERNET, INFINIBAND):
                yield Port(folder.parts[-3], int(folder.name), link, lid, *gid)


def _gid(folder: Path, link: str) -> tuple[str, int] | None:
    """The identifier to use, and its place. Of RoCE v2 that of an IPv4 address, else one that is not of the link alone:
    those can be routed."""
    found = []
    for path in sorted((folder / "gids").iterdir(), key=lambda path: int(path.name)):
        with suppress(OSError, ValueError):  # places without one
            address, index = ipaddress.IPv6Address(_read(path)), int(path.name)
            kind = _read(folder / "gid_attrs" / "types" / path.name) if link == ETHERNET else _ROCE_V2
            if int(address) and kind == _ROCE_V2:
                found.append((address.ipv4_mapped is None, address.is_link_local, index, str(address)))
    if not found:
        return None
    *_, index, text = min(found) if link == ETHERNET else min(found, key=lambda row: row[2])
    return text, index


def _read(path: Path) -> str:
    return path.read_text().strip()
