"""The listener's certificate, read again when it rotates.

The files are checked once a second at most; each handshake takes the result. A half written pair
(the certificate is there, its key not yet) is not used: the old pair stays in use. So it does where
the new one is not valid now and the old one is. Where neither is, agents and other replicas turn
away, which no person would notice here: `trouble` reports it. It also reports a CA file of the
replicas that does not cover the certificate that is served.
"""

import logging
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import grpc
from attrs import define, field
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from aggregator.ingest.stats import IngestStats
from aggregator.tls.certificate import Validity, parse_certificates, signers_of
from sickbay.regular_file import version_of

log = logging.getLogger(__name__)

POLL_EVERY = 1.0


class TlsError(Exception):
    """The certificate files can't be used; the text names the file and the reason."""


@define(eq=False, repr=False, slots=False)
class CertificateFiles:
    """A pair of PEM files, and the CA of accepted client certificates.

    ``verified_by``: the CA file by which other replicas verify it, or None without other replicas.
    ``now`` is monotonic seconds, ``wall`` seconds since the epoch.
    """

    _cert_file: Path
    _key_file: Path
    _client_ca_file: Path | None
    _verified_by: Path | None = field(default=None, kw_only=True)
    _stats: IngestStats = field(kw_only=True)
    _now: Callable[[], float] = field(kw_only=True)
    _wall: Callable[[], float] = field(kw_only=True)

    def __attrs_post_init__(self) -> None:
        files = (self._cert_file, self._key_file, self._client_ca_file)
        self._files = [file for file in files if file]
        self._lock = threading.Lock()  # handshakes call from grpc's threads
        self._read_at = float("-inf")
        self._seen: tuple[tuple[int, int, int], ...] = ()
        self._complaint = ""
        self._chain: list[x509.Certificate] = []
        self._uncovered = ""
        self._compared: object = None
        #: Ends of validity of the authorities, wall clock seconds.
        self._authority_until: float | None = None
        self._client_authority_until: float | None = None
        self._next: grpc.ServerCertificateConfiguration | None = None

    def check(self) -> None:
        """`TlsError` when the files can't be used: other readers of them can't report the
        reason.
        """
        self._load()

    def trouble(self) -> str:
        """Why a client that verifies the served certificate refuses it; empty: it is valid now."""
        with self._lock:
            self.read_if_changed()
            text = _aged(self._chain, self._wall()) or self._compare()
        return f"{self._files[0]} {text}" if text else ""

    def _compare(self) -> str:
        """Check whether the CA covers the served certificate, where either has changed since."""
        if self._verified_by is None or not self._chain:
            return ""
        try:
            compared = (self._chain[0], version_of(self._verified_by))
            if compared != self._compared:
                text = self._verified_by.read_bytes()
                by = signers_of(self._chain, parse_certificates(text))
                whose = f"is signed by none of replicas.ca_file {self._verified_by}"
                self._uncovered, self._compared = "" if by else whose, compared
                self._authority_until = _latest_end(by)
        except (OSError, ValueError):
            return ""  # the other reader of that file reports its problem
        return self._uncovered

    def expiries(self) -> Mapping[str, float]:
        """When each certificate ends, wall clock seconds: ``serving``, its ``authority`` where the
        CA file of the replicas is known, and ``client_authority``, the last of its file.
        """
        with self._lock:
            self.read_if_changed()
            self._compare()
            found = {
                "serving": _latest_end(self._chain[:1]),
                "authority": self._authority_until,
                "client_authority": self._client_authority_until,
            }
        return {name: until for name, until in found.items() if until is not None}

    def credentials(self, *, require_client_certificate: bool) -> grpc.ServerCredentials:
        """For the server; `TlsError` when the files can't be used."""
        self._seen = self._signature()
        first, self._chain = self._load()
        return grpc.dynamic_ssl_server_credentials(
            first,
            self._renewed,  # type: ignore[arg-type]  # the stubs forget None, "nothing new"
            require_client_certificate,
        )

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """The new pair since the last call, or None if there is none or it is not usable."""
        with self._lock:
            self.read_if_changed()
            renewed, self._next = self._next, None
            return renewed

    def read_if_changed(self) -> None:
        now = self._now()
        if now - self._read_at < POLL_EVERY:
            return
        self._read_at = now
        try:
            signature = self._signature()
            if signature == self._seen:
                return
            renewed, chain = self._load()
            self._must_be_no_worse(chain)
        except TlsError as error:
            self._complain(str(error))
            return
        self._seen, self._next, self._chain = signature, renewed, chain
        self._complaint = ""
        log.info(
            "the TLS certificate was renewed",
            extra={"event": "certificate.renewed", "file": str(self._files[0])},
        )

    def _must_be_no_worse(self, renewed: list[x509.Certificate]) -> None:
        wall = self._wall()
        trouble = _aged(renewed, wall)
        if trouble and self._chain and not _aged(self._chain, wall):
            raise TlsError(f"{self._files[0]} {trouble}")

    def _complain(self, trouble: str) -> None:
        if trouble != self._complaint:
            self._complaint = trouble
            self._stats.certificate_troubles += 1
            log.error(
                "the renewed TLS certificate can't be used; the old one serves on",
                extra={"event": "certificate.unusable", "error": trouble},
            )

    def _signature(self) -> tuple[tuple[int, int, int], ...]:
        try:
            return version_of(*self._files)
        except OSError as error:
            raise TlsError(f"{error.filename} can't be read: {error.strerror}") from None

    def _load(self) -> tuple[grpc.ServerCertificateConfiguration, list[x509.Certificate]]:
        try:
            texts = [file.read_bytes() for file in self._files]
        except OSError as error:
            raise TlsError(f"{error.filename} can't be read: {error.strerror}") from None
        chain = self._must_belong_together(texts[0], texts[1])
        authority = texts[2] if len(texts) > 2 else None
        if authority is not None:
            clients = self._must_be_certificates(self._files[2], authority)
            self._client_authority_until = _latest_end(clients)
        self._must_be_taken_by_openssl()
        served = grpc.ssl_server_certificate_configuration([(texts[1], texts[0])], authority)
        return served, chain

    def _must_belong_together(self, certificate: bytes, key: bytes) -> list[x509.Certificate]:
        chain = self._must_be_certificates(self._files[0], certificate)
        try:
            private = serialization.load_pem_private_key(key, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise TlsError(
                f"{self._files[1]} is no private key in PEM: {_briefly(error)}"
            ) from None
        if private.public_key() != chain[0].public_key():
            raise TlsError(f"{self._files[1]} is not the key of {self._files[0]}")
        return chain

    def _must_be_taken_by_openssl(self) -> None:
        """It reads the same files for the page, and takes no text in front of a certificate."""
        context, client_ca = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._client_ca_file
        try:
            context.load_cert_chain(self._cert_file, self._key_file, password="")
            if client_ca is not None:
                context.load_verify_locations(client_ca)
        except OSError as error:  # ssl.SSLError is one
            files = ", ".join(map(str, self._files))
            why = getattr(error, "reason", None) or error.strerror or "no certificate is there"
            raise TlsError(f"OpenSSL takes one of {files} for none in PEM ({why})") from None

    @staticmethod
    def _must_be_certificates(file: Path, text: bytes) -> list[x509.Certificate]:
        try:
            return parse_certificates(text)
        except ValueError as error:
            raise TlsError(f"{file} is no certificate in PEM: {_briefly(error)}") from None


def _aged(chain: list[x509.Certificate], wall: float) -> str:
    return Validity.of(chain[0]).trouble(wall) if chain else ""


def _latest_end(certificates: Sequence[x509.Certificate]) -> float | None:
    return max((Validity.of(one).until for one in certificates), default=None)


def _briefly(error: Exception) -> str:
    """The library's first sentence, without the reference that follows it."""
    return str(error).partition(". ")[0]
