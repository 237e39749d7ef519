"""The stop switch: a ConfigMap of its own, set by people and only read here."""

from aggregator.cluster.kubernetes import paths
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.objects import StopObject, decode, to_stop
from aggregator.cluster.kubernetes.transport import Transport
from aggregator.cluster.port import NotFound, StopText

#: Seconds for an answer. Acts wait for it, and a slower answer would show little about the present.
_DEADLINE = 2.0


class StopClient:
    """The switch in one namespace. Its reads come from etcd and wait in no queue of ours."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._transport = transport
        self._namespace = namespace

    async def read_stop(self) -> StopText:
        try:
            body = await self._transport.request(
                "GET", paths.stop(self._namespace), Priority.STOP, deadline=_DEADLINE
            )
        except NotFound:
            return StopText()
        return to_stop(decode(body, StopObject))
