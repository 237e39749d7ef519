"""Several replicas of one aggregator on a real control plane: one fleet, one certificate authority.

    with Replicas(plane, tmp_path, count=3, more=TRUSTING_TLS) as replicas:
        replicas.start()
        with replicas.simulator(["--nodes", "30"], log=tmp_path / "simulator.log") as simulator:
            simulator.until_streaming(30)
        replicas.one(0).kill()

Each has an address of loopback of its own (127.0.0.1, 127.0.0.2, ...) and all the same ports, as
pods have. Agents find them by one name with all these addresses, as by a headless Service: those
that `Replicas.simulator` starts see it in their own /etc/hosts, which needs root.
"""

import http.client
import json
import ssl
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from aggregator.demo.ports import free_port
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import wait_until
from tests.support.hosts import with_hosts, write_hosts
from tests.support.pki import Authority
from tests.support.relay_cuts import RelayCuts
from tests.support.simulator import Simulator
from tests.support.stack import (
    NAMESPACE,
    QUICK_POLICY,
    AggregatorProcess,
    Place,
    install,
)

#: The name under which all replicas have their addresses, as with a headless Service.
SERVICE = "sickbay.test"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/sickbay-controller"
#: The snapshots that the controller has received from agents.
SNAPSHOTS = 'sickbay_ingest_messages_total{kind="snapshot"}'
_STANDING = {
    "sickbay_controller",
    "sickbay_relay_up",
    "sickbay_ingest_streams",
    SNAPSHOTS,
    "sickbay_replica_agents",
    "sickbay_agents_attached",
    "sickbay_ready",
}
#: The audience of the replicas' tokens.
AUDIENCE = "sickbay-replicas"
ACCOUNT = f"{NAMESPACE}:sickbay-aggregator"
#: Simulated agents are let in by their word, over TLS on loopback.
TRUSTING_TLS: dict[str, Any] = {"identity": {"kind": "insecure-trust-hello"}}


