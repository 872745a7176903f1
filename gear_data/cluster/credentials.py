"""Credentials of a node's server: a client token, and a TLS certificate."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gear_data.cluster.addresses import Address
from gear_data.common.secret import Secret
from gear_data.errors import InvalidArgumentError

_MIN_TOKEN_LENGTH = 16


def read_token(path: str | os.PathLike[str]) -> Secret:
    """Reads the token from a file.

    Raises:
        InvalidArgumentError: the file cannot be read, or the token is too short or is not plain ASCII without spaces.
    """
    try:
        token = Secret(Path(path).read_bytes().strip())
    except OSError as error:
        raise InvalidArgumentError(f"cannot read the token: {error}", file=str(path)) from error
    size = len(token.reveal())
    if size < _MIN_TOKEN_LENGTH or not all(ord("!") <= byte <= ord("~") for byte in token.reveal()):
        raise InvalidArgumentError(
            f"the token has {size} characters; it needs {_MIN_TOKEN_LENGTH} or more, plain ASCII without spaces",
            file=str(path),
            hint=f"create one: openssl rand -hex 32 > {path}",
        )
    return token


@dataclass(frozen=True)
class ServerCredentials:
    """Credentials that protect a server.

    Attributes:
        token: clients must send this token. None: the server accepts every client.
        certificate, key: TLS certificate and private key, PEM. None: the server does not use TLS.
    """

    token: Secret | None = None
    certificate: bytes | None = None
    key: Secret | None = None

    @staticmethod
    def from_files(token: Secret | None, certificate: Path | None, key: Path | None) -> ServerCredentials:
        """Reads the certificate and its key.

        Raises:
            InvalidArgumentError: a file cannot be read, or only one of certificate and key is given.
        """
        if (certificate is None) is not (key is None):
            raise InvalidArgumentError("TLS needs both a certificate and its key; only one of them was given")
        try:
            return ServerCredentials(
                token,
                None if certificate is None else certificate.read_bytes(),
                None if key is None else Secret(key.read_bytes()),
            )
        except OSError as error:
            raise InvalidArgumentError(f"cannot read the file: {error.strerror}", file=str(error.filename)) from error

    def check(self, listen: Address) -> None:
        """Checks that a server that other machines can reach has a token and TLS.

        Raises:
            InvalidArgumentError: it lacks one of them.
        """
        if not listen.is_loopback and (self.token is None or self.certificate is None):
            raise InvalidArgumentError(
                f"other machines can reach {listen}: that address needs TLS and a token",
                hint="pass --tls-cert, --tls-key and --token-file (with --writable: --write-token-file), "
                "or listen on 127.0.0.1",
            )
