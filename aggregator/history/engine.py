"""The credentials of a database in PostgreSQL."""

from dataclasses import dataclass

from aggregator.configfile.section import SectionDataclass
from aggregator.configfile.values import MaybePath


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
