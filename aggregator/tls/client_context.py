"""TLS contexts for clients, from a CA file."""

import logging
import ssl
from pathlib import Path
from typing import Self

from sickbay.regular_file import require_regular_file, version_of

log = logging.getLogger("sickbay.tls")


class CaFileError(Exception):
    """The file can't be used: its name, the problem, and the expected content."""

    @classmethod
    def unreadable(cls, file: Path | None, error: OSError) -> Self:
        return cls(f"{file} can't be read: {error.strerror}; expected a readable file")

    @classmethod
    def no_certificate(cls, file: Path) -> Self:
        return cls(f"{file} holds no certificate; expected PEM, with -----BEGIN and -----END")


def client_context(file: Path) -> ssl.SSLContext:
    """A context that trusts only the CAs in ``file``. Raises CaFileError, whose text names the file
    and the expected content, which OpenSSL's does not.
    """
    try:
        return ssl.create_default_context(cafile=require_regular_file(file))
    except ssl.SSLError as error:
        raise CaFileError.no_certificate(file) from error
    except OSError as error:
        raise CaFileError.unreadable(file, error) from error


class FollowedAuthorities:
    """A context by a CA file, made again when the file changes. ``file`` None: the system's CAs."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._seen: object = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """For a connection. While a changed file can't be read, the earlier content counts; raises
        CaFileError without one.
        """
        try:
            self._read_if_changed()
        except CaFileError as error:
            if self._context is None:
                raise
            log.warning("the replicas' authorities can't be read", extra={"error": str(error)})
        assert self._context is not None
        return self._context

    def _read_if_changed(self) -> None:
        try:
            seen = version_of(*([self._file] if self._file is not None else []))
        except OSError as error:
            raise CaFileError.unreadable(self._file, error) from error
        if self._context is None or seen != self._seen:
            file = self._file
            self._context = client_context(file) if file else ssl.create_default_context()
            self._seen = seen
