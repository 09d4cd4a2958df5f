"""A certificate authority made on the spot, and what it signs, as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


class Issued(NamedTuple):
    """One certificate and its key."""

    certificate_file: Path
    key_file: Path
    both_file: Path
    """Key and certificate in one file, as a Kafka broker takes them."""


class Certificates:
    """A new authority in `folder`; two of them do not trust each other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca_file = folder / "ca.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _common_name("sharedstream test authority")
        folder.mkdir(parents=True, exist_ok=True)
        authority = _builder(self._name, self._name, self._key.public_key())
        authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.ca_file.write_bytes(self._signed(authority))

    def issue(self, name: str, *, password: str | None = None) -> Issued:
        """A certificate for a server on this machine or for a client, under CN=`name`; valid for a day.

        :param password: encrypts the key.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        local = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = self._signed(
            _builder(_common_name(name), self._name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(local), critical=False)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        )
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        private = key.private_bytes(pem, form, encryption)
        issued = Issued(*(self.folder / f"{name}.{ending}" for ending in ("crt", "key", "pem")))
        for file, content in zip(issued, (certificate, private, private + certificate), strict=True):
            file.write_bytes(content)
        return issued

    def _signed(self, certificate: x509.CertificateBuilder) -> bytes:
        return certificate.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
