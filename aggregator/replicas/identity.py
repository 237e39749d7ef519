"""Which replica this process is, by its configuration and its host, as other replicas see it."""

import hashlib
import ipaddress
import json
import re
from dataclasses import asdict

from cryptography import x509

from aggregator.config.settings import Config
from aggregator.configfile.values import port_of
from aggregator.replicas.membership.view import Member

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


class ReplicaIdentityError(Exception):
    """The others could not reach this replica, or not trust it; the text names the setting to
    change.
    """


def local_member(
    config: Config, *, hostname: str, epoch: str, policy_hash: str, version: str
) -> Member | None:
    """The replica as its Lease describes it, or None if the configuration has no others.

    ``epoch``: random, of this life of the process. Raises `ReplicaIdentityError`.
    """
    shards = config.shards
    if not shards.on:
        return None
    own = hostname.partition(".")[0].lower()
    name = shards.name or own
    if _NAME.fullmatch(name) is None:
        raise ReplicaIdentityError(
            f'the hostname "{own}" can\'t name a Lease; expected shards.name'
        )
    address = shards.address or f"{own}.{shards.domain}:{port_of(config.listen.grpc)}"
    host = address.rpartition(":")[0]
    if config.listen.tls is not None:
        _must_be_covered(config, host.strip("[]"))
    scheme = "http" if config.listen.tls is None else "https"
    return Member(
        name=name,
        epoch=epoch,
        address=address,
        page=shards.page.rstrip("/") or f"{scheme}://{host}:{port_of(config.listen.web)}",
        policy_hash=policy_hash,
        version=version,
        mode=config.mode.value,
        limits_hash=_limits_hash(config),
    )


def _limits_hash(config: Config) -> str:
    """Of the limits and pools, in their order; without pools as before there were any."""
    text = json.dumps(asdict(config.limits))
    if config.pools:
        text += json.dumps([asdict(one) for one in config.pools])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _must_be_covered(config: Config, host: str) -> None:
    """An agent that is redirected there must be able to verify the replica's certificate."""
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
        told = ", ".join(str(name.value) for name in names) or "no name at all"
        wanted = f'"*.{config.shards.domain}"' if config.shards.domain else f'"{host}"'
        raise ReplicaIdentityError(
            f"listen.tls.cert_file {file} is for {told}, and others are sent to this replica as "
            f"{host}; expected a certificate for {wanted} as well (docs/install.md), or another "
            f"shards.{'domain' if config.shards.domain else 'address'}"
        )


def matches_hostname(names: x509.SubjectAlternativeName, host: str) -> bool:
    """Whether a client that verifies names accepts the certificate for the host.

    A wildcard stands for the first label alone (RFC 6125, 6.4.3).
    """
    try:
        return ipaddress.ip_address(host) in names.get_values_for_type(x509.IPAddress)
    except ValueError:
        pass
    known = {name.lower() for name in names.get_values_for_type(x509.DNSName)}
    host = host.lower()
    return host in known or f"*.{host.partition('.')[2]}" in known
