"""The section ``access``: who may read page, API and metrics, and who may act by them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from pydantic import Field

from aggregator.configfile.section import Section, Strings
from aggregator.configfile.values import Duration, MaybePath, OrdinaryPath, PageUrl, shaped
from aggregator.configfile.yaml_source import Key

if TYPE_CHECKING:
    from aggregator.config.settings import Config

ClaimName = Annotated[
    str, shaped(r"[A-Za-z0-9_:/.-]{1,128}", 'the name of a claim, such as "groups"')
]
IssuerUrl = Annotated[
    str, shaped(r"https?://[^\s?#]{1,500}", 'the address of an issuer, "https://HOST/PATH"')
]
HeaderName = Annotated[
    str, shaped(r"[A-Za-z0-9-]{1,64}", 'the name of a header, such as "X-Remote-User"')
]


class FrontProxyConfig(Section):
    """A proxy that authenticates people, with a client certificate of its own."""

    ca_file: OrdinaryPath
    """A front proxy (docs/aggregator.md#a-front-proxy) that authenticates people: the CA of its
    client certificate, and of no other certificate.
    """
    names: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    """CNs of the proxy's certificate."""
    user_header: HeaderName = "X-Remote-User"
    """The header with the user."""
    groups_header: HeaderName = "X-Remote-Group"
    """The header with the groups: several of it, or one with commas."""


class OidcConfig(Section):
    """A log-in by OpenID Connect: authorization code flow with PKCE."""

    issuer: IssuerUrl
    """A log-in by OpenID Connect (docs/security.md#log-in-by-openid-connect), where readers need an
    identity: the provider, exactly as its metadata names it. ``https``, or on loopback ``http``.
    """
    client_id: Annotated[str, Field(min_length=1, max_length=256)]
    """The client at the provider: a confidential one, for the authorization code flow."""
    client_secret_file: OrdinaryPath
    """A file with the client's secret. Read anew at each log-in. Another secret ends all
    sessions.
    """
    page: Annotated[PageUrl, Field(min_length=1)]
    """The address of the page in browsers. The client's redirect URI is this and
    ``/login/oidc/callback``.
    """
    scopes: Strings = ("profile", "email")
    """The scopes besides ``openid``. Some providers name groups with the scope ``groups`` alone."""
    user_claim: ClaimName = "email"
    """The claim with the user's name."""
    groups_claim: ClaimName = "groups"
    """The claim with the user's groups."""
    viewers: Strings = ()
    """Groups that may read."""
    operators: Strings = ()
    """Groups that may read, and act where ``access.actions`` is true."""
    session: Annotated[Duration, Field(ge=60, le=86400)] = 3600.0
    """The length of a session, from a minute to a day. Until its end a group that the provider took
    from a person counts.
    """
    ca_file: MaybePath = None
    """The CA of the provider's certificate (PEM). Not set: the system's."""


class AccessConfig(Section):
    """How readers and actors prove who they are."""

    anonymous: bool = True
    """Whether every client that reaches page, API and metrics may read them; ``false``: readers
    prove who they are (docs/security.md#readers-of-the-page).
    """
    actions: bool = False
    """Whether people may act by page and API (docs/security.md#actions-of-people), with their own
    rights. Needs ``deploy/examples/page-actions-rbac.yaml``.
    """
    audiences: Strings = ()
    """Audiences of bearer tokens, one of which a token must have. Not set: the API server's own,
    which ``kubectl create token`` requests.
    """
    client_ca_file: MaybePath = None
    """The CA of people's client certificates (PEM; the direct issuer): CN is the user, each O a
    group. Needs TLS. Read again when it changes.
    """
    front_proxy: FrontProxyConfig | None = None
    oidc: OidcConfig | None = None
    tokens_file: MaybePath = None
    """With ``cluster.kind: local``: a file with a line ``TOKEN,USER,ROLE`` for each reader, ROLE
    being ``viewer`` or ``operator``. Tokens have 22 characters or more (``openssl rand -base64
    24``). Read again when it changes.
    """

    @property
    def on(self) -> bool:
        """Whether any request needs an identity."""
        return not self.anonymous or self.actions

    @property
    def client_authorities(self) -> tuple[Path, ...]:
        """The CAs whose client certificates TLS accepts at the page."""
        proxy = self.front_proxy.ca_file if self.front_proxy is not None else None
        return tuple(file for file in (self.client_ca_file, proxy) if file is not None)


def cross_field_errors(config: "Config") -> Iterator[tuple[Key, str]]:
    """Settings that are valid alone but not together: the key, and the value to write instead."""
    section, access, kubernetes = "access", config.access, config.cluster.has_api_server
    node_ca = config.listen.tls.client_ca_file if config.listen.tls is not None else None
    kube_only = {
        "client_ca_file": access.client_ca_file,
        "front_proxy": access.front_proxy,
        "audiences": access.audiences,
    }
    for name, value in kube_only.items():
        if value and not kubernetes:
            text = (
                'users have rights of an API server, and cluster.kind is not "kubernetes"; '
                "expected access.tokens_file"
            )
            yield (section, name), text
    if access.tokens_file is not None and kubernetes:
        text = (
            "static tokens are for a local cluster; expected bearer tokens of the API server "
            "(kubectl create token), client certificates, or access.front_proxy"
        )
        yield (section, "tokens_file"), text
    proofs: dict[str, object] = {
        **kube_only,
        "tokens_file": access.tokens_file,
        "oidc": access.oidc,
    }
    for name, proof in proofs.items():
        if proof and not access.on:
            text = (
                "no request needs an identity, so that every client that reaches the page may read "
                "it; expected access.anonymous: false, or access.actions: true"
            )
            yield (section, name), text
    if access.on and not kubernetes and access.tokens_file is None and access.oidc is None:
        yield (section, "tokens_file"), "not given, so that no request could prove an identity"
    if access.oidc is not None:
        yield from _oidc_errors(access.oidc)
    for name in ("client_ca_file", "front_proxy"):
        if kube_only[name] and not config.has_tls:
            text = "client certificates need TLS; expected listen.tls or automatic certificates"
            yield (section, name), text
    proxy_ca = access.front_proxy.ca_file if access.front_proxy is not None else None
    if proxy_ca is not None and proxy_ca == access.client_ca_file:
        text = (
            "the same CA as access.client_ca_file, whose certificates are people's, and one named "
            "like the proxy could pose as any user; expected a CA of the proxy's own"
        )
        yield (section, "front_proxy", "ca_file"), text
    if node_ca is not None and node_ca in access.client_authorities:
        text = "the CA of the nodes' certificates (listen.tls.client_ca_file); expected another one"
        key = "client_ca_file" if node_ca == access.client_ca_file else "front_proxy"
        yield (section, key), text


def warnings(config: "Config") -> Iterator[tuple[Key, str]]:
    """A page on Kubernetes that any pod may read, because a file of one's own lacks the key."""
    listen, given = config.listen, config.access.model_fields_set
    is_open = listen.is_exposed and not listen.insecure_plaintext and "anonymous" not in given
    if is_open and config.cluster.has_api_server:
        text = "not given: every client that reaches the page may read it; expected false or true"
        yield ("access", "anonymous"), text


def _oidc_errors(oidc: OidcConfig) -> Iterator[tuple[Key, str]]:
    section = ("access", "oidc")
    if not (oidc.viewers or oidc.operators):
        yield (*section, "viewers"), "no group has a role; expected viewers, operators or both"
    for role, groups in (("viewers", oidc.viewers), ("operators", oidc.operators)):
        if not all(one.strip() for one in groups):
            # Some issuers name no group by an empty text.
            yield (*section, role), "an empty name; expected a group of the issuer"
    for name, url in (("issuer", oidc.issuer), ("page", oidc.page)):
        parts = urlsplit(url)
        if parts.scheme != "https" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
            text = "secrets and cookies would go in plain text; expected https://"
            yield (*section, name), text
