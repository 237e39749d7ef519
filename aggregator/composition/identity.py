"""Which replica this process is, by its configuration and its host, as other replicas see it."""

import ipaddress
import re

from cryptography import x509

from aggregator.config.settings import Config
from aggregator.configfile.values import port_of
from aggregator.leader.lease import Candidate

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


class ReplicaIdentityError(Exception):
    """The others could not reach this replica, or not trust it; the text names the setting to
    change.
    """


def local_candidate(config: Config, *, hostname: str, epoch: str, version: str) -> Candidate:
    """The replica as the Lease describes its holder. Without the section ``replicas`` it has no
    address for others.

    ``epoch``: random, of this life of the process. Raises `ReplicaIdentityError`.
    """
    replicas = config.replicas
    own = hostname.partition(".")[0].lower()
    name = replicas.name or own
    if not replicas.on:
        return Candidate(name, epoch, version=version)
    if _NAME.fullmatch(name) is None:
        raise ReplicaIdentityError(
            f"the hostname \"{own}\" can't be a replica's name; expected replicas.name"
        )
    address = replicas.address or f"{own}.{replicas.domain}:{port_of(config.listen.grpc)}"
    host = address.rpartition(":")[0]
    if config.listen.tls is not None:
        _must_be_covered(config, host.strip("[]"))
    scheme = "http" if config.listen.tls is None else "https"
    page = replicas.page.rstrip("/") or f"{scheme}://{host}:{port_of(config.listen.web)}"
    return Candidate(name, epoch, address, page, version)


def _must_be_covered(config: Config, host: str) -> None:
    """A gateway that connects there must be able to verify the replica's certificate."""
    assert config.listen.tls is not None
    file = config.listen.tls.cert_file
    try:
        certificate = x509.load_pem_x509_certificates(file.read_bytes())[0]
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except OSError as error:
        raise ReplicaIdentityError(f"{file} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise ReplicaIdentityError(f"{file} is no certificate in PEM: {error}") from None
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    if not matches_hostname(names, host):
        covered = ", ".join(str(name.value) for name in names) or "no name at all"
        wanted = f'"*.{config.replicas.domain}"' if config.replicas.domain else f'"{host}"'
        raise ReplicaIdentityError(
            f"listen.tls.cert_file {file} is for {covered}, and gateways know this replica as "
            f"{host}; expected a certificate for {wanted} as well (docs/install.md), or another "
            f"replicas.{'domain' if config.replicas.domain else 'address'}"
        )


def matches_hostname(names: x509.SubjectAlternativeName, host: str) -> bool:
    """Whether a client that verifies names accepts the certificate for the host.

    A wildcard matches the first label alone (RFC 6125, 6.4.3).
    """
    try:
        return ipaddress.ip_address(host) in names.get_values_for_type(x509.IPAddress)
    except ValueError:
        pass
    known = {name.lower() for name in names.get_values_for_type(x509.DNSName)}
    host = host.lower()
    return host in known or f"*.{host.partition('.')[2]}" in known
