"""TLS contexts for clients, from a CA file."""

import ssl
from pathlib import Path

from aggregator.configfile.regular_file import require_regular_file


class CaFileError(Exception):
    """The file can't be used: its name, the problem, and the expected content."""


def client_context(file: Path) -> ssl.SSLContext:
    """A context that trusts only the CAs in ``file``. Raises CaFileError, whose text names the file
    and the expected content, which OpenSSL's does not.
    """
    try:
        return ssl.create_default_context(cafile=require_regular_file(file))
    except ssl.SSLError as error:
        text = f"{file} holds no certificate; expected PEM, with -----BEGIN and -----END"
        raise CaFileError(text) from error
    except OSError as error:
        text = f"{file} can't be read: {error.strerror}; expected a readable file"
        raise CaFileError(text) from error
