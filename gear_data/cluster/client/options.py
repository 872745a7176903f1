"""Options of a client of nodes: its token, its TLS authorities, its timeout."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gear_data.cluster.addresses import Address
from gear_data.cluster.credentials import read_token
from gear_data.common.environment import env_flag, env_int, env_seconds
from gear_data.common.secret import Secret
from gear_data.errors import InvalidArgumentError

TOKEN_VARIABLE, CA_VARIABLE, TIMEOUT_VARIABLE = "GEAR_DATA_TOKEN_FILE", "GEAR_DATA_TLS_CA", "GEAR_DATA_NODE_TIMEOUT"
#: The token that may write is another one than the token that may read.
WRITE_TOKEN_VARIABLE = "GEAR_DATA_WRITE_TOKEN_FILE"
CHECKSUM_VARIABLE = "GEAR_DATA_CHECKSUM"
QUEUE_PAIRS_VARIABLE = "GEAR_DATA_RDMA_QUEUE_PAIRS"
#: Most queue pairs that one thread opens to one node. More are not faster on any device, and a node's total is limited.
MAX_QUEUE_PAIRS = 64
DEFAULT_TIMEOUT = 30.0


@dataclass(frozen=True)
class ClientOptions:
    """Options with which this process connects to nodes.

    Attributes:
        token: sent with every call; None: no token.
        authorities: PEM certificates that may sign a node's certificate; None: the system's.
        timeout: seconds that one response may take.
        checksum: whether responses carry a checksum.
        certificate_name: the name in the nodes' certificates; None: the host name of each node.
        queue_pairs: number of queue pairs over which one thread reads one node by RDMA.
        token_variable: the environment variable that names the token's file, for errors.
    """

    token: Secret | None
    authorities: bytes | None
    timeout: float
    checksum: bool = False
    certificate_name: str | None = None
    queue_pairs: int = 1
    token_variable: str = TOKEN_VARIABLE

    @staticmethod
    def of_run(token: Secret, certificate: bytes | None, name: str) -> ClientOptions:
        """Returns the options of connections between nodes of a training run.

        Args:
            token: the run's token.
            certificate: PEM, shared by all nodes; None where all nodes are on this machine.
            name: the name in that certificate.

        Raises:
            InvalidArgumentError: an environment variable has an invalid value.
        """
        return ClientOptions(
            token,
            certificate,
            env_seconds(TIMEOUT_VARIABLE, DEFAULT_TIMEOUT),
            env_flag(CHECKSUM_VARIABLE),
            name if certificate else None,
            env_int(QUEUE_PAIRS_VARIABLE, 1, 1, MAX_QUEUE_PAIRS),
        )

    @staticmethod
    def from_environment(token_variable: str = TOKEN_VARIABLE) -> ClientOptions:
        """Reads the options from environment variables.

        Neither a URL nor a pickle holds a secret.

        The variables are $GEAR_DATA_TOKEN_FILE, $GEAR_DATA_TLS_CA, $GEAR_DATA_NODE_TIMEOUT, $GEAR_DATA_CHECKSUM and
        $GEAR_DATA_RDMA_QUEUE_PAIRS.

        Args:
            token_variable: names the token's file, in place of $GEAR_DATA_TOKEN_FILE.

        Raises:
            InvalidArgumentError: a variable has an invalid value, or its file cannot be read.
        """
        token, authorities = os.environ.get(token_variable), os.environ.get(CA_VARIABLE)
        timeout = env_seconds(TIMEOUT_VARIABLE, DEFAULT_TIMEOUT)
        try:
            pem = Path(authorities).read_bytes() if authorities else None
        except OSError as error:
            raise InvalidArgumentError(f"${CA_VARIABLE} cannot be read: {error}", file=authorities) from error
        return ClientOptions(
            read_token(token) if token else None,
            pem,
            timeout,
            env_flag(CHECKSUM_VARIABLE),
            queue_pairs=env_int(QUEUE_PAIRS_VARIABLE, 1, 1, MAX_QUEUE_PAIRS),
            token_variable=token_variable,
        )

    def check(self, address: Address) -> None:
        """Checks that there is a token for an address on another machine.

        Raises:
            InvalidArgumentError: the token is missing.
        """
        if self.token is None and not address.is_loopback:
            raise InvalidArgumentError(
                f"{address} is not on this machine: it needs a token",
                hint=self.token_hint,
            )

    @property
    def token_hint(self) -> str:
        """The remedy for a missing or wrong token."""
        option = "--write-token-file" if self.token_variable == WRITE_TOKEN_VARIABLE else "--token-file"
        return f"set ${self.token_variable} to the file that the server was started with ({option})"

    def flight_location(self, address: Address) -> str:
        """Returns an address as Arrow Flight writes it.

        The connection uses TLS, except to a loopback address without `authorities`.
        """
        is_plain = address.is_loopback and self.authorities is None
        return f"grpc{'' if is_plain else '+tls'}://{address}"
