"""Whether pods of this node reach what they need, which the host's own network can't show.

A second, small DaemonSet on the pod network does the probing (deploy/profiles/pod-network, off
unless installed); this check reads its results over a unix socket. Components: ``dns://name`` and
``tcp://host:port``. Reasons, failed: ``unresolved``, ``refused``, ``timeout``, ``unreachable``,
``error``. For the node as a whole, unknown: ``no-prober`` (one was there and is not), ``hung``,
``error`` and ``garbled`` (the prober itself is in trouble). Where there never was a prober the
check is off.
"""

from collections.abc import Sequence
from pathlib import Path

from nodeagent.checks.base import CheckSpec, Kind, Off, Option, Report
from nodeagent.configfile.units import host_port, socket_path
from nodeagent.model import Observation, Status
from nodeagent.sources.pod_network import NoProber, ProberError, ProberReply, query

NAME = "pod-network"
#: On the host; the prober's pod mounts the folder.
SOCKET = "/run/sickbay-pod-network/prober.sock"
_DEADLINE = 15.0


def evaluate(answers: ProberReply) -> list[Observation]:
    """Pure. The node's own entry first: the prober has answered."""
    found = [(f"dns://{name}", *answer) for name, answer in answers.names.items()]
    found += [(f"tcp://{target}", *answer) for target, answer in answers.targets.items()]
    return [
        Observation(NAME, "", Status.OK, "", "the prober answers"),
        *(
            Observation(NAME, component, Status.FAILED if reason else Status.OK, reason, message)
            for component, reason, message in found
        ),
    ]


class PodNetwork:
    def __init__(self, path: Path, names: Sequence[str], targets: Sequence[str]) -> None:
        self._path = path
        self._names = names
        self._targets = targets
        self._seen = False
        self._last: list[Observation] = []

    async def run_check(self) -> Report:
        try:
            answers = await query(self._path, self._names, self._targets, deadline=_DEADLINE)
        except NoProber as error:
            if not self._seen:
                return Off("no prober on the pod network (deploy/profiles/pod-network)")
            return self._unknown("no-prober", str(error))
        except ProberError as error:
            self._seen = True
            return self._unknown(error.reason, str(error))
        self._seen = True
        self._last = evaluate(answers)
        return self._last

    def _unknown(self, reason: str, message: str) -> list[Observation]:
        """A prober in trouble gives no result of the network, so its earlier results stay."""
        return [Observation(NAME, "", Status.UNKNOWN, reason, message), *self._last[1:]]


def _names(texts: Sequence[str]) -> tuple[str, ...]:
    for text in texts:
        if not text or any(char.isspace() or char in "/:" for char in text):
            raise ValueError(f'"{text}" is no host name')
    return tuple(dict.fromkeys(texts))


def _targets(texts: Sequence[str]) -> tuple[str, ...]:
    plain = [text.removeprefix("tcp://") for text in texts]
    for text in plain:
        if not host_port(text)[0]:
            raise ValueError(f'"{text}" has no host')
    return tuple(dict.fromkeys(plain))


SPEC = CheckSpec(
    name=NAME,
    sees="names that pods of this node can't resolve, services that they can't reach",
    source="a prober in a pod of its own, over a unix socket; off where none is installed",
    cost="no cost without a prober; 1 ms of CPU every 60 s with one, which itself takes 12 ms for "
    "each name",
    blind_to="other pods' network policies: the prober is one pod with its own",
    build=lambda sources, options: PodNetwork(
        sources.machine.host(options["socket"]), options["names"], options["targets"]
    ),
    options=(
        Option("names", Kind.TEXTS, ("kubernetes.default.svc",), "names to resolve", _names),
        Option(
            "targets",
            Kind.TEXTS,
            (),
            'services that pods must reach, such as "registry.example.org:443"',
            _targets,
        ),
        Option("socket", Kind.TEXT, SOCKET, "where the prober answers, on the host", socket_path),
    ),
)
