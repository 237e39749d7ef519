"""The certificates of the listeners: configured files, or ones that the aggregator makes itself.

Either way listeners and clients read files, again whenever these change.
"""

import asyncio
import random
from dataclasses import dataclass
from urllib.parse import urlsplit

from aggregator.clock import Clocks
from aggregator.cluster.capabilities import OpenedCluster
from aggregator.config.settings import Config
from aggregator.tls.automatic import AutomaticCertificates
from aggregator.tls.pair_files import writable_files

#: The Services of deploy/kubernetes.
SERVICE = "sickbay-aggregator"
PAGE_SERVICE = "sickbay-page"
_CLUSTER_DOMAIN = "cluster.local"
#: For `kubectl port-forward`.
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
#: The listeners wait this long (seconds) for the first certificate that agents trust.
_FIRST_WITHIN = 5.0


@dataclass(frozen=True, slots=True)
class ServingCertificates:
    """``config`` names the files; ``automatic`` makes and renews them, and is None where a person
    configured them, or where listeners are not encrypted.
    """

    config: Config
    automatic: AutomaticCertificates | None = None

    async def run(self) -> None:
        """For ever."""
        if self.automatic is None:
            await asyncio.Event().wait()
        else:
            await self.automatic.run()

    async def first(self) -> None:
        """Wait for the first certificate that agents trust, while `run` runs; a few seconds."""
        if self.automatic is not None:
            await self.automatic.first(_FIRST_WITHIN)

    @property
    def trouble(self) -> str:
        """Why no client can verify what is served; empty: it is not known here."""
        return self.automatic.trouble if self.automatic is not None else ""


def prepare_certificates(
    config: Config,
    cluster: OpenedCluster,
    *,
    hostname: str,
    clocks: Clocks,
    rng: random.Random,
) -> ServingCertificates:
    """Files that exist, so that the listeners can start. No request to the cluster is made."""
    authorities = cluster.capabilities.authorities
    if not config.makes_certificates or authorities is None:
        return ServingCertificates(config)
    files = writable_files(config.certificates.folder)
    automatic = AutomaticCertificates(
        authorities,
        files,
        serving_names(config, hostname),
        rules=config.certificates.rules,
        clocks=clocks,
        rng=rng,
    )
    with_files = config.with_tls(
        cert_file=files.certificate, key_file=files.key, ca_file=files.bundle
    )
    return ServingCertificates(with_files, automatic)


def serving_names(config: Config, hostname: str) -> frozenset[str]:
    """The DNS names and addresses by which clients reach this replica."""
    replicas, namespace = config.replicas, config.cluster.namespace
    own = hostname.partition(".")[0].lower()
    domain = replicas.domain or f"{SERVICE}.{namespace}.svc"
    services = [domain, f"{own}.{domain}", f"{PAGE_SERVICE}.{namespace}.svc"]
    in_full = [f"{name}.{_CLUSTER_DOMAIN}" for name in services if name.endswith(".svc")]
    others = (
        replicas.address.rpartition(":")[0].strip("[]"),
        urlsplit(replicas.page).hostname or "",
    )
    return frozenset(
        {*services, *in_full, *_THIS_MACHINE, *config.certificates.names, *filter(None, others)}
    )
