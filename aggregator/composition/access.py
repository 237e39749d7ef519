"""Access control of page, API and metrics, as the configuration sets it."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from aggregator.access.client_certificate import CaCertificates, ClientCertificateAuthenticator
from aggregator.access.front_proxy import FrontProxyAuthenticator, ProxyHeaders
from aggregator.access.gate import AccessGate
from aggregator.access.identity import AccessRefused, Authorizer, RequestAuthenticator
from aggregator.access.oidc_claims import ClaimNames
from aggregator.access.oidc_log_in import OTHER_WAYS, OidcLogIn
from aggregator.access.oidc_provider import OidcProvider, ProviderAway, ProviderSettings
from aggregator.access.oidc_session import BegunLogIns, OidcRoles, OidcSessions, SignedCookies
from aggregator.access.static_tokens import StaticTokens, StaticTokensError
from aggregator.access.subject_access_review import SubjectAccessAuthorizer
from aggregator.access.token_review import TokenReviewAuthenticator
from aggregator.cluster.capabilities import OpenedCluster
from aggregator.config.access import OidcConfig
from aggregator.config.settings import Config
from aggregator.ingest.identity import IdentityError, Refusal
from aggregator.relay.auth import ReplicaAuthenticator
from aggregator.tls.client_context import CaFileError
from aggregator.web.access_guard import PageAccess
from aggregator.web.forwarded_client import VerifyReplica


class AccessSetupError(Exception):
    """A file of the section ``access`` can't be used; the text names it and the next step."""


def build_access(
    config: Config,
    cluster: OpenedCluster,
    replicas: ReplicaAuthenticator | None,
    *,
    now: Callable[[], float],
    wall: Callable[[], float],
) -> PageAccess:
    """``replicas`` verifies the tokens of gateways that pass requests on. Raises
    AccessSetupError.
    """
    local = cluster.capabilities.access_reviews is None
    tokens = not local or config.access.tokens_file is not None
    ways = _local_ways(tokens=tokens) if local else OTHER_WAYS
    oidc = None
    if config.access.on:
        oidc = build_oidc(config.access.oidc, now=now, wall=wall, other_ways=ways)
    gate = _gate(config, cluster, oidc, now=now, wall=wall) if config.access.on else None
    if replicas is None:
        return PageAccess(gate=gate, oidc=oidc, tokens=tokens)
    verify = page_verifier(replicas.renew)
    return PageAccess(gate=gate, oidc=oidc, tokens=tokens, verify_replica=verify)


def _local_ways(*, tokens: bool) -> str:
    """The other ways to log in on a local cluster, in a sentence."""
    token = "a token of access.tokens_file, or " if tokens else ""
    return f"Other ways go on: {token}`sickbay --local` on the aggregator's machine."


def build_oidc(
    config: OidcConfig | None,
    *,
    now: Callable[[], float],
    wall: Callable[[], float],
    other_ways: str = OTHER_WAYS,
) -> OidcLogIn | None:
    """The log-in by OpenID Connect, or None without one. Raises AccessSetupError.

    The issuer may be away at a start: its metadata is read when the first person logs in.
    """
    if config is None:
        return None
    settings = ProviderSettings(
        issuer=config.issuer,
        client_id=config.client_id,
        client_secret_file=config.client_secret_file,
        page=config.page.rstrip("/"),
        scopes=config.scopes,
        ca_file=config.ca_file,
    )
    provider = OidcProvider(settings, now=now)
    try:
        provider.secret()
    except ProviderAway as error:
        raise AccessSetupError(str(error)) from error
    client = f"{config.issuer} {config.client_id}"
    cookies = SignedCookies(provider.secret, client=client, wall=wall)
    groups = frozenset((*config.viewers, *config.operators))
    return OidcLogIn(
        provider=provider,
        begun=BegunLogIns(cookies),
        sessions=OidcSessions(cookies, known=groups, lasts=config.session),
        names=ClaimNames(config.user_claim, config.groups_claim),
        groups=groups,
        other_ways=other_ways,
        now=now,
    )


def _gate(
    config: Config,
    cluster: OpenedCluster,
    oidc: OidcLogIn | None,
    *,
    now: Callable[[], float],
    wall: Callable[[], float],
) -> AccessGate:
    access = config.access
    rules = {"anonymous": access.anonymous, "actions": access.actions}
    found: list[RequestAuthenticator] = [oidc.sessions] if oidc is not None else []
    reviews = cluster.capabilities.access_reviews
    if reviews is None:
        tokens = _static_tokens(access.tokens_file)
        found += [tokens] if tokens is not None else []
        return AccessGate(found, _authorizer(access.oidc, tokens), **rules)
    proxy = access.front_proxy
    try:
        if proxy is not None:
            found.append(
                FrontProxyAuthenticator(
                    CaCertificates(proxy.ca_file),
                    names=proxy.names,
                    headers=ProxyHeaders(proxy.user_header, proxy.groups_header),
                    wall=wall,
                )
            )
        found.append(TokenReviewAuthenticator(reviews, audiences=access.audiences, now=now))
        if access.client_ca_file is not None:
            authorities = CaCertificates(access.client_ca_file)
            found.append(ClientCertificateAuthenticator(authorities, wall=wall))
    except CaFileError as error:
        raise AccessSetupError(f"access: {error}") from error
    by_review = SubjectAccessAuthorizer(reviews, now=now)
    return AccessGate(found, _authorizer(access.oidc, by_review), **rules)


def _static_tokens(file: Path | None) -> StaticTokens | None:
    """Raises AccessSetupError."""
    if file is None:
        return None
    try:
        return StaticTokens(file)
    except StaticTokensError as error:
        raise AccessSetupError(f"access.tokens_file: {error}") from error


def _authorizer(oidc: OidcConfig | None, others: Authorizer | None) -> Authorizer:
    if oidc is not None:
        return OidcRoles(oidc.viewers, oidc.operators, others)
    assert others is not None, "the configuration requires tokens_file or oidc"
    return others


def page_verifier(verify: Callable[[str], Awaitable[float]]) -> VerifyReplica:
    """The check of the gRPC listener, with its refusals as the page's."""

    async def check(token: str) -> None:
        try:
            await verify(token)
        except IdentityError as error:
            # Not the reader's fault: its gateway gets another one soon, or can be verified soon.
            passing = error.passing or error.refusal is Refusal.EXPIRED
            raise AccessRefused(
                503 if passing else 403,
                "invalid_replica_token",
                f"the replica that passed this request on could not prove itself: {error}",
                "Try again later, or at the controller's own address: docs/replicas.md."
                if passing
                else "replicas.service_account names the account of the replicas.",
            ) from error

    return check
