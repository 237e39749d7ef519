"""When a certificate is good: before and after that whoever checks it refuses it.

OpenSSL and gRPC serve one that has expired without a word, nor say who hung up for it.
"""

from dataclasses import dataclass
from typing import Self

from cryptography import x509

from aggregator.quarantine.times import write_time


@dataclass(frozen=True, slots=True)
class Validity:
    """From when until when a certificate is good, wall clock seconds."""

    since: float
    until: float

    @classmethod
    def of(cls, certificate: x509.Certificate) -> Self:
        """What the certificate says of itself."""
        return cls(
            certificate.not_valid_before_utc.timestamp(),
            certificate.not_valid_after_utc.timestamp(),
        )

    def trouble(self, wall: float) -> str:
        """Why it is not good now, to be said after its name; empty: it is."""
        if wall >= self.until:
            return f"expired at {write_time(self.until)} (or this machine's clock is ahead)"
        if wall < self.since:
            return f"is good from {write_time(self.since)} on (or this machine's clock is behind)"
        return ""
