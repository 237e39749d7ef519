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

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.controlplane.plane import ControlPlane
from tests.support.hosts import with_hosts, write_hosts
from tests.support.pki import Authority
from tests.support.simulator import Simulator
from tests.support.stack import (
    NAMESPACE,
    QUICK_POLICY,
    AggregatorProcess,
    Place,
    free_port,
    install,
)

#: What all replicas have as addresses, as a headless Service's name would.
SERVICE = "sickbay.test"
#: Whom the replicas' tokens are for.
AUDIENCE = "sickbay-shards"
ACCOUNT = f"{NAMESPACE}:sickbay-aggregator"
#: Simulated agents are let in by their word, over TLS on loopback.
TRUSTING_TLS: dict[str, Any] = {"identity": {"kind": "insecure-trust-hello"}}


class Replicas:
    """``count`` replicas, not started. ``more`` is merged over each one's configuration."""

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        *,
        count: int = 3,
        more: Mapping[str, Any] | None = None,
        policy: str = QUICK_POLICY,
    ) -> None:
        self.plane = plane
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        install(plane)
        self.authority = Authority.create(folder / "pki")
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
        shards = {
            "name": name,
            "address": f"{host}:{self._port}",
            "page": f"https://{host}:{self._web_port}",
            "token_file": str(token),
            "service_account": ACCOUNT,
            "ca_file": str(self.authority.certificate),
        }
        place = Place(host, self._port, self._web_port, self.authority, (SERVICE,))
        return AggregatorProcess(
            self.plane,
            self.folder / name,
            more={**more, "shards": {**shards, **more.get("shards", {})}},
            policy=policy,
            place=place,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name, replica in self.replicas.items():
            if error is not None:
                sys.stderr.write(f"--- {name}\n{replica.log()[-3000:]}")
            replica.close()

    # -- life ------------------------------------------------------------------------

    def start(self) -> Self:
        """Start all, and wait until each sees every other and has waited as a newcomer does."""
        for replica in self.replicas.values():
            replica.start()
        for replica in self.replicas.values():
            replica.ready()
        return self

    def one(self, number: int) -> AggregatorProcess:
        return self.replicas[self.names[number]]

    @property
    def address(self) -> str:
        """Where an agent asks first: a name with every replica's address."""
        return f"{SERVICE}:{self._port}"

    def simulator(self, arguments: Sequence[str | Path], *, log: Path) -> Simulator:
        """Simulated agents that find the replicas by that name, over TLS."""
        where = ["--aggregator", self.address, "--ca-file", str(self.authority.certificate)]
        return Simulator([*arguments, *where], log=log, before=with_hosts(self._file))

    # -- what the cluster shows --------------------------------------------------------

    def leases(self) -> dict[str, dict[str, Any]]:
        """The replicas' Leases, by the name of the replica."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
        items = self.plane.call("GET", path)["items"]
        mine = {f"sickbay-{name}": name for name in self.names}
        return {
            mine[item["metadata"]["name"]]: item
            for item in items
            if item["metadata"]["name"] in mine
        }
