"""The aggregator's page through the API server, as `kubectl port-forward` makes it, without a
listener: no other user of this machine can use the connection.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from aggregator.cli.errors import Unreached
from aggregator.cli.kube_session import KubeSession
from aggregator.cli.text_table import clean
from aggregator.cluster.kubernetes import paths, port_forward
from aggregator.cluster.kubernetes.limiter import Priority
from aggregator.cluster.kubernetes.transport import Transport
from aggregator.cluster.port import ClusterError, NotFound, Refused
from sickbay.json_text import read_json

T = TypeVar("T")

_SELECTOR = "app.kubernetes.io/name=sickbay,app.kubernetes.io/component=aggregator"
#: The Service of the page; its name is in the aggregator's certificate.
_PAGE = "sickbay-page"
#: The container's port of the page, by name, and its number where a pod does not name it.
_PORT_NAME, _PORT = "web", 8080
_CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class AggregatorPod:
    """A pod of the aggregator. ``why`` is why it is not ready; empty where it is."""

    name: str
    port: int
    scheme: str
    phase: str
    restarts: int
    why: str


def aggregator_pods(found: Mapping[str, Any]) -> Sequence[AggregatorPod]:
    """The pods of a PodList, those that are ready first."""
    pods = [_pod(one) for one in found.get("items") or ()]
    return sorted(pods, key=lambda pod: (pod.why != "", pod.phase != "Running", pod.name))


def _pod(pod: Mapping[str, Any]) -> AggregatorPod:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    port, scheme = _PORT, "https"
    for container in spec.get("containers") or ():
        for one in container.get("ports") or ():
            if one.get("name") == _PORT_NAME:
                port = int(one["containerPort"])
                probe = (container.get("readinessProbe") or {}).get("httpGet") or {}
                scheme = str(probe.get("scheme") or scheme).lower()
    states = status.get("containerStatuses") or ()
    return AggregatorPod(
        name=str(pod["metadata"]["name"]),
        port=port,
        scheme=scheme,
        phase=str(status.get("phase") or "Unknown"),
        restarts=sum(int(one.get("restartCount") or 0) for one in states),
        why=_not_ready(pod, status),
    )


def _not_ready(pod: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "it is being deleted"
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    if (conditions.get("Ready") or {}).get("status") == "True":
        return ""
    for one in status.get("containerStatuses") or ():
        state = one.get("state") or {}
        waits = state.get("waiting") or state.get("terminated") or {}
        if waits:
            return f"{waits.get('reason', '')}: {waits.get('message', '')}".rstrip(": ")
    unscheduled = conditions.get("PodScheduled") or {}
    if unscheduled.get("status") == "False":
        return f"{unscheduled.get('reason', '')}: {unscheduled.get('message', '')}".rstrip(": ")
    return "it is not ready"


class Tunnel:
    """Connections to the page of whichever aggregator's pod answers. ``address`` is its URL, and
    ``trouble`` the kubelet's word on the last connection that broke.
    """

    def __init__(self, session: KubeSession, namespace: str) -> None:
        self._session = session
        self._namespace = namespace
        self.pods: Sequence[AggregatorPod] = ()
        self.trouble = ""

    def find(self) -> AggregatorPod:
        """The pod to connect to first. Raises Unreached."""
        self.pods = self._attempt(self._list)
        if not self.pods:
            raise Unreached(
                f"namespace {self._namespace} has no aggregator (pods with {_SELECTOR})"
            )
        return self.pods[0]

    def address(self) -> str:
        """The page's URL. Raises Unreached."""
        pod = self.find()
        # A page without TLS answers on loopback to no other name (docs/status-page.md).
        host = f"{_PAGE}.{self._namespace}.svc" if pod.scheme == "https" else "localhost"
        return f"{pod.scheme}://{host}:{pod.port}"

    def authorities(self) -> ssl.SSLContext | None:
        """The authority that the aggregator publishes, or None where it can't be read."""
        try:
            body = self._session.attempt(self._bundle)
            text = read_json(body)["data"]["ca.crt"]
            return self.present_certificate(ssl.create_default_context(cadata=text))
        except (ClusterError, ValueError, KeyError, TypeError, ssl.SSLError):
            return None

    def present_certificate(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """The same context, with the kubeconfig's client certificate for a page that requires one.

        TLS proves the key without showing it, so that the page can't use it elsewhere.
        """

        async def pair(api: Transport) -> tuple[str, str] | None:
            return api.credentials.client_pair

        found = self._session.attempt(pair)
        if found is not None:
            context.load_cert_chain(*found)
        return context

    def dial(self, timeout: float) -> socket.socket:
        """A new connection to the first pod that takes one. Raises Unreached."""
        self.find()
        refusals = []
        for pod in self.pods:
            try:
                return self._attempt(partial(self._connect, pod=pod, timeout=timeout))
            except Unreached as error:
                refusals.append(f"{pod.name}{f' ({clean(pod.why)})' if pod.why else ''}: {error}")
        raise Unreached("; ".join(refusals))

    def _attempt(self, work: Callable[[Transport], Awaitable[T]]) -> T:
        try:
            return self._session.attempt(work)
        except Refused as error:
            if error.status == 403:
                needs = "list pods, and get and create pods/portforward"
                raise Unreached(
                    f"{clean(error)}; your account needs the rights to {needs}"
                ) from error
            raise Unreached(clean(error)) from error
        except ClusterError as error:
            raise Unreached(clean(error)) from error

    async def _list(self, api: Transport) -> Sequence[AggregatorPod]:
        body = await api.get(
            paths.pods(self._namespace), Priority.READ, query={"labelSelector": _SELECTOR}
        )
        return aggregator_pods(read_json(body))

    async def _bundle(self, api: Transport) -> bytes:
        where = paths.ca(self._namespace)
        return await api.get(where, Priority.READ)

    async def _connect(
        self,
        api: Transport,
        *,
        pod: AggregatorPod,
        timeout: float,  # noqa: ASYNC109 - of this alone
    ) -> socket.socket:
        try:
            async with asyncio.timeout(timeout):
                wire = await port_forward.connect(api, self._namespace, pod.name, pod.port)
        except TimeoutError as error:
            raise Unreached(f"no connection in {timeout:g} s") from error
        except NotFound as error:
            raise Unreached("the pod is gone") from error
        ours, theirs = socket.socketpair()
        self._session.start(self._carry(wire, theirs))
        return ours

    async def _carry(self, wire: port_forward.PodConnection, end: socket.socket) -> None:
        """The session may close, and cancel this, at any step: also while the command's end of the
        connection is being closed.
        """
        try:
            await self._carry_both_ways(wire, end)
        except OSError:
            pass  # either end is gone: the other one learns it from the closing below
        finally:
            with contextlib.suppress(OSError):
                await wire.close()

    async def _carry_both_ways(self, wire: port_forward.PodConnection, end: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=end)

        async def upward() -> None:
            while data := await reader.read(_CHUNK):
                await wire.send(data)
            await wire.close()  # the command has closed its end

        sending = asyncio.create_task(upward())
        try:
            async for data in wire.received():
                writer.write(data)
                await writer.drain()
        finally:
            self.trouble = clean(wire.trouble)  # the command reads it when its end closes
            writer.close()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
