"""Names of the transports: how bytes of another node are read."""

from __future__ import annotations

import os
from typing import get_args

from gear_data.cluster.rdma.ports import DEVICE_VARIABLE, choose_port
from gear_data.errors import DeviceError, unknown_name
from gear_data.words import TransportName

AUTO, VERBS, FLIGHT = "auto", "verbs", "flight"
TRANSPORTS: tuple[TransportName, ...] = get_args(TransportName)


def check_transport(name: str) -> None:
    """Checks a transport's name.

    Raises:
        UnknownNameError: there is no such transport.
    """
    if name not in TRANSPORTS:
        raise unknown_name("transport", name, TRANSPORTS)


def has_device() -> bool:
    """Returns whether this machine has an RDMA device with an active port.

    Raises:
        DeviceError: $GEAR_DATA_RDMA_DEVICE names a port that does not exist.
    """
    try:
        choose_port()
    except DeviceError:
        if os.environ.get(DEVICE_VARIABLE) is not None:
            raise
        return False
    return True
