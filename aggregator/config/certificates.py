"""The section ``certificates``: those that the aggregator makes itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from aggregator.configfile.section import Section
from aggregator.configfile.values import Duration, HostName, OrdinaryPath
from aggregator.configfile.yaml_source import Key
from aggregator.rfc3339 import span
from aggregator.tls.rotation import RENEW_AT, Rules

if TYPE_CHECKING:
    from aggregator.config.settings import Config


class CertificatesConfig(Section):
    """Automatic certificates. Durations are seconds."""

    automatic: bool | None = None
    """``true``: the aggregator makes its certificates itself (docs/certificates.md). ``false``:
    never. Not set: on Kubernetes, where other machines can reach a listener and neither
    ``listen.tls`` nor ``listen.insecure_plaintext`` is given.
    """
    folder: OrdinaryPath = Path("/var/lib/sickbay-aggregator/tls")
    """Where it keeps its certificate, the key, and the certificates that it trusts."""
    names: Annotated[tuple[HostName, ...], Field(strict=False)] = ()
    """Further DNS names and IPv4 addresses that its certificate covers, next to those of its
    Services and its own.
    """
    lifetime: Annotated[Duration, Field(ge=1)] = 90 * 86400.0
    """Its certificate is valid for this long, and is renewed when a third is left."""
    authority_lifetime: Annotated[Duration, Field(ge=1)] = 730 * 86400.0
    """The CA is valid for this long; the next one is made when a third is left."""
    publish_wait: Annotated[Duration, Field(ge=1)] = 900.0
    """A new CA is published for this long before it signs: by then every agent can have read it."""

    @property
    def rules(self) -> Rules:
        return Rules(
            lifetime=self.lifetime,
            authority_lifetime=self.authority_lifetime,
            publish_wait=self.publish_wait,
        )


def cross_field_errors(config: "Config") -> Iterator[tuple[Key, str]]:
    """Settings that are valid alone but not together: the key, and the value to write instead."""
    certificates, automatic = config.certificates, ("certificates", "automatic")
    if certificates.automatic and not config.cluster.has_api_server:
        text = 'the authority is kept in Kubernetes, and cluster.kind is not "kubernetes"; '
        yield automatic, text + "expected listen.tls with certificates of your own"
    if certificates.automatic and config.listen.tls is not None:
        yield automatic, "given next to listen.tls; expected one of them"
    if config.makes_certificates and config.replicas.ca_file is not None:
        text = (
            "given, and the aggregator makes its certificates itself (certificates.automatic); "
            "expected listen.tls too, or no replicas.ca_file"
        )
        yield ("replicas", "ca_file"), text
    # The next authority is made when a third of its lifetime is left.
    spare = certificates.authority_lifetime * RENEW_AT
    for name, longest in (("lifetime", spare), ("publish_wait", spare / 2)):
        if getattr(certificates, name) > longest:
            text = (
                f"{span(getattr(certificates, name))} is too long for an authority of "
                f'{span(certificates.authority_lifetime)}; expected at most "{span(longest // 1)}"'
            )
            yield ("certificates", name), text
