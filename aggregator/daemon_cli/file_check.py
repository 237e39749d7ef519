"""Whether the files that a configuration names hold what they should, for `config check`.

That each is there, and that a secret is not empty, is checked with the configuration itself. Each
imports what it needs: that takes a while, so only where there is a file to read.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from aggregator.config.settings import Config
from aggregator.configfile.yaml_source import Key


def unusable_files(config: Config) -> Iterator[tuple[Key, str]]:
    """The key of each file that is there and can't be used, and why. No text has a secret."""
    yield from _certificate(config)
    yield from _authorities(config)
    yield from _access(config)


def unusable_alert_files(config: Config) -> Iterator[tuple[Key, str]]:
    """The same of receivers' files, which a start checks too."""
    if config.alerts.receivers:
        from aggregator.alerts.file_check import unusable_files

        for key, text in unusable_files(config.alerts.settings):
            yield ("alerts", *key), text


def _certificate(config: Config) -> Iterator[tuple[Key, str]]:
    tls = config.listen.tls
    if tls is None:
        return
    from aggregator.ingest.stats import IngestStats
    from aggregator.ingest.tls import CertificateFiles, TlsError

    files = CertificateFiles(
        tls.cert_file,
        tls.key_file,
        tls.client_ca_file,
        verified_by=config.replicas.ca_file,
        stats=IngestStats(),
        now=time.monotonic,
        wall=time.time,
    )
    try:
        files.credentials(require_client_certificate=tls.client_ca_file is not None)
    except TlsError as error:
        yield ("listen", "tls"), f"{error}; expected a certificate with its key, in PEM"
        return
    if trouble := files.trouble():
        yield ("listen", "tls", "cert_file"), f"{trouble}; expected one that others take"
    yield from _unreachable(config)


def _unreachable(config: Config) -> Iterator[tuple[Key, str]]:
    """Only where the file gives the replica's address itself: in a domain it is the host's name."""
    if config.replicas.address:
        from aggregator.composition.identity import ReplicaIdentityError, local_candidate

        try:
            local_candidate(config, hostname="any", epoch="", version="")
        except ReplicaIdentityError as error:
            yield ("replicas", "address"), str(error)


def _authorities(config: Config) -> Iterator[tuple[Key, str]]:
    oidc, proxy = config.access.oidc, config.access.front_proxy
    named: dict[Key, Path | None] = {
        ("replicas", "ca_file"): config.replicas.ca_file,
        ("history", "ca_file"): config.history.ca_file,
        ("cluster", "store", "ca_file"): config.cluster.store.ca_file,
        ("access", "client_ca_file"): config.access.client_ca_file,
        ("access", "front_proxy", "ca_file"): proxy.ca_file if proxy is not None else None,
        ("access", "oidc", "ca_file"): oidc.ca_file if oidc is not None else None,
    }
    for key, file in named.items():
        if file is not None:
            from aggregator.tls.certificate import read_certificates
            from aggregator.tls.client_context import CaFileError, client_context

            try:
                client_context(file)
                read_certificates(file)
            except CaFileError as error:
                yield key, str(error)


def _access(config: Config) -> Iterator[tuple[Key, str]]:
    access = config.access
    if access.tokens_file is not None:
        from aggregator.access.static_tokens import StaticTokens, StaticTokensError

        try:
            StaticTokens(access.tokens_file)
        except StaticTokensError as error:
            yield ("access", "tokens_file"), str(error)
    if access.oidc is not None:
        from aggregator.access.oidc_provider import ProviderAway, read_client_secret

        try:
            read_client_secret(access.oidc.client_secret_file)
        except ProviderAway as error:
            yield ("access", "oidc", "client_secret_file"), str(error)
