"""Certificates and keys as a site would issue them, for TLS and for service account tokens."""

import base64
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.controlplane import pki as plane

KeyPair = plane.KeyPair


class Authority(plane.Authority):
    """A certificate authority in a folder, with certificates for agents too.

    A P-256 key is made a thousand times as fast as an RSA one, and hundreds of tests make one.
    """

    @staticmethod
    def _new_key() -> ec.EllipticCurvePrivateKey:
        return ec.generate_private_key(ec.SECP256R1())

    def client(self, file_name: str, *, common_name: str = "", dns: Sequence[str] = ()) -> KeyPair:
        """A client certificate with this CN and these DNS names."""
        subject = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else []
        )
        names = x509.SubjectAlternativeName([x509.DNSName(name) for name in dns]) if dns else None
        return self._issue(file_name, subject, ExtendedKeyUsageOID.CLIENT_AUTH, names)


def encrypted(key: Path) -> bytes:
    """The same private key with a passphrase, in PEM."""
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    passphrase = serialization.BestAvailableEncryption(b"secret")
    return private.private_bytes(encoding, form, passphrase)


class TokenIssuer:
    """Signs service account tokens as kube-apiserver does."""

    def __init__(
        self,
        *,
        kid: str = "key-1",
        algorithm: str = "RS256",
        issuer: str = "https://kubernetes.default.svc",
    ) -> None:
        self.kid = kid
        self.issuer = issuer
        self.algorithm = algorithm
        self.key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey = (
            ec.generate_private_key(ec.SECP256R1())
            if algorithm.startswith("ES")
            else rsa.generate_private_key(public_exponent=65537, key_size=2048)
        )

    def jwks(self, *others: "TokenIssuer") -> str:
        """The key set that the API server publishes at /openid/v1/jwks."""
        return json.dumps({"keys": [issuer.jwk() for issuer in (self, *others)]})

    def jwk(self) -> dict[str, Any]:
        public: Any = self.key.public_key()
        made = jwt.get_algorithm_by_name(self.algorithm).to_jwk(public, as_dict=True)
        return {**made, "use": "sig", "kid": self.kid, "alg": self.algorithm}

    def claims(
        self,
        node: str = "node-1",
        *,
        account: str = "sickbay:sickbay-agent",
        audience: str = "sickbay",
        expires_in: float = 86_400,
        **others: Any,
    ) -> dict[str, Any]:
        """The claims of a token bound to a pod on ``node``; a value of None omits the claim."""
        namespace, _, name = account.partition(":")
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": [audience],
            "sub": f"system:serviceaccount:{account}",
            "iat": now,
            "nbf": now,
            "exp": now + expires_in,
            "kubernetes.io": {
                "namespace": namespace,
                "node": {"name": node, "uid": f"uid-of-{node}"},
                "pod": {"name": "agent-x", "uid": f"pod-on-{node}"},
                "serviceaccount": {"name": name, "uid": "sa"},
            },
        } | others
        return {key: value for key, value in claims.items() if value is not None}

    def token(self, node: str = "node-1", **claims: Any) -> str:
        return self.sign(self.claims(node, **claims))

    def sign(self, claims: Mapping[str, Any], *, header: Mapping[str, Any] | None = None) -> str:
        return jwt.encode(
            dict(claims),
            self.key,
            algorithm=self.algorithm,
            headers={"kid": self.kid, **(header or {})},
        )


def unsigned(claims: Mapping[str, Any], kid: str) -> str:
    """A token with alg "none": the oldest forgery there is."""
    parts = [{"alg": "none", "kid": kid}, dict(claims)]
    texts = [base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=") for p in parts]
    return b".".join([*texts, b""]).decode()
