"""The admission record: a ConfigMap, changed only by compare-and-set."""

from typing import Any

import msgspec

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import (
    RECORD_NAME,
    ConfigMap,
    PartialObjectMetadata,
    decode,
    to_record,
)
from aggregator.cluster.kubernetes.transport import METADATA, Transport, encode
from aggregator.cluster.port import (
    UNGUARDED,
    Conflict,
    Guard,
    NotFound,
    RecordPlace,
    RecordText,
    Refused,
)
from aggregator.runtime.recent import Recent

#: Objects kept to write against, by version. One is the rule; a failed write leaves another.
_KEPT = 4
_DELETED = "the record was deleted since it was read"


def record_place(namespace: str) -> RecordPlace:
    """The ConfigMap, and the command that empties the record in it."""
    empty = """'{"data":{"record":""}}'"""
    return RecordPlace(
        f"ConfigMap {namespace}/{RECORD_NAME}, data.record",
        f"kubectl -n {namespace} patch configmap {RECORD_NAME} --type merge -p {empty}",
    )


class RecordClient:
    """The record in one namespace."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._transport = transport
        self._namespace = namespace
        #: Without the texts.
        self._records: Recent[str, dict[str, Any]] = Recent(_KEPT)

    async def read_record(self) -> RecordText:
        """From etcd, made empty if it is not there. Raises Refused without the namespace."""
        try:
            return await self._get_record()
        except NotFound:
            pass
        try:
            return await self._create_record("", UNGUARDED)
        except Conflict:
            return await self._get_record()  # another made it in between

    async def write_record(self, text: str, version: str, *, guard: Guard) -> RecordText:
        """Compare-and-set: a PUT of the whole object as it was read, with another `record`.

        A merge patch takes twice as long on the server, and the text of thousands of nodes need not
        come back. An empty ``version`` is that of a record that is not there: it is made.
        """
        if not version:
            return await self._create_record(text, guard)
        known = self._records.get(version)
        if known is None:  # read by another, or long ago
            now = await self._get_record_or_conflict()
            if now.version != version:
                raise Conflict(f"the record is at version {now.version}, not {version}", status=409)
            known = self._records[version]
        try:
            answer = await self._transport.request(
                "PUT",
                paths.record(self._namespace),
                Priority.RECORD,
                body=encode({**known, "data": {**known["data"], "record": text}}),
                accept=METADATA,
                guard=guard,
            )
        except NotFound as error:
            raise Conflict(_DELETED, status=404) from error
        meta = decode(answer, PartialObjectMetadata).metadata
        whole = {**known, "metadata": msgspec.json.decode(answer)["metadata"]}
        self._records[meta.resource_version] = whole
        return RecordText(text, meta.resource_version, meta.uid)

    def _keep_record(self, body: bytes) -> RecordText:
        """Remember the object by its version, to write against; the last few are enough."""
        record, whole = to_record(decode(body, ConfigMap)), msgspec.json.decode(body)
        data = {key: text for key, text in (whole.get("data") or {}).items() if key != "record"}
        self._records[record.version] = {**whole, "data": data}
        return record

    async def _get_record(self) -> RecordText:
        return self._keep_record(
            await self._transport.get(paths.record(self._namespace), Priority.RECORD)
        )

    async def _get_record_or_conflict(self) -> RecordText:
        try:
            return await self._get_record()
        except NotFound as error:
            raise Conflict(_DELETED, status=404) from error

    async def _create_record(self, text: str, guard: Guard) -> RecordText:
        record = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": RECORD_NAME, "namespace": self._namespace},
            "data": {"record": text},
        }
        try:
            body = await self._transport.request(
                "POST",
                paths.config_maps(self._namespace),
                Priority.RECORD,
                body=encode(record),
                guard=guard,
            )
        except NotFound as error:
            raise Refused(
                f"there is no namespace {self._namespace}: create it, or set cluster.namespace",
                status=404,
            ) from error
        return self._keep_record(body)
