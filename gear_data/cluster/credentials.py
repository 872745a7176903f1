"""What the nodes of one training run know, and nobody else: a token, and a certificate with its key."""

from __future__ import annotations

import datetime
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gear_data.cluster.addresses import ClientOptions
from gear_data.common.extras import import_extra
from gear_data.errors import ClusterError

_VARIABLE = "GEAR_DATA_RUN_"
_DAYS = 3650


@dataclass(frozen=True)
class RunCredentials:
    """Made by rank 0 for all.

    Attributes:
        run: names the run; no secret.
        token: what clients show to nodes.
        certificate, key: PEM, one for all nodes; empty where all are on one machine, which takes no TLS.
    """

    run: str
    token: str = field(repr=False)
    certificate: str = ""
    key: str = field(default="", repr=False)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> RunCredentials:
        return RunCredentials(**data)

    def keep(self) -> None:
        """For processes that this one starts: `client_options` finds it there. Neither a URL nor a pickle holds it."""
        os.environ[_VARIABLE + self.run] = json.dumps({"token": self.token, "certificate": self.certificate})


def create_run_credentials(*, tls: bool) -> RunCredentials:
    """A new one.

    Raises:
        MissingExtraError: TLS, and there is no package that makes certificates.
    """
    run = secrets.token_hex(8)
    certificate, key = _certificate(run) if tls else ("", "")
    return RunCredentials(run, secrets.token_hex(32), certificate, key)


def client_options(run: str) -> ClientOptions:
    """What this process shows to the nodes of a run. Raises ClusterError in a process that is none of the run's."""
    kept = os.environ.get(_VARIABLE + run)
    if kept is None:
        raise ClusterError(
            "this dataset was opened by a training run that this process is no part of",
            hint="open it anew: gear_data.open(path, cluster='torchrun')",
        )
    known = json.loads(kept)
    return ClientOptions.of_run(known["token"], known["certificate"].encode() or None, run)


def _certificate(name: str) -> tuple[str, str]:
    """(certificate, key), PEM: P-256, vouching for itself."""
    import_extra("cryptography", "tls")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of nodes differ.
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return made.public_bytes(pem).decode(), private.decode()
