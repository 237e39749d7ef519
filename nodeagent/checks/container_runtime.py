"""Whether the container runtime on this node answers at its socket.

The component is the socket's path. Reasons, failed: ``missing`` and ``refused`` (it was there
before, or the configuration names it: the runtime is down), ``timeout`` (it takes connections and
sends nothing: it hangs), ``garbled``, ``error``. A socket's file that was there before the agent's
start, without a process that listens, is ``refused`` too: a runtime that stops leaves its file.
Where none of the usual sockets exists, the check is off.
"""

import asyncio
from collections.abc import Sequence

from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.checks.disk_common import absolute_paths
from nodeagent.model import Observation, Status
from nodeagent.sources.grpc_socket import greet
from nodeagent.sources.host import HostRoots

NAME = "container-runtime"
_DEADLINE = 5.0
#: Below /run and not /var/run: that is a symbolic link, which leads out of ``host_root`` in a pod.
USUAL = (
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/cri-dockerd.sock",
)


class ContainerRuntime:
    def __init__(self, machine: HostRoots, sockets: Sequence[str]) -> None:
        self._machine = machine
        self._named = sockets
        self._seen: set[str] = set(sockets)

    async def run_check(self) -> Report:
        paths = self._named or USUAL
        self._seen |= {path for path in paths if self._machine.host(path).exists()}
        report = await asyncio.gather(*(self._greet(path) for path in paths if path in self._seen))
        return report or Off("no container runtime")

    async def _greet(self, path: str) -> Observation:
        begun = self._machine.clock.boottime()
        reason, message = await greet(self._machine.host(path), _DEADLINE)
        if reason:
            return Observation(NAME, path, Status.FAILED, reason, message)
        seconds = self._machine.clock.boottime() - begun
        return Observation(NAME, path, Status.OK, "", f"{message} in {seconds * 1000:.1f} ms")


SPEC = CheckSpec(
    name=NAME,
    sees="a containerd or CRI-O that is down or hangs",
    source="its unix socket: HTTP/2's greeting, no request",
    cost="1 ms of CPU every 60 s",
    blind_to="a runtime that greets and cannot start a container",
    deadline=10.0,
    build=lambda sources, options: ContainerRuntime(sources.machine, options["sockets"]),
    options=(
        Option(
            "sockets",
            Kind.TEXTS,
            (),
            "the runtime's sockets, which must be there; empty: the usual ones that are there",
            absolute_paths,
        ),
    ),
)
