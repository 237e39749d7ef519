"""The files from which listeners and clients read the certificates that the aggregator makes.

They outlive the process, so that it can serve its agents after a restart while the API server is
away.
"""

import logging
import tempfile
from pathlib import Path

from aggregator.runtime.private_file import replace_file, write_next_to
from aggregator.tls.authority import DamagedPem, ServingPair, read_bundle, read_pair

log = logging.getLogger("sickbay.tls")


class PairFiles:
    """`tls.crt`, `tls.key` and `ca.crt` in a folder, each replaced as a whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate = folder / "tls.crt"
        self.key = folder / "tls.key"
        self.bundle = folder / "ca.crt"

    def read_pair(self) -> ServingPair | None:
        """The serving pair, or None where there is none, or half of one."""
        try:
            return read_pair(self.certificate.read_bytes(), self.key.read_bytes())
        except (OSError, DamagedPem):
            return None

    def write_pair(self, pair: ServingPair) -> None:
        """Both are written before either is replaced: readers report a certificate with another
        key, and do not use it. Raises OSError.
        """
        key = write_next_to(self.key, pair.key_pem)
        certificate = write_next_to(self.certificate, pair.certificate_pem)
        key.replace(self.key)
        certificate.replace(self.certificate)

    def read_bundle(self) -> bytes:
        """The trusted certificates in PEM; empty where the file is missing or damaged."""
        try:
            text = self.bundle.read_bytes()
            read_bundle(text)
        except (OSError, DamagedPem):
            return b""
        return text

    def write_bundle(self, text: bytes) -> None:
        """Raises OSError."""
        replace_file(self.bundle, text)


def writable_files(folder: Path) -> PairFiles:
    """The files in ``folder``, or in a temporary folder where it can't be written to.

    A disk that refuses writes must not keep agents away.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = folder / ".probe"
        replace_file(probe, b"")
        probe.unlink()
    except OSError as error:
        log.warning(
            "certificates can't be kept in certificates.folder; they are made anew at each start",
            extra={"folder": str(folder), "error": error.strerror or str(error)},
        )
        return PairFiles(Path(tempfile.mkdtemp(prefix="sickbay-tls-")))
    return PairFiles(folder)
