"""The page's certificate, read again when it rotates."""

import asyncio
import logging
import ssl
from pathlib import Path

log = logging.getLogger("sickbay.web")

#: Seconds between looks at the files.
EVERY = 60.0


class Certificate:
    """A TLS context on two files. Raises OSError or ssl.SSLError when they can't be loaded."""

    def __init__(self, cert_file: Path, key_file: Path) -> None:
        self._files = (cert_file, key_file)
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._seen = self._look()
        self._load()

    async def follow(self) -> None:
        """Until cancelled: new connections get the certificate that is there now."""
        while True:
            await asyncio.sleep(EVERY)
            try:
                now = self._look()
                if now != self._seen:
                    self._load()
                    self._seen = now
                    log.info("the page's certificate was read again")
            except OSError as error:  # ssl.SSLError is one; half-written files are tried again
                log.warning("the page's certificate can't be read", extra={"error": str(error)})

    def _load(self) -> None:
        # A passphrase that is none: OpenSSL would ask the terminal for one, and wait.
        self.context.load_cert_chain(*self._files, password="")

    def _look(self) -> tuple[tuple[int, int], ...]:
        stats = [path.stat() for path in self._files]
        return tuple((stat.st_ino, stat.st_mtime_ns) for stat in stats)
