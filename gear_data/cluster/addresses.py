"""Network addresses of nodes, and the `gear://` URLs that list them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from gear_data.errors import InvalidArgumentError

SCHEME = "gear://"


@dataclass(frozen=True)
class Address:
    """A host and a port.

    The host is a name or a number; an IPv6 number has no brackets.
    """

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the host.

        The only loopback name is `localhost`.
        """
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @staticmethod
    def parse(text: str) -> Address:
        """Reads `host:port` or `[host]:port`.

        Raises:
            InvalidArgumentError: the text is neither.
        """
        host, _, port = text.strip().rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if bracketed else host
        is_host = host and not set(host) & set("/@?#[] ,") and (bracketed or ":" not in host)
        if not is_host or not port.isdecimal() or int(port) >= 1 << 16:
            raise InvalidArgumentError(
                f"{text.strip()!r} is not host:port", hint="write it like 10.0.0.1:7000 or [::1]:7000"
            )
        return Address(host, int(port))


def is_cluster(location: str) -> bool:
    """Returns whether a dataset's location is a list of nodes.

    Such a location is `gear://host:port,host:port`.
    """
    return location.startswith(SCHEME)


def parse_nodes(url: str) -> tuple[Address, ...]:
    """Reads the addresses of `gear://host:port,host:port`.

    Raises:
        InvalidArgumentError: an address is malformed, or is listed twice.
    """
    nodes = tuple(Address.parse(part) for part in url.removeprefix(SCHEME).rstrip("/").split(","))
    if len(set(nodes)) < len(nodes):
        raise InvalidArgumentError(f"{url} lists a node twice; list each node once")
    return nodes


def nodes_url(addresses: Iterable[Address]) -> str:
    """Returns the URL that lists these addresses."""
    return SCHEME + ",".join(map(str, addresses))
