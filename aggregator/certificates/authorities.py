"""Files of the authorities whose certificates are believed."""

import ssl
from pathlib import Path

from aggregator.reading.regular import regular


class AuthoritiesError(Exception):
    """The file can't be used: which, what is wrong with it, what was expected."""


def trusting(file: Path) -> ssl.SSLContext:
    """To connect with, believing those in ``file`` alone. Raises AuthoritiesError, not in OpenSSL's
    words, which tell neither the file nor what belongs there.
    """
    try:
        return ssl.create_default_context(cafile=regular(file))
    except ssl.SSLError as error:
        text = f"{file} holds no certificate; expected PEM, with -----BEGIN and -----END"
        raise AuthoritiesError(text) from error
    except OSError as error:
        text = f"{file} can't be read: {error.strerror}; expected a readable file"
        raise AuthoritiesError(text) from error
