"""A throw-away authority, and the certificates that servers of the tests show. Made once for a run, in one folder."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

STORE_PASSWORD: Final = "changeit"
"""Of server.p12."""
_DAY: Final = timedelta(days=1)


def write_authority(folder: Path) -> None:
    """Write them into this folder. Each certificate is for 127.0.0.1 only, and its key is server.key.

    ca.pem: the authority; server.pem: signed by it; expired.pem: signed by it, and over since yesterday; other.pem: an
    authority of that name, too, with another key. server.p12: server.pem with its key, as Java wants them.
    """
    now = datetime.now(UTC)
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("ca", "other", "server")}
    shown = {name: _authority(keys[name], now) for name in ("ca", "other")}
    server = _signed(keys["server"], by=keys["ca"], begins=now - _DAY, ends=now + 2 * _DAY)
    shown |= {
        "server": server,
        "expired": _signed(keys["server"], by=keys["ca"], begins=now - 3 * _DAY, ends=now - _DAY),
    }
    for name, certificate in shown.items():
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    key = keys["server"].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.key").write_bytes(key)
    locked = BestAvailableEncryption(STORE_PASSWORD.encode())
    store = pkcs12.serialize_key_and_certificates(b"server", keys["server"], server, None, locked)
    (folder / "server.p12").write_bytes(store)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _draft(subject: str, key: ec.EllipticCurvePrivateKey, begins: datetime, ends: datetime) -> x509.CertificateBuilder:
    made = x509.CertificateBuilder(_named("authority"), _named(subject), key.public_key(), x509.random_serial_number())
    return made.not_valid_before(begins).not_valid_after(ends)


def _authority(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    signs = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    made = _draft("authority", key, now - _DAY, now + 2 * _DAY)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    made = made.add_extension(signs, critical=True)
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return made.sign(key, hashes.SHA256())


def _signed(
    key: ec.EllipticCurvePrivateKey, *, by: ec.EllipticCurvePrivateKey, begins: datetime, ends: datetime
) -> x509.Certificate:
    made = _draft("server", key, begins, ends)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = made.add_extension(names, critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key())
    return made.add_extension(issuer, critical=False).sign(by, hashes.SHA256())
