"""Talks to an OpenID Connect provider: its metadata, its keys, and the exchange of a code.

Authorization code flow with PKCE (RFC 7636). Answers are bounded in size and time, redirects are
not followed, and only asymmetric signatures count: a public key is no shared secret.
"""

import asyncio
import base64
import hashlib
import ssl as tls
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote_plus, urlencode, urlsplit

import aiohttp
import jwt
import msgspec

from aggregator.access.oidc_claims import ClaimRefused
from aggregator.runtime.secret_file import SecretError, read_token
from aggregator.tls.key_set import KeysError, read_key_set

T = TypeVar("T")

#: Signatures of ID tokens.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
#: Seconds by which the issuer's clock and ours may differ.
LEEWAY = 60.0
#: Seconds for one answer of the issuer.
PATIENCE = 8.0
#: Seconds that its metadata and its keys count.
_METADATA_FOR = 3600.0
#: Seconds in which it is not requested again after it gave no metadata.
_AWAY_FOR = 5.0
#: Seconds between two requests for its keys because a token names an unknown one.
_KEYS_AGAIN = 10.0
#: Bytes of an answer.
_MOST = 512 * 1024


class ProviderAway(Exception):
    """The issuer gives no usable answer now; the text names the answer."""


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """``page``: the base URL by which browsers reach the page. ``scopes`` in addition to openid."""

    issuer: str
    client_id: str
    client_secret_file: Path
    page: str
    scopes: tuple[str, ...] = ("profile", "email")
    ca_file: Path | None = None

    @property
    def redirect_uri(self) -> str:
        return f"{self.page}/login/oidc/callback"


class Metadata(msgspec.Struct, frozen=True):
    """The provider's own addresses, as it publishes them."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    token_endpoint_auth_methods_supported: list[str] | None = None

    @property
    def secret_in_body(self) -> bool:
        methods = self.token_endpoint_auth_methods_supported
        return methods is not None and "client_secret_basic" not in methods


class _TokenAnswer(msgspec.Struct, frozen=True):
    id_token: str = ""
    error: str = ""


def read_client_secret(file: Path) -> str:
    """The client's secret in a file. Raises ProviderAway, whose text has none of it."""
    try:
        return read_token(file, "access.oidc.client_secret_file")
    except SecretError as error:
        raise ProviderAway(str(error)) from error


