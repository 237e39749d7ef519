"""The page's certificate, read again when it rotates.

A new certificate that is not valid now is refused while the served one is. `aggregator.ingest.tls`
reads the same files for the agents, and reports the reason.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from cryptography import x509

from aggregator.tls.certificate import Validity
from sickbay.regular_file import version_of

log = logging.getLogger("sickbay.web")

#: Seconds between checks of the files.
EVERY = 1.0


class Certificate:
    """A TLS context on two files. Raises OSError or ssl.SSLError when they can't be loaded.

    ``wall`` is seconds since the epoch. ``client_authorities``: files of CAs whose certificates a
    client may present, and need not; with none no client certificate is requested.
    """

    def __init__(
        self,
        cert_file: Path,
        key_file: Path,
        *,
        wall: Callable[[], float],
        client_authorities: Sequence[Path] = (),
    ) -> None:
        self._files = (cert_file, key_file)
        self._client_authorities = tuple(client_authorities)
        self._wall = wall
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._seen = version_of(*self._files, *self._client_authorities)
        self._load(self.context)
        self._validity = self._read_validity()
        self._complaint = ""

    async def follow(self) -> None:
        """Until cancelled: new connections get the certificate that is there now."""
        while True:
            await asyncio.sleep(EVERY)
            self.reload_if_changed()

    def reload_if_changed(self) -> None:
        """Read it again, if the new one is better."""
        try:
            now = version_of(*self._files, *self._client_authorities)
            if now != self._seen and not self._is_worse():
                # A certificate with another key would leave the served context without a key.
                self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
                self._load(self.context)
                self._seen, self._validity = now, self._read_validity()
                self._complaint = ""
                log.info("the page's certificate was read again")
        except OSError as error:  # ssl.SSLError is one; half-written files are tried again
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.warning("the page's certificate can't be read", extra={"error": str(error)})

    def _is_worse(self) -> bool:
        renewed, wall = self._read_validity(), self._wall()
        return bool(renewed.trouble(wall)) and not self._validity.trouble(wall)

    def _read_validity(self) -> Validity:
        try:
            return Validity.of(x509.load_pem_x509_certificates(self._files[0].read_bytes())[0])
        except ValueError as error:
            raise OSError(f"{self._files[0]} is no certificate in PEM: {error}") from None

    def _load(self, context: ssl.SSLContext) -> None:
        # An empty passphrase: OpenSSL would read one from the terminal, and wait.
        context.load_cert_chain(*self._files, password="")
        for file in self._client_authorities:
            context.load_verify_locations(cafile=str(file))
        if self._client_authorities:
            context.verify_mode = ssl.CERT_OPTIONAL
            # A file may have an intermediate CA alone: it is that one which is trusted.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
