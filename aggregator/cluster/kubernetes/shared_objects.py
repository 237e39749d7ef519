"""The installation's own objects in the API: record, stop switch, Events."""

from aggregator.cluster.kubernetes import event_writer
from aggregator.cluster.kubernetes.record_client import RecordClient, record_place
from aggregator.cluster.kubernetes.stop_client import StopClient
from aggregator.cluster.kubernetes.transport import Transport
from aggregator.cluster.port import NodeEvent


class KubeSharedObjects(RecordClient, StopClient):
    """Implements `SharedObjects` in one namespace."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        RecordClient.__init__(self, transport, namespace)
        StopClient.__init__(self, transport, namespace)
        self.installation = namespace
        self.record_place = record_place(namespace)

    async def write_event(self, event: NodeEvent) -> None:
        await event_writer.write_event(self._transport, event)
