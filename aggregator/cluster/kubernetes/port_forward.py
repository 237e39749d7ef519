"""One connection to a port of a pod, through the API server, as `kubectl port-forward` makes it.

The kubelet's websocket (subprotocol v4.channel.k8s.io) carries two channels for the one port:
channel 0 has the bytes of the connection, channel 1 the text of an error. The first byte of a
message is its channel; the first message of each channel is the port, in two bytes. Source:
k8s.io/cri-streaming/pkg/streaming/portforward/websocket.go
"""

from collections.abc import AsyncIterator

import aiohttp

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.transport import Transport

_PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_PORT_BYTES = 2
#: Characters of the kubelet's error.
_LONGEST_ERROR = 500


class PodConnection:
    """Bytes to and from one port. ``trouble`` is why the pod's side ended it, once it has."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.trouble = ""

    async def send(self, data: bytes) -> None:
        """Raises OSError where the connection is broken."""
        await self._socket.send_bytes(bytes([_DATA]) + data)

    async def received(self) -> AsyncIterator[bytes]:
        """The bytes as they come, until the pod's side ends them."""
        port_pending = {_DATA, _ERROR}
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel in port_pending:
                port_pending.discard(channel)
                data = data[_PORT_BYTES:]
            if not data:
                continue
            if channel == _DATA:
                yield data
            elif channel == _ERROR:
                text = self.trouble + data.decode(errors="replace")
                self.trouble = text[:_LONGEST_ERROR]

    async def close(self) -> None:
        await self._socket.close()


async def connect(api: Transport, namespace: str, pod: str, port: int) -> PodConnection:
    """Connect to the pod's port. Raises ClusterError: Refused without the right to
    `pods/portforward`, NotFound for a pod that is gone, Unreachable where its kubelet is.
    """
    where = f"{paths.pod(namespace, pod)}/portforward"
    query = {"ports": str(port)}
    return PodConnection(await api.websocket(where, query=query, protocol=_PROTOCOL))
