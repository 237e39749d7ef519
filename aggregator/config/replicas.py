"""The section ``replicas``: the address of this replica for others, and their proof of identity."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from aggregator.configfile.section import Section
from aggregator.configfile.values import (
    MaybePath,
    OrdinaryPath,
    PageUrl,
    ServiceAccount,
    TcpAddress,
    is_loopback,
    port_of,
    shaped,
)
from aggregator.configfile.yaml_source import Key

if TYPE_CHECKING:
    from aggregator.config.settings import Config

#: Text that can be part of a Lease's name, and of a host's.
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
Name = Annotated[
    str,
    shaped(rf"({_LABEL})?", 'small letters, digits and hyphens, such as "sickbay-aggregator-0"'),
]
Domain = Annotated[
    str,
    shaped(
        rf"({_LABEL}(\.{_LABEL})*)?",
        'the DNS name of the replicas\' headless Service, such as "sickbay-aggregator.sickbay.svc"',
    ),
]


class ReplicasConfig(Section):
    """Several replicas. With neither ``domain`` nor ``address`` this one is alone."""

    domain: Domain = ""
    """Several replicas (docs/replicas.md): this one is reached at its hostname in this domain, at
    the ports of ``listen``. In a StatefulSet: the headless Service's, such as
    ``sickbay-aggregator.sickbay.svc``, or only its name where it is in ``cluster.namespace``.
    Empty, and no ``address``: one replica alone. Without Kubernetes with ``cluster.store`` only.
    """
    address: TcpAddress = ""
    """Instead: ``"HOST:PORT"`` at which others reach its gRPC listener."""
    page: PageUrl = ""
    """The URL at which the other replicas reach its page. Empty: ``https://``, the same host, and
    the port of ``listen.web``.
    """
    name: Name = ""
    """Its name, which must stay the same over restarts, and which no other replica may have. Empty:
    the hostname.
    """
    token_file: OrdinaryPath = Path("/var/run/secrets/sickbay-replicas/token")
    """Replicas prove to each other who they are with this projected service account token, of the
    audience ``sickbay-replicas``. Read anew as it is renewed. Without Kubernetes: a secret of 32
    characters or more, the same for all.
    """
    service_account: ServiceAccount = "sickbay:sickbay-aggregator"
    """``NAMESPACE:NAME`` of the replicas' own service account; by default in ``cluster.namespace``.
    No other account's token counts.
    """
    ca_file: MaybePath = None
    """The authority that signed ``listen.tls.cert_file`` (PEM): replicas verify each other by it. A
    self-signed certificate is its own authority. Needed with ``listen.tls``, and refused where the
    aggregator makes its certificates itself.
    """

    @property
    def on(self) -> bool:
        return bool(self.domain or self.address)


def cross_field_errors(config: "Config") -> Iterator[tuple[Key, str]]:
    """Settings that are valid alone but not together: the key, and the value to write instead."""
    replicas, grpc, web = config.replicas, config.listen.grpc, config.listen.web
    if not replicas.on:
        names = ["name", "page"]
        # `domain: ""` means that it is alone, and the others' credentials are then allowed.
        if not {"domain", "address"} & replicas.model_fields_set:
            names += ["ca_file", "token_file", "service_account"]
        for name in names:
            if getattr(replicas, name) != ReplicasConfig.model_fields[name].default:
                text = (
                    "given, and neither replicas.domain nor replicas.address, so that this replica "
                    "would take itself for the only one; expected one of them"
                )
                yield ("replicas", name), text
                break
        return
    key = ("replicas", "domain" if replicas.domain else "address")
    if not config.cluster.has_api_server and config.cluster.shared_store is None:
        text = (
            "a file has the cluster's state, which one replica uses alone; expected "
            'cluster.store.database in PostgreSQL, or "" here for one alone'
        )
        yield key, text
    if replicas.domain and replicas.address:
        yield key, "given next to replicas.address; expected one of them"
    elif replicas.domain and port_of(grpc) is None:
        yield key, f'listen.grpc "{grpc}" has no port that others could know; expected "HOST:PORT"'
    if not replicas.page and port_of(web) is None:
        text = (
            f'not given, and listen.web "{web}" has no port that others could know; expected a URL'
        )
        yield ("replicas", "page"), text
    if config.has_tls and not config.makes_certificates and replicas.ca_file is None:
        text = "not given; expected the CA file that verifies listen.tls.cert_file"
        yield ("replicas", "ca_file"), text
    if not config.has_tls and not (replicas.address and is_loopback(replicas.address)):
        yield key, "without TLS replicas are on one machine only; expected listen.tls"
