"""Whether others accept a certificate: its time of validity, and its signer.

OpenSSL and gRPC serve any certificate without a warning, and do not report clients that hung up
because of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from aggregator.rfc3339 import write_time
from aggregator.tls.client_context import CaFileError
from sickbay.regular_file import MOST, require_regular_file


@dataclass(frozen=True, slots=True)
class Validity:
    """From when until when a certificate is valid, wall clock seconds."""

    since: float
    until: float

    @classmethod
    def of(cls, certificate: x509.Certificate) -> Self:
        """The validity in the certificate itself."""
        return cls(
            certificate.not_valid_before_utc.timestamp(),
            certificate.not_valid_after_utc.timestamp(),
        )

    def trouble(self, wall: float) -> str:
        """Why it is not valid now, as text after its name; empty: it is valid."""
        if wall >= self.until:
            return f"expired at {write_time(self.until)} (or this machine's clock is ahead)"
        if wall < self.since:
            return f"is good from {write_time(self.since)} on (or this machine's clock is behind)"
        return ""


def parse_certificates(text: bytes) -> list[x509.Certificate]:
    """Those in a text in PEM, at least one. Raises ValueError, also for one whose key or times
    can't be read: the library reads these later.
    """
    try:
        found = x509.load_pem_x509_certificates(text)
        for one in found:
            one.public_key()
            Validity.of(one)
    except (UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise ValueError(str(error)) from error
    return found


def read_certificates(file: Path) -> list[x509.Certificate]:
    """Those in a file. Raises CaFileError."""
    try:
        return parse_certificates(require_regular_file(file, most=MOST).read_bytes())
    except ValueError as error:
        raise CaFileError.no_certificate(file) from error
    except OSError as error:
        raise CaFileError.unreadable(file, error) from error


def signers_of(
    chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]
) -> list[x509.Certificate]:
    """The authorities that have signed the first of the chain, or the one that leads there.

    A certificate that is among them is its own authority.
    """
    at: x509.Certificate | None = chain[0]
    left = list(chain[1:])
    while at is not None:
        found = [one for one in authorities if at == one or _has_signed(one, at)]
        if found:
            return found
        at = next((one for one in left if _has_signed(one, at)), None)
        if at is not None:
            left.remove(at)
    return []


def _has_signed(one: x509.Certificate, other: x509.Certificate) -> bool:
    try:
        other.verify_directly_issued_by(one)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
