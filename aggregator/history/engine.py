"""The credentials of the history's database, and its failure."""

from dataclasses import dataclass

import sqlalchemy as sa

from aggregator.configfile.section import SectionDataclass
from aggregator.configfile.values import MaybePath


class HistoryError(OSError):
    """The database can't be used now; the text names the reason, without secrets."""


@dataclass(frozen=True, slots=True)
class DatabaseCredentials(SectionDataclass):
    """The proof of our identity, and of the server's. The files are read at each connection.

    Without ``password_file`` the server requires no password, or PGPASSFILE has it. Without
    ``ca_file`` a server that is reached over a network must speak TLS, with any certificate, unless
    ``insecure_plaintext`` is set.
    """

    password_file: MaybePath = None
    """PostgreSQL's password, read at each connection. Not set: the server requires no password, or
    ``PGPASSFILE`` has it.
    """
    ca_file: MaybePath = None
    """The authority that signed PostgreSQL's certificate: the certificate is verified, and its
    name.
    """
    insecure_plaintext: bool = False
    """PostgreSQL may be reached without TLS over a network."""


def reason(error: Exception) -> str:
    """The driver's own message: SQLAlchemy's includes the statement and its values."""
    if isinstance(error, sa.exc.DBAPIError) and error.orig is not None:
        error = error.orig if isinstance(error.orig, Exception) else error
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    # SQLAlchemy puts the class before the driver's message: "<class '...'>: message".
    return text.partition("'>: ")[2] or text or type(error).__name__
