"""A certificate authority of sickbay's own: its certificate and key, and the certificates it signs.

Keys are ECDSA P-256. A certificate's validity begins in the past, so that a machine whose clock is
behind accepts it too; only its end limits its use.
"""

import datetime as dt
import ipaddress
import re
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from aggregator.tls.certificate import Validity, parse_certificates

#: Seconds. A serving certificate is valid from this long before it was made. Apple's clients refuse
#: one that is valid for more than 825 days in all.
BACKDATED = 365 * 86400.0
#: The same for an authority: 1 January 2020, whatever the clock of its maker shows.
_FIRST_DAY = 1577836800.0
#: 31 December 9998: no certificate can state a later year than 9999.
_LAST_DAY = 253370678400.0
_COMMON_NAME = re.compile(r"CN=sickbay CA (\d{1,9}) [0-9a-f]{8}")


class DamagedPem(Exception):
    """Text that is no certificate, no key, or not the key of the certificate; the text states
    which.
    """


@lru_cache(maxsize=32)
def pem_of(certificate: x509.Certificate) -> bytes:
    """The certificate in PEM. Each check of what is published compares all of them."""
    return certificate.public_bytes(Encoding.PEM)


@dataclass(frozen=True, slots=True)
class Authority:
    """One authority. ``number`` counts up; a higher one is newer. Without ``key`` it is trusted,
    and signs no more.
    """

    number: int
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey | None = field(default=None, repr=False, compare=False)

    @property
    def until(self) -> float:
        """The end of its validity, wall clock seconds."""
        return Validity.of(self.certificate).until

    @property
    def certificate_pem(self) -> bytes:
        return pem_of(self.certificate)

    @property
    def key_pem(self) -> bytes:
        """Empty without a key."""
        return _key_pem(self.key) if self.key is not None else b""


@dataclass(frozen=True, slots=True)
class ServingPair:
    """A serving certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False, compare=False)

    @property
    def validity(self) -> Validity:
        return Validity.of(self.certificate)

    @property
    def names(self) -> frozenset[str]:
        """The DNS names and addresses that it covers."""
        try:
            found = self.certificate.extensions.get_extension_for_class(
                x509.SubjectAlternativeName
            ).value
        except (x509.ExtensionNotFound, ValueError):
            return frozenset()
        return frozenset(str(name.value) for name in found)

    @property
    def certificate_pem(self) -> bytes:
        return pem_of(self.certificate)

    @property
    def key_pem(self) -> bytes:
        return _key_pem(self.key)

    def issuer_among(self, authorities: Iterable[Authority]) -> Authority | None:
        """The authority that signed it, if it is one of these: names of authorities are random."""
        issuer = self.certificate.issuer
        return next((one for one in authorities if one.certificate.subject == issuer), None)


def create_authority(number: int, *, wall: float, lifetime: float) -> Authority:
    """A new authority, valid for ``lifetime`` seconds from ``wall`` on.

    Its name is random: clients distinguish authorities by name where both are trusted.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"sickbay CA {number} {secrets.token_hex(4)}")
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _builder(name, name, key.public_key(), since=_FIRST_DAY, until=wall + lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(number, certificate, key)


def issue(
    authority: Authority, names: Collection[str], *, wall: float, lifetime: float
) -> ServingPair:
    """A serving certificate for DNS names and addresses, with a key of its own.

    It ends with its authority at the latest. ``authority`` needs its key.
    """
    assert authority.key is not None
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    certificate = (
        _serving(
            authority.certificate.subject,
            key,
            names,
            since=wall - BACKDATED,
            until=min(wall + lifetime, authority.until),
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier.value),
            critical=False,
        )
        .sign(authority.key, hashes.SHA256())
    )
    return ServingPair(certificate, key)


def issue_placeholder(names: Collection[str], *, wall: float, lifetime: float) -> ServingPair:
    """A certificate that no client trusts, to serve the page and its probes with until there is an
    authority.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = _name("sickbay has no CA yet")
    made = _serving(issuer, key, names, since=wall - BACKDATED, until=wall + lifetime)
    return ServingPair(made.sign(key, hashes.SHA256()), key)


def read_authority(number: int, certificate: bytes, key: bytes) -> Authority:
    """The authority of these PEM texts; an empty ``key`` is none. Raises DamagedPem."""
    found = _certificate(certificate)
    if not _may_sign(found):
        raise DamagedPem("it is no certificate of an authority")
    return Authority(number, found, _key_of(found, key) if key.strip() else None)


def keyless_authority(certificate: x509.Certificate) -> Authority | None:
    """The authority of a certificate that `create_authority` made, or None for any other."""
    common = certificate.subject.rfc4514_string()
    match = _COMMON_NAME.fullmatch(common)
    if match is None or not _may_sign(certificate):
        return None
    return Authority(int(match[1]), certificate)


def read_pair(certificate: bytes, key: bytes) -> ServingPair:
    """The serving pair of these PEM texts. Raises DamagedPem."""
    found = _certificate(certificate)
    return ServingPair(found, _key_of(found, key))


def read_bundle(text: bytes) -> list[x509.Certificate]:
    """The certificates in a bundle, in order. Raises DamagedPem where it holds none."""
    try:
        return parse_certificates(text)
    except ValueError as error:
        raise DamagedPem("no certificate in PEM") from error


def bundle(authorities: Iterable[Authority]) -> bytes:
    """The certificates of all authorities as one PEM text, newest first."""
    newest_first = sorted(authorities, key=lambda one: -one.number)
    return b"".join(one.certificate_pem for one in newest_first)


def _serving(
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    names: Collection[str],
    *,
    since: float,
    until: float,
) -> x509.CertificateBuilder:
    ordered = sorted(names)
    return (
        _builder(_name("sickbay-aggregator"), issuer, key.public_key(), since=since, until=until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_general(name) for name in ordered]), critical=False
        )
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    *,
    since: float,
    until: float,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_date(min(since, until - 1)))
        .not_valid_after(_date(until))
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _date(at: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(int(min(max(at, 0.0), _LAST_DAY)), dt.UTC)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _may_sign(certificate: x509.Certificate) -> bool:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except (x509.ExtensionNotFound, ValueError):
        return False
    return constraints.ca


def _certificate(text: bytes) -> x509.Certificate:
    found: Sequence[x509.Certificate] = read_bundle(text)
    return found[0]


def _key_of(certificate: x509.Certificate, text: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(text, password=None)
    except (ValueError, TypeError) as error:
        raise DamagedPem("its key is no private key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DamagedPem("its key is no ECDSA key")
    if key.public_key() != certificate.public_key():
        raise DamagedPem("its key is not the key of its certificate")
    return key


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
