"""A control plane that another process has started, used from this one.

    environ["PLANE"] = str(plane.share())                  # there
    with SharedPlane(Path(environ["PLANE"])) as plane:     # here

It has the same objects, identities and audit log; its servers can't be stopped from here.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self, cast

from tests.controlplane import kubeconfigs
from tests.controlplane.api import ApiClient
from tests.controlplane.pki import Authority
from tests.controlplane.plane import ADMIN, SHARED, ControlPlane
from tests.controlplane.ports import ReservedPort
from tests.controlplane.servers import PlaneError, Server


@dataclass(frozen=True, slots=True)
class _Running:
    """A server that another process has started."""

    pid: int
    running: bool = True
    paused: bool = False

    def __getattr__(self, name: str) -> NoReturn:
        raise PlaneError(f"{name}: the control plane is shared, and its servers are another's")


@dataclass(frozen=True, slots=True)
class _Port:
    number: int


class SharedPlane(ControlPlane):
    """The plane of this folder, which `ControlPlane.share` has returned."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder=folder)
        self.folder = folder

    def start(self) -> Self:
        """Read where its servers are. Raises PlaneError where the folder has no shared plane."""
        file = self.folder / SHARED
        if not file.exists():
            raise PlaneError(f"{self.folder} has no {SHARED}: no control plane is shared there")
        facts: dict[str, Any] = json.loads(file.read_text())
        self._authority = Authority.load(self.folder / "pki")
        self._etcd_port = cast(ReservedPort, _Port(facts["etcd_port"]))
        self.port = facts["port"]
        self.url = f"https://127.0.0.1:{self.port}"
        self.ca_file = self._authority.certificate
        self.audit_log = self.folder / "audit.log"
        self.servers = {name: cast(Server, _Running(pid)) for name, pid in facts["pids"].items()}
        admin = self._issue(ADMIN, ["system:masters"])
        self.client = self._closing(ApiClient(self.port, self.ca_file, certificate=admin))
        self.kubeconfig = kubeconfigs.write(
            self.folder / f"{self._new_name()}.kubeconfig",
            self.url,
            self.ca_file,
            certificate=admin,
        )
        return self

    def create_namespace(self, name: str) -> None:
        """As `ControlPlane.create_namespace`; one that is there is no error."""
        if not self._finds(f"/api/v1/namespaces/{name}"):
            super().create_namespace(name)

    def stop(self) -> None:
        """Close what was opened here; the plane runs on."""
        self._cleanup.close()
