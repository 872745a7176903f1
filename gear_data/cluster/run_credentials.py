"""Credentials of a training run: a token, and a certificate with its key."""

from __future__ import annotations

import datetime
import os
import secrets
from dataclasses import dataclass

from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.credentials import ServerCredentials
from gear_data.common.extras import import_extra
from gear_data.common.secret import Secret, decode_json, encode_json
from gear_data.common.typed_json import resolved
from gear_data.errors import ClusterError

#: The variable of a run is this prefix and the run's name. Processes that a rank starts find the credentials there.
VARIABLE_PREFIX = "GEAR_DATA_RUN_"
_VALID_DAYS = 3650


@dataclass(frozen=True)
class RunCredentials:
    """Credentials of a run. Rank 0 creates them and sends them to all ranks.

    Attributes:
        run: name of the run; not secret.
        token: clients send it to the run's servers.
        certificate, key: PEM, shared by all nodes. None where all nodes are on one machine: TLS is not used there.
    """

    run: str
    token: Secret
    certificate: str | None = None
    key: Secret | None = None

    def server(self) -> ServerCredentials:
        """Returns the credentials for a server of the run."""
        return ServerCredentials(self.token, _encoded(self.certificate), self.key)

    def export(self) -> None:
        """Writes the client's credentials to this process's environment.

        `run_options` reads them there.

        Neither a URL nor a pickle holds a secret: a worker process inherits the environment.
        """
        known = _ClientCredentials(self.token, self.certificate)
        os.environ[VARIABLE_PREFIX + self.run] = encode_json(known).reveal().decode()


@resolved
@dataclass(frozen=True)
class _ClientCredentials:
    """The part of a run's credentials that its clients need."""

    token: Secret
    certificate: str | None


def create_run_credentials(*, tls: bool) -> RunCredentials:
    """Creates credentials for a new run.

    Args:
        tls: whether to create a certificate.

    Raises:
        MissingExtraError: `tls` is set, and the package that creates certificates is not installed.
    """
    run = secrets.token_hex(8)
    certificate, key = _create_certificate(run) if tls else (None, None)
    return RunCredentials(run, Secret(secrets.token_hex(32).encode()), certificate, key)


def run_options(run: str) -> ClientOptions:
    """Returns the options with which this process connects to the nodes of a run.

    Raises:
        ClusterError: this process does not belong to the run.
    """
    variable = VARIABLE_PREFIX + run
    if variable not in os.environ:
        raise ClusterError(
            "this dataset was opened in a training run, and this process does not belong to that run",
            hint="open it again here: gear_data.open(path, cluster='torchrun')",
        )
    try:
        known = decode_json(Secret(os.environ[variable].encode()), _ClientCredentials)
    except ValueError as error:
        raise ClusterError(f"${variable} does not hold a run's credentials: {error}", hint="do not set it") from error
    return ClientOptions.of_run(known.token, _encoded(known.certificate), run)


def _encoded(certificate: str | None) -> bytes | None:
    return None if certificate is None else certificate.encode()


def _create_certificate(name: str) -> tuple[str, Secret]:
    """Returns a self-signed P-256 certificate and its key, both PEM."""
    import_extra("cryptography", "tls")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # The nodes' clocks differ.
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = Secret(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return certificate.public_bytes(pem).decode(), private
