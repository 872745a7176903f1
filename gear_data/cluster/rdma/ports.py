"""RDMA ports of this machine, read from sysfs.

The format is documented in Documentation/ABI/stable/sysfs-class-infiniband of the kernel.
"""

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
        device: name of the device, such as mlx5_0.
        number: number of the port, from 1.
        link: kind of network: `Ethernet` (RoCE) or `InfiniBand`.
        lid: local identifier on InfiniBand; 0 on Ethernet.
        gid: global identifier, as an IPv6 address; on Ethernet, an identifier of RoCE v2.
        gid_index: position of the gid in the port's table.
    """

    device: str
    number: int
    link: str
    lid: int
    gid: str
    gid_index: int


def choose_port(root: Path = _ROOT) -> Port:
    """Returns the first active port, or the port that $GEAR_DATA_RDMA_DEVICE names.

    The variable's value is `mlx5_0`, or `mlx5_0:2` for the second port.

    Raises:
        DeviceError: there is no such port.
    """
    named = os.environ.get(DEVICE_VARIABLE)
    found = list(_active_ports(root))
    for port in found:
        if named in (None, port.device, f"{port.device}:{port.number}"):
            return port
    known = ", ".join(f"{port.device}:{port.number}" for port in found) or "none"
    if named is not None:
        raise DeviceError(
            f"${DEVICE_VARIABLE} is {named!r}: there is no such active port", hint=f"the active ports are: {known}"
        )
    raise DeviceError(
        "this machine has no RDMA device with an active port", hint="see `rdma link`, or use transport='flight'"
    )


def _active_ports(root: Path) -> Iterator[Port]:
    for folder in sorted(root.glob("*/ports/*"), key=lambda path: (path.parts[-3], int(path.name))):
        with suppress(OSError, ValueError):  # the port is gone, or its kind lacks these files
            if _read(folder / "state").rpartition(" ")[2] != _ACTIVE:
                continue
            link = _read(folder / "link_layer")
            lid = int(_read(folder / "lid"), 16) if link == INFINIBAND else 0
            gid = _gid(folder, link)
            if gid is not None and link in (ETHERNET, INFINIBAND):
                yield Port(folder.parts[-3], int(folder.name), link, lid, *gid)


def _gid(folder: Path, link: str) -> tuple[str, int] | None:
    """Returns the identifier (gid) to use, and its position in the port's table.

    Returns None if no identifier is usable.

    On Ethernet, a RoCE v2 identifier of an IPv4 address is preferred, then one that is not link-local: these can be
    routed.
    """
    found = []
    # A table has up to a thousand positions, and few identifiers.
    for index in sorted(map(int, os.listdir(folder / "gids"))):
        with suppress(OSError, ValueError):  # positions without an identifier
            text = _read(f"{folder}/gids/{index}")
            if text.strip("0:") and (link != ETHERNET or _read(f"{folder}/gid_attrs/types/{index}") == _ROCE_V2):
                address = ipaddress.IPv6Address(text)
                found.append((address.ipv4_mapped is None, address.is_link_local, index, str(address)))
    if not found:
        return None
    *_, index, text = min(found) if link == ETHERNET else min(found, key=lambda row: row[2])
    return text, index


def _read(path: Path | str) -> str:
    with open(path, "rb", buffering=0) as file:
        return file.read().decode().strip()
