"""Talks to an OpenID Connect provider: its metadata, its keys, and the exchange of a code.

Authorization code flow with PKCE (RFC 7636). Answers are bounded in size and time, redirects are
not followed, and only asymmetric signatures count: a public key is no shared secret.
"""

import asyncio
import base64
import hashlib
import json
import ssl as tls
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

import aiohttp
import jwt
from jwt.types import Options

from aggregator.access.oidc_claims import ClaimRefused
from aggregator.configfile.regular_file import MOST_SECRET, require_regular_file

#: Signatures of ID tokens.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
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


@dataclass(frozen=True, slots=True)
class Metadata:
    """The provider's own addresses, as it publishes them."""

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    secret_in_body: bool


def read_client_secret(file: Path) -> str:
    """The client's secret in a file. Raises ProviderAway, whose text has none of it."""
    why = ""
    try:
        text = require_regular_file(file, most=MOST_SECRET).read_text("utf-8-sig").strip()
    except OSError as error:
        text, why = "", f"can't be read: {error.strerror}"
    except UnicodeDecodeError:
        text, why = "", "is no text in UTF-8"
    if not text.isprintable():
        why = "has more than one line, or characters that are not printable"
    elif not text:
        why = why or "is empty"
    if why:
        expected = "expected the client's secret on one line"
        raise ProviderAway(f"access.oidc.client_secret_file {file} {why}; {expected}")
    return text


class OidcProvider:
    """``now`` is monotonic seconds."""

    def __init__(self, settings: ProviderSettings, *, now: Callable[[], float]) -> None:
        self.settings = settings
        self._now = now
        self._metadata: tuple[float, Metadata] | None = None
        self._away: tuple[float, str] | None = None
        self._keys: Mapping[str, Mapping[str, Any]] = {}
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
                found = _metadata(await self._request("GET", url), issuer)
            except ProviderAway as error:
                self._away = (self._now() + _AWAY_FOR, str(error))
                raise
            self._metadata = (self._now() + _METADATA_FOR, found)
            return found

    async def claims(self, code: str, verifier: str) -> Mapping[str, Any]:
        """The claims of the ID token for a code; its signature is verified, and nothing else.

        Raises ProviderAway, and ClaimRefused for a code or a token that proves nothing.
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
        answer = await self._request("POST", metadata.token_endpoint, form, headers)
        token = answer.get("id_token")
        if not isinstance(token, str):
            error = answer.get("error")
            raise ClaimRefused(
                f"the issuer refused the code: {str(error)[:100]}"
                if error
                else "the issuer's answer has no id_token: expected the scope openid"
            )
        return await self._verified(token, metadata)

    async def _verified(self, token: str, metadata: Metadata) -> Mapping[str, Any]:
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError as error:
            raise ClaimRefused(f"the ID token is no JWT: {error}") from error
        if header.get("alg") not in ALGORITHMS:
            expected = f"expected one of {', '.join(ALGORITHMS)}"
            raise ClaimRefused(f"the ID token is signed with {header.get('alg')!r:.40}; {expected}")
        algorithm = str(header["alg"])
        published = await self._key(str(header.get("kid", "")), algorithm, metadata)
        # `check_claims` checks them, by a clock that is given.
        unchecked: Options = {
            "verify_exp": False,
            "verify_nbf": False,
            "verify_iat": False,
            "verify_aud": False,
            "verify_iss": False,
            "verify_sub": False,
        }
        try:
            key = jwt.PyJWK(dict(published), algorithm)
            claims: Mapping[str, Any] = jwt.decode(
                token, key, algorithms=[algorithm], options=unchecked
            )
        except (jwt.PyJWTError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise ClaimRefused(f"the ID token's signature is not the issuer's: {error}") from error
        return claims

    async def _key(self, kid: str, algorithm: str, metadata: Metadata) -> Mapping[str, Any]:
        async with self._lock:
            age = self._now() - self._keys_at
            found = self._fitting(kid, algorithm)
            if age > _METADATA_FOR or (found is None and age > _KEYS_AGAIN):
                # The issuer may have changed its keys since.
                answer = await self._request("GET", metadata.jwks_uri)
                self._keys, self._keys_at = _read_keys(answer), self._now()
                found = self._fitting(kid, algorithm)
        if found is None:
            raise ClaimRefused(f"the ID token names the key {kid!r:.100}, which is not published")
        return found

    def _fitting(self, kid: str, algorithm: str) -> Mapping[str, Any] | None:
        """The key by its id, without an id the only one; of the algorithm's kind."""
        kind = "EC" if algorithm.startswith("ES") else "RSA"
        fitting = [
            key
            for own, key in self._keys.items()
            if key["kty"] == kind
            and key.get("alg", algorithm) == algorithm
            and (not kid or own == kid)
        ]
        return fitting[0] if len(fitting) == 1 else None

    async def _request(
        self,
        method: str,
        url: str,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Mapping[str, Any]:
        """The JSON object of an answer; of a refused code too. Raises ProviderAway."""
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
                return _object(await _body(answer.content))
        except TimeoutError:
            raise ProviderAway(f"{where} gives no answer in {PATIENCE:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
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


def _object(body: bytes) -> Mapping[str, Any]:
    """Raises ValueError where it is no JSON object."""
    try:
        found = json.loads(body)
    except RecursionError:
        raise ValueError("the answer is nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError("the answer is no JSON object")  # noqa: TRY004 - as for other bad answers
    return found


def _metadata(answer: Mapping[str, Any], issuer: str) -> Metadata:
    if answer.get("issuer") != issuer:
        issuer_there = str(answer.get("issuer"))[:200]
        raise ProviderAway(f'its metadata names the issuer "{issuer_there}", expected "{issuer}"')
    urls = {}
    for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
        url = answer.get(name)
        if not isinstance(url, str) or not _is_safe(url, issuer):
            raise ProviderAway(f"its metadata has no usable {name}")
        urls[name] = url
    methods = answer.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    in_body = isinstance(methods, list) and "client_secret_basic" not in methods
    return Metadata(**urls, secret_in_body=in_body)


def _is_safe(url: str, issuer: str) -> bool:
    """Whether a secret may go there: by TLS, or by plain HTTP where the issuer is so too."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in {"https", urlsplit(issuer).scheme} and bool(parts.hostname)


def _read_keys(answer: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """The keys for signatures, by their ids."""
    listed = answer.get("keys")
    found = {
        str(one.get("kid") or number): one
        for number, one in enumerate(listed if isinstance(listed, list) else [])
        if isinstance(one, dict)
        and one.get("kty") in ("RSA", "EC")  # of any type: a set needs one with a hash
        and one.get("use", "sig") == "sig"
    }
    if not found:
        raise ProviderAway("it publishes no key that verifies an ID token")
    return found
