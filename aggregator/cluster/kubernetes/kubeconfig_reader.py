"""Reads the credentials of a kubeconfig that `kubeconfig_check` has found sound."""

import asyncio
import base64
import json
import os
import sys
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aggregator.cluster.kubernetes.kubeconfig_check import (
    KubeconfigError,
    KubeconfigItem,
    NamedFile,
    choose,
    file_in_memory,
)
from sickbay.json_text import read_json

#: A token is renewed this long (seconds) before it expires.
_EARLY = 300.0


class KubeconfigSettings:
    """The server, the files for TLS and the token of one context.

    Content in the kubeconfig itself is written to files in memory, because OpenSSL reads nothing
    else; they end with this object.
    """

    def __init__(self, paths: str, context: str) -> None:
        """Raises KubeconfigError."""
        chosen = choose(paths, context)
        self._user = chosen.user
        self._expires_at: float | None = None
        self._authorization: str | None = None
        self._ends = ExitStack()
        weakref.finalize(self, self._ends.close)
        cluster = chosen.cluster.data
        self.host: str = cluster["server"].rstrip("/")
        self.verify_ssl = not cluster.get("insecure-skip-tls-verify")
        self.tls_server_name: str | None = cluster.get("tls-server-name")
        self.proxy: str | None = cluster.get("proxy-url")
        self.ssl_ca_cert = self._file(chosen.authority)
        self.cert_file = self._file(chosen.certificate)
        self.key_file = self._file(chosen.key)

    @property
    def expires(self) -> bool:
        """Whether a plugin gave a token that `renew` has to replace."""
        return self._expires_at is not None

    async def authorization(self) -> str | None:
        """The Authorization header, None where there is no token."""
        return self._authorization

    async def authenticate(self) -> None:
        """Read the user's token, or run its plugin. Raises KubeconfigError and OSError."""
        if self._user is None:
            return
        user = self._user.data
        if "exec" in user:
            await self._run_plugin(self._user)
        elif user.get("token"):
            self._authorization = f"Bearer {user['token']}"
        elif user.get("tokenFile"):
            folder = Path(self._user.file).parent  # a small file of this machine
            token = (folder / user["tokenFile"]).read_text("utf-8")
            self._authorization = f"Bearer {token}"
        elif "username" in user and "password" in user:
            pair = f"{user['username']}:{user['password']}".encode()
            self._authorization = f"Basic {base64.b64encode(pair).decode()}"

    async def renew(self) -> None:
        """Run the plugin again where its token is about to expire. Raises as `authenticate`."""
        now = datetime.now(UTC).timestamp()
        if self._expires_at is not None and self._expires_at - now <= _EARLY:
            await self.authenticate()

    def _file(self, named: NamedFile | None) -> str | None:
        return named.at(self._ends) if named is not None else None

    # -- plugins -----------------------------------------------------------------------

    async def _run_plugin(self, user: KubeconfigItem) -> None:
        """https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins"""
        arguments, version, environment = _call_of(user)
        process = await asyncio.create_subprocess_exec(
            *arguments,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        if process.returncode:
            printed = err.decode(errors="replace").strip()
            text = f"exec: process returned {process.returncode}" + (
                f". {printed}" if printed else ""
            )
            raise _wrong(user, text)
        status = _status_of(user, out, version)
        if "token" in status:
            self._authorization = f"Bearer {status['token']}"
            until = status.get("expirationTimestamp")
            self._expires_at = None if until is None else _seconds(user, until)
        elif "clientCertificateData" in status and "clientKeyData" in status:
            pair = [str(status[f"client{name}Data"]) for name in ("Certificate", "Key")]
            self.cert_file, self.key_file = (
                file_in_memory(text.encode(), self._ends) for text in pair
            )
        else:
            raise _wrong(user, "exec: it gave neither a token nor a certificate with its key")


def _call_of(user: KubeconfigItem) -> tuple[list[str], str, dict[str, str]]:
    """The plugin's arguments, its API version, and its environment."""
    section = user.data["exec"]
    for key in ("command", "apiVersion"):
        if not isinstance(section, dict) or not isinstance(section.get(key), str):
            raise _wrong(user, f"exec: Expected key {key} in exec, with text")
    arguments, extra = section.get("args") or [], section.get("env") or []
    if not isinstance(arguments, list):
        raise _wrong(user, "exec: args is no list; expected a list of texts")
    try:
        more = {str(one["name"]): str(one["value"]) for one in extra}
    except (KeyError, TypeError) as error:
        raise _wrong(user, "exec: env is no list of name and value") from error
    version = section["apiVersion"]
    information = {
        "apiVersion": version,
        "kind": "ExecCredential",
        "spec": {"interactive": sys.stdout.isatty()},
    }
    environment = {**os.environ, **more, "KUBERNETES_EXEC_INFO": json.dumps(information)}
    return [section["command"], *map(str, arguments)], version, environment


def _status_of(user: KubeconfigItem, out: bytes, version: str) -> Mapping[str, Any]:
    try:
        found = read_json(out)
    except ValueError as error:
        raise _wrong(user, f"exec: failed to decode process output: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("status"), dict):
        raise _wrong(user, "exec: the plugin's answer has no status; expected an ExecCredential")
    if found.get("apiVersion") != version:
        text = f"exec: the plugin's API version is {found.get('apiVersion')}; expected {version}"
        raise _wrong(user, text)
    status: Mapping[str, Any] = found["status"]
    return status


def _seconds(user: KubeconfigItem, text: object) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError as error:
        raise _wrong(user, "exec: expirationTimestamp is no time; expected RFC 3339") from error


def _wrong(user: KubeconfigItem, text: str) -> KubeconfigError:
    return KubeconfigError(user.file, f'exec of "{user.name}": {text.removeprefix("exec: ")}')