class OidcProvider:
    """``now`` is monotonic seconds."""

    def __init__(self, settings: ProviderSettings, *, now: Callable[[], float]) -> None:
        self.settings = settings
        self._now = now
        self._metadata: tuple[float, Metadata] | None = None
        self._away: tuple[float, str] | None = None
        self._keys: Sequence[jwt.PyJWK] = ()
        self._keys_at = float("-inf")
        self._lock = asyncio.Lock()

    def secret(self) -> str:
        """The client's secret, as the file has it now. Raises ProviderAway."""
        return read_client_secret(self.settings.client_secret_file)

    async def authorization_url(self, *, state: str, nonce: str, verifier: str) -> str:
        """Where a browser begins the log-in. Raises ProviderAway."""
        endpoint = (await self.metadata()).authorization_endpoint
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self.settings.redirect_uri,
            "scope": " ".join(dict.fromkeys(("openid", *self.settings.scopes))),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge.rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    async def metadata(self) -> Metadata:
        """As published, an hour old at most. Raises ProviderAway, for some seconds without a
        request: who begins a log-in is unknown, and must not have us request the issuer at will.
        """
        async with self._lock:
            if self._metadata is not None and self._now() < self._metadata[0]:
                return self._metadata[1]
            if self._away is not None and self._now() < self._away[0]:
                raise ProviderAway(self._away[1])
            issuer = self.settings.issuer
            url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
            try:
                found = _checked(await self._request("GET", url, Metadata), issuer)
            except ProviderAway as error:
                self._away = (self._now() + _AWAY_FOR, str(error))
                raise
            self._metadata = (self._now() + _METADATA_FOR, found)
            return found

    async def claims(self, code: str, verifier: str) -> Mapping[str, Any]:
        """The claims of the ID token for a code: its signature, issuer, audience and times are
        verified. Raises ProviderAway, and ClaimRefused for a code or a token that proves nothing.
        """
        metadata, secret = await self.metadata(), self.secret()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.settings.redirect_uri,
            "code_verifier": verifier,
        }
        headers = {}
        if metadata.secret_in_body:
            form |= {"client_id": self.settings.client_id, "client_secret": secret}
        else:
            # RFC 6749, 2.3.1: both are form-encoded before they are joined.
            pair = f"{quote_plus(self.settings.client_id)}:{quote_plus(secret)}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        answer = await self._request(
            "POST", metadata.token_endpoint, _TokenAnswer, form=form, headers=headers
        )
        if not answer.id_token:
            raise ClaimRefused(
                f"the issuer refused the code: {answer.error:.100}"
                if answer.error
                else "the issuer's answer has no id_token: expected the scope openid"
            )
        return await self._verified(answer.id_token, metadata)

    async def _verified(self, token: str, metadata: Metadata) -> Mapping[str, Any]:
        try:
            key = await self._key(jwt.get_unverified_header(token).get("kid"), metadata)
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=ALGORITHMS,
                audience=self.settings.client_id,
                issuer=self.settings.issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iat"]},
            )
        except (jwt.PyJWTError, TypeError, ValueError, OverflowError) as error:
            raise ClaimRefused(f"the ID token is not valid: {error}") from error
        return claims

    async def _key(self, kid: object, metadata: Metadata) -> jwt.PyJWK:
        async with self._lock:
            age = self._now() - self._keys_at
            found = self._named(kid)
            if age > _METADATA_FOR or (found is None and age > _KEYS_AGAIN):
                # The issuer may have changed its keys since.
                answer = await self._request("GET", metadata.jwks_uri, dict[str, Any])
                self._keys, self._keys_at = _read_keys(answer), self._now()
                found = self._named(kid)
        if found is None:
            raise ClaimRefused(f"the ID token names the key {kid!r:.100}, which is not published")
        return found

    def _named(self, kid: object) -> jwt.PyJWK | None:
        """The key by its id; without an id the only one."""
        fitting = [key for key in self._keys if not kid or key.key_id == kid]
        return fitting[0] if len(fitting) == 1 else None

    async def _request(
        self,
        method: str,
        url: str,
        kind: type[T],
        *,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """The JSON of an answer; of a refused code too. Raises ProviderAway."""
        where = f"{urlsplit(url).netloc}{urlsplit(url).path}"
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(
                    method,
                    url,
                    data=form,
                    headers={"Accept": "application/json", **(headers or {})},
                    allow_redirects=False,
                    ssl=self._context(),
                ) as answer,
            ):
                if answer.status not in ({200, 400, 401} if form is not None else {200}):
                    raise ProviderAway(f"{where} answers {answer.status}")
                return msgspec.json.decode(await _body(answer.content), type=kind)
        except TimeoutError:
            raise ProviderAway(f"{where} gives no answer in {PATIENCE:g} s") from None
        except (
            *(aiohttp.ClientError, OSError, ValueError),
            *(msgspec.DecodeError, RecursionError),
        ) as error:
            raise ProviderAway(f"{where}: {error}") from error

    def _context(self) -> tls.SSLContext | bool:
        if self.settings.ca_file is None:
            return True
        return tls.create_default_context(cafile=str(self.settings.ca_file))


async def _body(content: aiohttp.StreamReader) -> bytes:
    """All of it. Raises ValueError where it is too long."""
    found = bytearray()
    async for piece in content.iter_any():
        found += piece
        if len(found) > _MOST:
            raise ValueError(f"the answer has more than {_MOST >> 10} KiB")
    return bytes(found)


def _checked(found: Metadata, issuer: str) -> Metadata:
    if found.issuer != issuer:
        raise ProviderAway(
            f'its metadata names the issuer "{found.issuer:.200}", expected "{issuer}"'
        )
    for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
        if not _is_safe(getattr(found, name), issuer):
            raise ProviderAway(f"its metadata has no usable {name}")
    return found


def _is_safe(url: str, issuer: str) -> bool:
    """Whether a secret may go there: by TLS, or by plain HTTP where the issuer is so too."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in {"https", urlsplit(issuer).scheme} and bool(parts.hostname)


def _read_keys(answer: dict[str, Any]) -> Sequence[jwt.PyJWK]:
    """The keys for signatures."""
    try:
        published = read_key_set(answer, ALGORITHMS)
    except KeysError as error:
        raise ProviderAway(f"it publishes no key that verifies an ID token: {error}") from error
    return [key for key in published if key.public_key_use in (None, "sig")]
