"""An OpenID Connect provider on loopback: real HTTP, real keys, and each mistake on request."""

import base64
import hashlib
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa

CLIENT, SECRET = "sickbay-page", "the secret of the client: with + and %"


@dataclass
class Key:
    """A signing key; ``published``: whether the provider's key set has it."""

    kid: str
    algorithm: str
    private: Any
    published: bool = True

    @classmethod
    def make(cls, kid: str, algorithm: str = "ES256") -> "Key":
        if algorithm.startswith("ES"):
            return cls(kid, algorithm, ec.generate_private_key(ec.SECP256R1()))
        return cls(kid, algorithm, rsa.generate_private_key(65537, 2048))

    def jwk(self) -> dict[str, Any]:
        of = jwt.algorithms.get_default_algorithms()[self.algorithm]
        listed: dict[str, Any] = json.loads(of.to_jwk(self.private.public_key()))
        return listed | {"kid": self.kid, "use": "sig"}


@dataclass
class Issuer:
    """``claims`` replace those of the next tokens; ``wall`` is the issuer's clock."""

    url: str
    wall: Any
    keys: list[Key]
    claims: dict[str, Any] = field(default_factory=dict)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    #: The address that the metadata names instead of its own.
    issuer: str = ""
    #: The status of every answer; 200: it works.
    status: int = 200
    #: The answer of the authorization endpoint, beside the state; empty: a code.
    refusal: dict[str, str] = field(default_factory=dict)
    unsigned: bool = False
    #: Parts of the answers of "metadata" and "jwks" that replace its own.
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)

    def rotate(self, key: Key) -> None:
        """Another key signs; the earlier ones are published no more."""
        self.keys = [key]

    def id_token(self, nonce: str) -> str:
        now = self.wall()
        claims = {
            "iss": self.url,
            "aud": CLIENT,
            "sub": "u-17",
            "email": "ada@example.com",
            "email_verified": True,
            "groups": ["sre", "everyone"],
            "nonce": nonce,
            "iat": now,
            "exp": now + 300,
        }
        claims |= self.claims
        claims = {name: value for name, value in claims.items() if value is not None}
        if self.unsigned:
            return jwt.encode(claims, "", "none")
        key = self.keys[0]
        return jwt.encode(claims, key.private, key.algorithm, {"kid": key.kid})

    # -- its endpoints ---------------------------------------------------------------------

    async def metadata(self, _: web.Request) -> web.Response:
        found = {
            "issuer": self.issuer or self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/jwks",
        }
        return web.json_response(found | self.answers.get("metadata", {}))

    async def jwks(self, _: web.Request) -> web.Response:
        found = {"keys": [key.jwk() for key in self.keys if key.published]}
        return web.json_response(found | self.answers.get("jwks", {}))

    async def authorize(self, request: web.Request) -> web.Response:
        """The person is logged in at the issuer already, so it redirects at once."""
        query = dict(request.query)
        assert query["response_type"] == "code"
        assert query["client_id"] == CLIENT
        assert query["code_challenge_method"] == "S256"
        assert "openid" in query["scope"].split()
        code = secrets.token_urlsafe(8)
        self.codes[code] = query
        answer = self.refusal or {"code": code}
        found = "&".join(f"{key}={value}" for key, value in answer.items())
        url = f"{query['redirect_uri']}?{found}&state={query['state']}"
        return web.Response(status=302, headers={"Location": url})

    async def token(self, request: web.Request) -> web.Response:
        form = await request.post()
        _, _, pair = request.headers.get("Authorization", "").partition(" ")
        client, _, secret = base64.b64decode(pair).decode().partition(":")
        begun = self.codes.pop(str(form["code"]), None)
        if (unquote_plus(client), unquote_plus(secret)) != (CLIENT, SECRET):
            return web.json_response({"error": "invalid_client"}, status=401)
        verifier = str(form["code_verifier"]).encode()
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier).digest()).rstrip(b"=")
        if (
            begun is None
            or begun["code_challenge"] != challenge.decode()
            or begun["redirect_uri"] != form["redirect_uri"]
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        return web.json_response(
            {"access_token": "x", "token_type": "Bearer", "id_token": self.id_token(begun["nonce"])}
        )

    @web.middleware
    async def each(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(request.path)
        if self.status != 200:
            return web.Response(status=self.status, text="<script>alert(1)</script>")
        answer: web.StreamResponse = await handler(request)
        return answer


@asynccontextmanager
async def issuing(wall: Any, algorithm: str = "ES256") -> AsyncIterator[Issuer]:
    issuer = Issuer("", wall, [Key.make("first", algorithm)])
    app = web.Application(middlewares=[issuer.each])
    app.router.add_get("/realms/a/.well-known/openid-configuration", issuer.metadata)
    app.router.add_get("/realms/a/jwks", issuer.jwks)
    app.router.add_get("/realms/a/authorize", issuer.authorize)
    app.router.add_post("/realms/a/token", issuer.token)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    issuer.url = f"http://127.0.0.1:{runner.addresses[0][1]}/realms/a"
    try:
        yield issuer
    finally:
        await runner.cleanup()
