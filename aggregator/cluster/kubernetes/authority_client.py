"""The certificate authorities in the cluster: a Secret with their keys, a ConfigMap for agents.

The Secret has an entry `ca-N.crt` and `ca-N.key` for each authority, so that a person can remove
one. Other entries, labels and annotations of both objects are left as they are.
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.lease import LABELS
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import (
    CA_KEYS_NAME,
    CA_NAME,
    PartialObjectMetadata,
    decode,
)
from aggregator.cluster.kubernetes.transport import Transport, encode
from aggregator.cluster.port import UNGUARDED, ClusterError, Conflict, NotFound
from aggregator.tls.authority import Authority, DamagedPem, read_authority
from aggregator.tls.authority_store import (
    AuthorityConflict,
    AuthorityStoreError,
    StoredAuthorities,
    StoredBundle,
)

#: A person sets it, to any value, to have the next authority made now.
ROTATE = "sickbay.dev/rotate-ca"
_BUNDLE = "ca.crt"
_ENTRY = re.compile(r"ca-([1-9][0-9]{0,8})\.(crt|key)")

_Object = dict[str, Any]


class KubeAuthorities:
    """Implements `AuthorityStore`. Each write replaces the object at the version that was read."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._transport = transport
        self._namespace = namespace
        self._secret: _Object = {}
        self._config_map: _Object = {}

    @property
    def secret_name(self) -> str:
        return f"Secret {self._namespace}/{CA_KEYS_NAME}"

    @property
    def bundle_name(self) -> str:
        return f"ConfigMap {self._namespace}/{CA_NAME}"

    async def read_authorities(self) -> StoredAuthorities | None:
        """See the protocol."""
        found = await self._get(paths.ca_keys(self._namespace))
        if found is None:
            return None
        self._secret = found
        entries = _entries(found)
        usable: list[Authority] = []
        damaged: dict[int, str] = {}
        for number, (certificate, key) in sorted(entries.items()):
            try:
                usable.append(read_authority(number, _decoded(certificate), _decoded(key)))
            except DamagedPem as error:
                damaged[number] = str(error)
        annotations = found["metadata"].get("annotations") or {}
        return StoredAuthorities(
            tuple(usable),
            _version(found),
            damaged=damaged,
            rotation_requested=ROTATE in annotations,
        )

    async def write_authorities(self, authorities: Sequence[Authority], version: str) -> None:
        """See the protocol."""
        entries = {}
        for one in authorities:
            entries[f"ca-{one.number}.crt"] = _encoded(one.certificate_pem)
            if one.key is not None:
                entries[f"ca-{one.number}.key"] = _encoded(one.key_pem)
        if version:
            secret = _at(self._secret, version)
            others = {k: v for k, v in _data(secret).items() if _ENTRY.fullmatch(k) is None}
            metadata = dict(secret["metadata"])
            annotations = dict(metadata.get("annotations") or {})
            annotations.pop(ROTATE, None)
            metadata["annotations"] = annotations
            body = {**secret, "metadata": metadata, "data": others | entries}
            await self._write("PUT", paths.ca_keys(self._namespace), body)
        else:
            made = self._new("Secret", CA_KEYS_NAME, entries) | {"type": "Opaque"}
            await self._write("POST", paths.secrets(self._namespace), made)

    async def read_bundle(self) -> StoredBundle | None:
        """See the protocol."""
        found = await self._get(paths.ca(self._namespace))
        if found is None:
            return None
        self._config_map = found
        text = _data(found).get(_BUNDLE, "")
        return StoredBundle(str(text).encode(), _version(found))

    async def write_bundle(self, text: bytes, version: str) -> None:
        """See the protocol."""
        entry = {_BUNDLE: text.decode("ascii")}
        if version:
            there = _at(self._config_map, version)
            body = {**there, "data": _data(there) | entry}
            await self._write("PUT", paths.ca(self._namespace), body)
        else:
            made = self._new("ConfigMap", CA_NAME, entry)
            await self._write("POST", paths.config_maps(self._namespace), made)

    def _new(self, kind: str, name: str, data: Mapping[str, str]) -> _Object:
        metadata = {"name": name, "namespace": self._namespace, "labels": LABELS}
        return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": data}

    async def _get(self, path: str) -> _Object | None:
        try:
            body = await self._request("GET", path)
            decode(body, PartialObjectMetadata)  # Raises where it is no object of Kubernetes.
        except NotFound:
            return None
        except ClusterError as error:
            raise AuthorityStoreError(str(error)) from error
        return cast("_Object", msgspec.json.decode(body))

    async def _write(self, method: str, path: str, body: _Object) -> None:
        try:
            await self._request(method, path, encode(body))
        except Conflict as error:
            raise AuthorityConflict(str(error)) from error
        except NotFound as error:
            if method == "PUT":
                raise AuthorityConflict(str(error)) from error
            text = f"there is no namespace {self._namespace}: create it, or set cluster.namespace"
            raise AuthorityStoreError(text) from error
        except ClusterError as error:
            raise AuthorityStoreError(str(error)) from error

    async def _request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """No retry: the next step reads again. Raises ClusterError."""
        await self._transport.open()
        return await self._transport.request(
            method, path, Priority.READ, body=body, guard=UNGUARDED
        )


def _entries(secret: _Object) -> dict[int, tuple[str, str]]:
    """Certificate and key of each authority, by number, as the Secret has them: in base64."""
    found: dict[int, dict[str, str]] = {}
    for name, value in _data(secret).items():
        match = _ENTRY.fullmatch(name)
        if match is not None:
            found.setdefault(int(match[1]), {})[match[2]] = str(value)
    return {number: (one.get("crt", ""), one.get("key", "")) for number, one in found.items()}


def _data(found: _Object) -> dict[str, str]:
    return found.get("data") or {}


def _version(found: _Object) -> str:
    return str(found["metadata"].get("resourceVersion", ""))


def _at(found: _Object, version: str) -> _Object:
    """The object as it was read at this version. Raises AuthorityConflict for another."""
    if not found or _version(found) != version:
        raise AuthorityConflict(f"it was not read at version {version}")
    return found


def _encoded(text: bytes) -> str:
    return base64.b64encode(text).decode("ascii")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DamagedPem("it is not in base64") from error
