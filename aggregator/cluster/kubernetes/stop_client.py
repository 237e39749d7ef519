"""The stop switch: a ConfigMap of its own, set by people and only read here.

    kubectl -n sickbay patch configmap sickbay-stop --type merge -p '{"data":{"reason":"why"}}'

The older place, `stop` in the record's ConfigMap, is read as well.
"""

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import (
    OldStopObject,
    StopObject,
    decode,
    to_stop,
    to_stop_in_record,
)
from aggregator.cluster.kubernetes.transport import Transport
from aggregator.cluster.port import NotFound, RecordText, StopText

#: Seconds for an answer. Acts wait for it, and a slower answer would say little about the present.
_DEADLINE = 2.0


class StopStore:
    """The switch in one namespace. Its reads come from etcd and wait in no queue of ours."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._transport = transport
        self._namespace = namespace

    async def read(self) -> StopText:
        try:
            return to_stop(decode(await self._get(paths.stop(self._namespace)), StopObject))
        except NotFound:
            return StopText()

    async def read_in_record(self) -> RecordText:
        try:
            body = await self._get(paths.record(self._namespace))
        except NotFound:
            return RecordText("", "", "")
        return to_stop_in_record(decode(body, OldStopObject))

    async def _get(self, path: str) -> bytes:
        return await self._transport.request(
            "GET", path, kind="configmaps", lane=Priority.STOP, deadline=_DEADLINE
        )
