"""The cluster's certificate authority, its server's certificate and its users'."""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = dt.timedelta(days=2)
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its key, PEM files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority that lives in a folder.

    Its key is RSA and those of its certificates are P-256: the API server verifies the authority's
    signature of a client's certificate at each request, which takes RSA a third of the time, and
    the client's own at each connection.
    """

    def __init__(self, folder: Path, key: Key, root: x509.Certificate):
        self.certificate = folder / "ca.crt"
        self._folder = folder
        self._key = key
        self._root = root

    @classmethod
    def create(cls, folder: Path) -> Self:
        """A new one, valid for two days, its certificate in `folder`/ca.crt."""
        folder.mkdir(parents=True, exist_ok=True)
        key = cls._new_key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sickbay test control plane")])
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        root = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(_key_id(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        (folder / "ca.crt").write_bytes(root.public_bytes(Encoding.PEM))
        return cls(folder, key, root)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The authority of this folder, whose key was saved."""
        key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey)
        root = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        return cls(folder, key, root)

    def save_key(self) -> None:
        """Write the key to the folder, for a process that loads the authority."""
        _write_key(self._folder / "ca.key", self._key)

    @staticmethod
    def _new_key() -> Key:
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def server(self, name: str, hosts: Sequence[str], *, lasts: dt.timedelta = _VALID) -> KeyPair:
        """A certificate that names these hosts, addresses or names; good for so long from now."""
        names = [
            x509.IPAddress(ipaddress.ip_address(host))
            if host.replace(".", "").isdigit()
            else x509.DNSName(host)
            for host in hosts
        ]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        purpose = ExtendedKeyUsageOID.SERVER_AUTH
        names_them = x509.SubjectAlternativeName(names)
        return self._issue(name, subject, purpose, names_them, lasts=lasts)

    def user(self, file_name: str, user: str, groups: Sequence[str]) -> KeyPair:
        """A certificate that makes its bearer `user`, a member of `groups`, to the API server."""
        organisations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*organisations, x509.NameAttribute(NameOID.COMMON_NAME, user)])
        return self._issue(file_name, subject, ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def _issue(
        self,
        file_name: str,
        subject: x509.Name,
        purpose: x509.ObjectIdentifier,
        names: x509.SubjectAlternativeName | None,
        *,
        lasts: dt.timedelta = _VALID,
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(subject, self._root.subject, key.public_key(), lasts)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pair = KeyPair(self._folder / f"{file_name}.crt", self._folder / f"{file_name}.key")
        pair.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        _write_key(pair.key, key)
        return pair


def service_account_keys(folder: Path) -> tuple[Path, Path]:
    """The key that signs service account tokens (RS256, as in most clusters): private, public."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private, public = folder / "service-account.key", folder / "service-account.pub"
    _write_key(private, key)
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
    lasts: dt.timedelta = _VALID,
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # An hour back: certificates of this minute are refused by a clock that was just set.
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + lasts)
    )


def _key_id(key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key)


def _write_key(path: Path, key: Key) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
