"""Client certificates that TLS has verified: the certificate of a person, and that of a proxy.

TLS accepts each CA that a listener trusts. So the issuer is checked again, because a proxy's CA
must not vouch for people, nor the CA of people for a proxy. The issuer must be in the file itself;
with an intermediate CA, that certificate.
"""

from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from aggregator.access.identity import AccessRefused, RequestFacts, UserIdentity
from aggregator.cluster.users import User
from aggregator.tls.certificate import read_certificates
from aggregator.tls.client_context import CaFileError
from sickbay.regular_file import version_of


class CaCertificates:
    """The certificates in a file, read again when it changes.

    While a changed file can't be read, the earlier content counts. Raises CaFileError when it
    can't be read at first.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._certificates = read_certificates(file)
        #: The version that was read. The first one counts as none: it may have changed meanwhile.
        self._seen: object = None

    def issued(self, certificate: x509.Certificate) -> bool:
        """Whether one of them signed it."""
        self._follow()
        return any(_signed(certificate, one) for one in self._certificates)

    def _follow(self) -> None:
        try:
            now = version_of(self._file)
            if now != self._seen:
                self._certificates, self._seen = read_certificates(self._file), now
        except (OSError, CaFileError):
            return


class ClientCertificateAuthenticator:
    """Implements `RequestAuthenticator`: CN is the user, each O a group, as for the API server.

    ``wall`` is seconds since the epoch.
    """

    def __init__(self, authorities: CaCertificates, *, wall: Callable[[], float]) -> None:
        self._authorities = authorities
        self._wall = wall

    async def authenticate(self, facts: RequestFacts) -> UserIdentity | None:
        certificate = presented(facts)
        if certificate is None or not self._authorities.issued(certificate):
            return None
        names = common_names(certificate)
        if not names:
            raise AccessRefused(
                401,
                "invalid_certificate",
                "the client certificate names no user: it has no CN",
                "Present a certificate whose subject is /CN=USER/O=GROUP.",
            )
        expect_current(certificate, self._wall())
        groups = certificate.subject.get_attributes_for_oid(x509.NameOID.ORGANIZATION_NAME)
        # The API server gives every user that it authenticates this group.
        found = (*(str(one.value) for one in groups), "system:authenticated")
        return UserIdentity(
            User(names[0], tuple(dict.fromkeys(found))), "certificate", ambient=True
        )


def presented(facts: RequestFacts) -> x509.Certificate | None:
    """The client's certificate, or None without one that can be read."""
    if facts.certificate is None:
        return None
    try:
        return x509.load_der_x509_certificate(facts.certificate)
    except ValueError:
        return None


def common_names(certificate: x509.Certificate) -> list[str]:
    """The CNs of its subject that are not empty."""
    found = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return [str(one.value) for one in found if one.value]


def expect_current(certificate: x509.Certificate, wall: float) -> None:
    """A connection may outlive its certificate. Raises AccessRefused after its end."""
    if wall > certificate.not_valid_after_utc.timestamp():
        raise AccessRefused(
            401, "expired_certificate", "the client certificate has expired", "Present a new one."
        )


def _signed(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
