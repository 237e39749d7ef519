"""The installation's own objects in the API: record, stop switch, Events."""

from aggregator.cluster.kubernetes import event_writer, paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import ConfigMap, decode, to_stop
from aggregator.cluster.kubernetes.record_client import RecordClient, record_place
from aggregator.cluster.kubernetes.transport import Transport
from aggregator.cluster.port import NodeEvent, NotFound, StopText

#: Seconds for the stop switch. Acts wait for it, and a slower answer would show little about the
#: present.
_DEADLINE = 2.0


class KubeSharedObjects(RecordClient):
    """Implements `SharedObjects` in one namespace."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        super().__init__(transport, namespace)
        self.installation = namespace
        self.record_place = record_place(namespace)

    async def read_stop(self) -> StopText:
        """From etcd, without a wait in any queue of ours. People set it; it is only read here."""
        try:
            body = await self._transport.get(
                paths.stop(self._namespace), Priority.STOP, deadline=_DEADLINE
            )
        except NotFound:
            return StopText()
        return to_stop(decode(body, ConfigMap))

    async def write_event(self, event: NodeEvent) -> None:
        await event_writer.write_event(self._transport, event)
