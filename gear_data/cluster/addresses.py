"""Where nodes listen, and what proves to them who asks."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path

from gear_data.errors import InvalidArgumentError

SCHEME = "gear://"
TOKEN_VARIABLE, CA_VARIABLE, TIMEOUT_VARIABLE = "GEAR_DATA_TOKEN_FILE", "GEAR_DATA_TLS_CA", "GEAR_DATA_NODE_TIMEOUT"
CHECKSUM_VARIABLE = "GEAR_DATA_CHECKSUM"
QUEUE_PAIRS_VARIABLE = "GEAR_DATA_RDMA_QUEUE_PAIRS"
#: To one node for one thread: more are no faster on any device, and a node has so many in all.
MOST_QUEUE_PAIRS = 64
_SHORTEST_TOKEN = 16
_TIMEOUT = 30.0


@dataclass(frozen=True)
class Address:
    """A host, as a name or number (an IPv6 one without brackets), and a port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. Of names, `localhost` alone counts as such."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @staticmethod
    def parse(text: str) -> Address:
        """`host:port` or `[host]:port`. Raises InvalidArgumentError for what is neither."""
        host, _, port = text.strip().rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if bracketed else host
        plain = host and not set(host) & set("/@?#[] ,") and (bracketed or ":" not in host)
        if not plain or not port.isdecimal() or int(port) >= 1 << 16:
            raise InvalidArgumentError(f"{text.strip()!r} is no host:port")
        return Address(host, int(port))


def is_cluster(place: str) -> bool:
    """Whether a place is a list of nodes: `gear://host:port,host:port`."""
    return place.startswith(SCHEME)


def parse_nodes(place: str) -> tuple[Address, ...]:
    """The nodes of `gear://host:port,host:port`. Raises InvalidArgumentError."""
    nodes = tuple(Address.parse(part) for part in place.removeprefix(SCHEME).rstrip("/").split(","))
    if len(set(nodes)) < len(nodes):
        raise InvalidArgumentError(f"{place} names a node twice")
    return nodes


def read_token(path: str | os.PathLike[str]) -> str:
    """The token in a file. Raises InvalidArgumentError for one that is short or no plain text."""
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"the token cannot be read: {error}", file=str(path)) from error
    if len(token) < _SHORTEST_TOKEN or not token.isprintable() or " " in token:
        raise InvalidArgumentError(
            f"a token is {_SHORTEST_TOKEN} characters or more of plain text without spaces",
            file=str(path),
            hint=f"make one: openssl rand -hex 32 > {path}",
        )
    return token


def env_seconds(variable: str, default: float) -> float:
    """A time limit from the environment. Raises InvalidArgumentError unless it is a number of seconds above 0."""
    text = os.environ.get(variable, str(default))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InvalidArgumentError(f"${variable} is {text!r}, not a number of seconds above 0")
    return seconds


def _checksum() -> bool:
    text = os.environ.get(CHECKSUM_VARIABLE, "0")
    if text not in ("", "0", "1"):
        raise InvalidArgumentError(f"${CHECKSUM_VARIABLE} is {text!r}, not 0 or 1")
    return text == "1"


def _queue_pairs() -> int:
    text = os.environ.get(QUEUE_PAIRS_VARIABLE, "1")
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= MOST_QUEUE_PAIRS:
        raise InvalidArgumentError(f"${QUEUE_PAIRS_VARIABLE} is {text!r}, not a number from 1 to {MOST_QUEUE_PAIRS}")
    return int(text)


@dataclass(frozen=True)
class ClientOptions:
    """What this process shows to nodes, and how long it waits for them.

    Attributes:
        token: None where there is none.
        authorities: PEM certificates of those who may vouch for a node; None: the system's.
        timeout: seconds that any one answer may take.
        checksum: whether answers come with one.
        certified: the name that nodes' certificates are for; None: that of each one's host.
        queue_pairs: over how many at once a batch is read from a node by RDMA.
    """

    token: str | None = field(repr=False)
    authorities: bytes | None
    timeout: float
    checksum: bool = False
    certified: str | None = None
    queue_pairs: int = 1

    @staticmethod
    def of_run(token: str, certificate: bytes | None, name: str) -> ClientOptions:
        """Of a run's nodes among each other.

        Args:
            certificate: PEM, the one that all nodes have; None where all are on this machine.
            name: whose certificate it is.
        """
        seconds = env_seconds(TIMEOUT_VARIABLE, _TIMEOUT)
        return ClientOptions(token, certificate, seconds, _checksum(), name if certificate else None, _queue_pairs())

    @staticmethod
    def from_environment() -> ClientOptions:
        """From $GEAR_DATA_TOKEN_FILE, $GEAR_DATA_TLS_CA, $GEAR_DATA_NODE_TIMEOUT, $GEAR_DATA_CHECKSUM and
        $GEAR_DATA_RDMA_QUEUE_PAIRS: neither a URL nor a pickle holds a secret. Raises InvalidArgumentError for what
        cannot be used."""
        token, authorities = os.environ.get(TOKEN_VARIABLE), os.environ.get(CA_VARIABLE)
        seconds = env_seconds(TIMEOUT_VARIABLE, _TIMEOUT)
        try:
            pem = Path(authorities).read_bytes() if authorities else None
        except OSError as error:
            raise InvalidArgumentError(f"${CA_VARIABLE} cannot be read: {error}", file=authorities) from error
        return ClientOptions(
            read_token(token) if token else None, pem, seconds, _checksum(), queue_pairs=_queue_pairs()
        )

    def check(self, address: Address) -> None:
        """Raises InvalidArgumentError where a node that others can reach would be asked without a token."""
        if self.token is None and not address.is_loopback:
            raise InvalidArgumentError(
                f"{address} is not on this machine: it needs a token",
                hint=f"set ${TOKEN_VARIABLE} to the file that the nodes were given with --token-file",
            )

    def location(self, address: Address) -> str:
        """As Arrow Flight names it. TLS is left out on this machine alone, and there too only without `authorities`."""
        plain = address.is_loopback and self.authorities is None
        return f"grpc{'' if plain else '+tls'}://{address}"
