"""The admission record: a ConfigMap, changed only by compare-and-set.

Its `stop` is a person's switch, for when the aggregator itself is what is wrong:

    kubectl -n sickbay patch configmap sickbay-record --type merge -p '{"data":{"stop":"why"}}'
"""

from aggregator.kube import paths
from aggregator.kube.limiter import Lane
from aggregator.kube.objects import RECORD_NAME, RecordObject, decode, to_record
from aggregator.kube.transport import MERGE_PATCH, Transport, encode
from aggregator.quarantine.cluster import Conflict, NotFound, RecordText, Refused


class RecordStore:
    """The record in one namespace."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._transport = transport
        self._namespace = namespace

    async def read(self) -> RecordText:
        """From etcd, made empty if it is not there. Raises Refused without the namespace."""
        try:
            return await self._get()
        except NotFound:
            pass
        try:
            return await self._create("")
        except Conflict:
            return await self._get()  # another made it in between

    async def write(self, text: str, version: str) -> RecordText:
        """Compare-and-set. The patch names `record` alone, so that all else stays as it is.

        An empty ``version`` is that of a record that is not there: it is made.
        """
        if not version:
            return await self._create(text)
        patch = {"metadata": {"resourceVersion": version}, "data": {"record": text}}
        try:
            body = await self._transport.request(
                "PATCH",
                paths.record(self._namespace),
                kind="configmaps",
                lane=Lane.RECORD,
                body=encode(patch),
                content_type=MERGE_PATCH,
            )
        except NotFound as error:
            raise Conflict("the record was deleted since it was read", status=404) from error
        return to_record(decode(body, RecordObject))

    async def _get(self) -> RecordText:
        body = await self._transport.request(
            "GET", paths.record(self._namespace), kind="configmaps", lane=Lane.RECORD
        )
        return to_record(decode(body, RecordObject))

    async def _create(self, text: str) -> RecordText:
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
                kind="configmaps",
                lane=Lane.RECORD,
                body=encode(record),
            )
        except NotFound as error:
            raise Refused(
                f"there is no namespace {self._namespace}: create it, or set cluster.namespace",
                status=404,
            ) from error
        return to_record(decode(body, RecordObject))
