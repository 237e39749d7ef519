"""Kubeconfig files that stand alone: certificates and tokens are in them."""

import base64
import json
from pathlib import Path
from typing import Any

from tests.controlplane.pki import KeyPair


def write(
    path: Path,
    url: str,
    ca_file: Path,
    *,
    certificate: KeyPair | None = None,
    token: str | None = None,
) -> Path:
    """Write a kubeconfig with one context, readable by its owner alone. (JSON is YAML.)"""
    user: dict[str, str] = {}
    if certificate is not None:
        user["client-certificate-data"] = _encoded(certificate.certificate)
        user["client-key-data"] = _encoded(certificate.key)
    if token is not None:
        user["token"] = token
    cluster = {"server": url, "certificate-authority-data": _encoded(ca_file)}
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
        "current-context": "test",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")
    return path


def _encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()
