"""Whether this node's kubelet reports itself healthy, on its own loopback; not the API's view.

Reasons: ``unhealthy`` (it answers, and not with 200: failed), ``refused``, ``timeout``, ``garbled``
and the like (it answered before, or ``expected`` is set, and now does not; or the socket that it
left for device plugins refuses connections too: failed),
``never-answered`` (there are files of a kubelet, and no answer; its health port may be off:
unknown). Without a kubelet's files the check is off. The node is the component.
"""

from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.model import Observation, Status
from nodeagent.sources.grpc_socket import greet
from nodeagent.sources.host import HostRoots
from nodeagent.sources.http import HttpError, Response, Url, checked_url, parse_url, request

NAME = "kubelet"
_DEADLINE = 5.0
_SOCKET_DEADLINE = 2.0
_WORDS = 200  # of an unhealthy answer
#: The kubelet removes and makes it at its start, so that one which stopped leaves the file.
_SOCKET = "/var/lib/kubelet/device-plugins/kubelet.sock"


def evaluate(
    answer: Response | HttpError, seconds: float, *, used: bool, socket: str = ""
) -> Observation:
    """Pure. ``seconds``: until the answer. ``used``: it answered before, or is expected.

    ``socket``: why its socket for device plugins takes no connection, empty where it does.
    """
    if isinstance(answer, HttpError):
        if used:
            return Observation(NAME, "", Status.FAILED, answer.reason, str(answer))
        if socket == "refused":
            message = f"{answer}; no process listens at {_SOCKET} either"
            return Observation(NAME, "", Status.FAILED, answer.reason, message)
        message = f"there are files of a kubelet, but {answer}"
        return Observation(NAME, "", Status.UNKNOWN, "never-answered", message)
    if answer.status == 200:
        return Observation(NAME, "", Status.OK, "", f"healthy, in {seconds * 1000:.1f} ms")
    words = " ".join(answer.body[:_WORDS].decode("utf-8", "replace").split())
    message = f"status {answer.status}: {words}"
    return Observation(NAME, "", Status.FAILED, "unhealthy", message)


class KubeletCheck:
    def __init__(self, machine: HostRoots, url: Url, *, expected: bool) -> None:
        self._machine = machine
        self._url = url
        self._used = expected

    async def run_check(self) -> Report:
        answer: Response | HttpError
        begun = self._machine.clock.boottime()
        try:
            answer = await request(self._url, deadline=_DEADLINE)
        except HttpError as error:
            answer = error
        else:
            self._used = True
        if not self._used and not self._machine.host("/var/lib/kubelet").is_dir():
            return Off("no kubelet")
        seconds = self._machine.clock.boottime() - begun
        socket = ""
        if isinstance(answer, HttpError) and not self._used:
            socket, _ = await greet(self._machine.host(_SOCKET), _SOCKET_DEADLINE)
        return [evaluate(answer, seconds, used=self._used, socket=socket)]


SPEC = CheckSpec(
    name=NAME,
    sees="a kubelet that is down, hangs or calls itself unhealthy",
    source="its health endpoint on the loopback, http://127.0.0.1:10248/healthz; without an answer "
    "its socket for device plugins",
    cost="1 ms of CPU every 60 s",
    blind_to="whether the API server receives it (the Node's Ready condition shows it); after a "
    "restart of the agent, without expected: a kubelet that was down before and left no socket",
    deadline=10.0,
    build=lambda sources, options: KubeletCheck(
        sources.machine, parse_url(options["url"]), expected=options["expected"]
    ),
    options=(
        Option(
            "url",
            Kind.TEXT,
            "http://127.0.0.1:10248/healthz",
            "where it answers; an address and not a name",
            checked_url,
        ),
        Option(
            "expected", Kind.FLAG, False, "whether one that never answered is failed, not unknown"
        ),
    ),
)