class Replicas:
    """``count`` replicas, not started. ``more`` is merged over each one's configuration.

    ``cuttable``: their relays go by proxies, and `cuts` cuts them.
    """

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        *,
        count: int = 3,
        more: Mapping[str, Any] | None = None,
        policy: str = QUICK_POLICY,
        cuttable: bool = False,
    ) -> None:
        self.plane = plane
        self.cuts = RelayCuts(self._pids) if cuttable else None
        #: The token that reads the pages; empty: none is sent.
        self.reader = ""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        install(plane)
        self.authority = Authority.create(folder / "pki")
        self._trust = ssl.create_default_context(cafile=str(self.authority.certificate))
        self.names = [f"sickbay-aggregator-{number}" for number in range(count)]
        self._hosts = [f"127.0.0.{number + 1}" for number in range(count)]
        self._port, self._web_port = free_port("0.0.0.0"), free_port("0.0.0.0")
        self._file = write_hosts(folder / "hosts", {SERVICE: self._hosts})
        self.replicas = {
            name: self._replica(name, host, more or {}, policy)
            for name, host in zip(self.names, self._hosts, strict=True)
        }

    def _replica(
        self, name: str, host: str, more: Mapping[str, Any], policy: str
    ) -> AggregatorProcess:
        token = self.folder / f"{name}.token"
        token.write_text(
            self.plane.token_for(NAMESPACE, "sickbay-aggregator", AUDIENCE, expiration_s=24 * 3600)
        )
        replicas = {
            "name": name,
            "address": f"{host}:{self.cuts.before(host, self._port) if self.cuts else self._port}",
            "page": f"https://{host}:{self._web_port}",
            "token_file": str(token),
            "service_account": ACCOUNT,
            "ca_file": str(self.authority.certificate),
        }
        place = Place(host, self._port, self._web_port, self.authority, (SERVICE,))
        return AggregatorProcess(
            self.plane,
            self.folder / name,
            more={**more, "replicas": {**replicas, **more.get("replicas", {})}},
            policy=policy,
            place=place,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        for name, replica in self.replicas.items():
            if error is not None:
                sys.stderr.write(f"--- {name}\n{replica.log()[-3000:]}")
            replica.close()
        if self.cuts is not None:
            self.cuts.close()

    def _pids(self) -> dict[str, int]:
        return {
            name: replica.process.pid
            for name, replica in self.replicas.items()
            if replica.process is not None and replica.process.poll() is None
        }

    # -- life ------------------------------------------------------------------------

    def start(self) -> Self:
        """Start all, and wait until one is the controller and all others reach it."""
        for replica in self.replicas.values():
            replica.start()
        self.until_served(timeout_s=180)  # several start at once
        return self

    def until_served(self, *, timeout_s: float = 90) -> str:
        """Wait until one running replica is the controller and the others reach it; its name."""
        wait_until(
            self._served,
            what=lambda: f"one controller of {self.running}: {self.standings()}",
            timeout_s=timeout_s,
        )
        return self.controller()

    def _served(self) -> bool:
        told = list(self.standings().values())
        controllers = [one for one in told if one.get("controller")]
        gateways = [one for one in told if one.get("relay_up")]
        return (len(controllers), len(gateways)) == (1, len(self.running) - 1)

    def one(self, number: int) -> AggregatorProcess:
        return self.replicas[self.names[number]]

    @property
    def running(self) -> list[str]:
        """The names of those whose process lives, paused or not."""
        return [
            name
            for name, replica in self.replicas.items()
            if replica.process is not None and replica.process.poll() is None
        ]

    @property
    def address(self) -> str:
        """Where an agent asks first: a name with every replica's address."""
        return f"{SERVICE}:{self._port}"

    def simulator(self, arguments: Sequence[str | Path], *, log: Path) -> Simulator:
        """Simulated agents that find the replicas by that name, over TLS."""
        where = ["--aggregator", self.address, "--ca-file", str(self.authority.certificate)]
        return Simulator([*arguments, *where], log=log, before=self.before)

    @property
    def before(self) -> list[str]:
        """The words before a command line that let it find the replicas by that name."""
        return with_hosts(self._file)

    # -- what they say ---------------------------------------------------------------

    def metrics(self, name: str, *, timeout_s: float = 10) -> dict[str, float]:
        """A replica's metrics, by name and labels as they are written; OSError where none come."""
        text = self.asked(name, "/metrics", timeout_s=timeout_s)
        pairs = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {key: float(value) for key, _, value in pairs if key}

    def answer(self, name: str, what: str) -> Any:
        """The answer of a replica's API at /api/v1/WHAT; OSError where no answer comes."""
        return json.loads(self.asked(name, f"/api/v1/{what}"))

    def asked(self, name: str, path: str, *, timeout_s: float = 10) -> str:
        """The answer of a replica's web listener; OSError where no answer comes."""
        replica = self.replicas[name]
        page = http.client.HTTPSConnection(
            replica.host, replica.web_port, context=self._trust, timeout=timeout_s
        )
        headers = {"Authorization": f"Bearer {self.reader}"} if self.reader else {}
        try:
            page.request("GET", path, headers=headers)
            return page.getresponse().read().decode()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            page.close()

    def standings(self, names: Iterable[str] | None = None) -> dict[str, dict[str, float]]:
        """Each one's report (of those that run): controller, relay_up, agents. Empty: no answer."""
        told: dict[str, dict[str, float]] = {}
        for name in self.running if names is None else names:
            try:
                found = self.metrics(name, timeout_s=3)
            except OSError:
                found = {}
            told[name] = {
                key.removeprefix("sickbay_"): value
                for key, value in found.items()
                if key in _STANDING
            }
        return told

    def agents(self) -> dict[str, int]:
        """How many agents are connected to each that runs; none of these is stopped."""
        found: dict[str, dict[str, float]] = {}

        def all_answer() -> bool:
            found.update(self.standings())
            return all(found[name] for name in self.running)

        wait_until(all_answer, what=lambda: f"an answer of all of {self.running}: {found}")
        return {name: round(found[name]["replica_agents"]) for name in self.running}

    def attached(self) -> int:
        """Of how many agents the controller has a stream."""
        return round(sum(one.get("agents_attached", 0.0) for one in self.standings().values()))

    def controller(self) -> str:
        """The name of the replica that the Lease names."""
        return str(self.lease()["spec"]["holderIdentity"])

    # -- what the cluster shows --------------------------------------------------------

    def lease(self) -> dict[str, Any]:
        """The replicas' Lease."""
        found: dict[str, Any] = self.plane.call("GET", LEASE)
        return found
