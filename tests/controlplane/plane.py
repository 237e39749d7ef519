"""A real Kubernetes control plane on loopback: plain processes in a temporary folder.

    with ControlPlane() as plane:
        plane.create_nodes(3)
        subprocess.run(["kubectl", "--kubeconfig", plane.kubeconfig, "get", "nodes"])

No container, no root, nothing outside its folder. Ports are the system's choice, so any number of
planes can run side by side. README.md says which parts are real and which are played.
"""

import base64
import contextlib
import http.client
import itertools
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aggregator.demo.process_guard import ProcessGuard
from aggregator.runtime.interning import EMPTY
from tests.controlplane import audit, binaries, commands, kubeconfigs
from tests.controlplane.api import ApiClient
from tests.controlplane.objects import ClusterObjects
from tests.controlplane.pki import Authority, KeyPair, service_account_keys
from tests.controlplane.ports import ReservedPort
from tests.controlplane.servers import PlaneError, Server
from tests.controlplane.toolchain import Progress
from tests.controlplane.waiting import wait_until

__all__ = ["ADMIN", "ControlPlane", "PlaneError"]

ADMIN = "test-admin"
"""The user whom `client` and `kubeconfig` are; a member of system:masters."""

#: The file of a shared plane's folder with its ports and processes.
SHARED = "shared.json"
_SYNC_PREFIX = "sickbay-sync-"
#: Writes of one transaction; etcd takes 128 at most.
_COPIES_AT_ONCE = 100


class ControlPlane(ClusterObjects):
    """etcd and kube-apiserver, and the other parts of a cluster that are asked for.

    controller_manager: the controllers that tests use (disruption budgets, DaemonSets, garbage
    collection, ...; not volumes, certificates or scaling).
    scheduler: the default one. kwok: plays the kubelets.
    apiserver_args: further flags of kube-apiserver. go: settings of Go, as of GOGC; benchmarks keep
    Go's own. folder: where everything is kept, and stays afterwards; by default a temporary one
    that goes.

    Attributes, once started: `url`, `port`, `ca_file`, `kubeconfig` (the administrator's),
    `client` (the administrator), `folder`, `audit_log`, `servers` (by name: `pid`, `log_path`,
    `pause()`, ...). `issuer` is the issuer of service account tokens.
    """

    issuer = commands.ISSUER

    def __init__(
        self,
        *,
        controller_manager: bool = True,
        scheduler: bool = True,
        kwok: bool = True,
        apiserver_args: Sequence[str] = (),
        go: Mapping[str, str] = EMPTY,
        folder: Path | None = None,
        progress: Progress = binaries.to_stderr,
    ) -> None:
        self._options = commands.Options(controller_manager, scheduler, kwok, list(apiserver_args))
        self._go = go
        self._kept_folder = folder
        self._progress = progress
        self._serial = itertools.count(1)
        self._cleanup = contextlib.ExitStack()
        self.servers: dict[str, Server] = {}

    # -- life -------------------------------------------------------------------

    def start(self) -> Self:
        """Start every server and wait until each is ready.

        Raises NoControlPlane where a program is missing, PlaneError where one doesn't start.
        """
        programs = binaries.ensure(self._options.programs(), self._progress)
        try:
            self._prepare()
            self._define(programs)
            self.start_etcd()
            self.restart_apiserver()
            self._start_controllers()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End every process that was started here, by its pid, and remove the folder."""
        for server in reversed(self.servers.values()):
            # The servers are killed, not stopped: the data that they would save is deleted with the
            # folder.
            server.kill()
        self._cleanup.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # -- breaking it ---------------------------------------------------------------

    @property
    def apiserver(self) -> Server:
        """The kube-apiserver process."""
        return self.servers["kube-apiserver"]

    def pause_apiserver(self) -> None:
        """SIGSTOP: connections stay open, requests hang until they time out."""
        self.apiserver.pause()

    def resume_apiserver(self) -> None:
        """SIGCONT, and wait until it answers."""
        self.apiserver.resume()
        self.apiserver.wait_ready(self._apiserver_ready, 60)

    def kill_apiserver(self) -> None:
        """SIGKILL: connections break, new ones are refused."""
        self.apiserver.kill()
        self.client.close()

    def restart_apiserver(self) -> None:
        """Start it again on the same port with the same data (killed first if it runs)."""
        self.kill_apiserver()
        self.apiserver.start()
        self.apiserver.wait_ready(self._apiserver_ready, 90)

    def stop_etcd(self) -> None:
        """SIGKILL etcd: the API server lives; writes hang, for 30 s or more, or fail (5xx)."""
        self.servers["etcd"].kill()

    def start_etcd(self) -> None:
        """Start etcd on the same data, and wait until it (and a running API server) is ready."""
        etcd = self.servers["etcd"]
        etcd.start()
        etcd.wait_ready(lambda: _http_ok(self._etcd_port.number, "/health"), 30)
        if self.apiserver.running:
            self.apiserver.wait_ready(self._apiserver_ready, 60)

    def backup_etcd(self, name: str) -> Path:
        """A copy of etcd's data as it is now, taken while etcd is stopped."""
        self.stop_etcd()
        backup = shutil.copytree(self._etcd_data, self.folder / f"etcd-backup-{name}")
        self.start_etcd()
        return Path(backup)

    def restore_etcd(self, backup: Path) -> None:
        """Start etcd and the API server anew on such a copy: versions move backwards."""
        self.kill_apiserver()
        self.stop_etcd()
        shutil.rmtree(self._etcd_data)
        shutil.copytree(backup, self._etcd_data)
        self.start_etcd()
        self.restart_apiserver()
        self.client.applied.clear()  # a version may be another object's than before

    def copy_object(self, key: str, copies: Iterable[Mapping[str, str]]) -> str:
        """Write copies of the object `/registry/KEY` to etcd, each with these words exchanged.

        Returns the resourceVersion of the last one, or "" for none. A word has the length of the
        one that it replaces. etcd gets the copies past the API server, which sees them as it sees
        the writes of another one; by requests 50,000 Nodes take a quarter of an hour of two busy
        cores. Raises PlaneError where a copy's key is taken.
        """
        copies, version = list(copies), ""
        if not copies:
            return version
        stored = self._etcd("range", {"key": _etcd_key(key)})["kvs"][0]["value"]
        value = base64.b64decode(stored)
        puts = []
        for words in copies:
            made, path = value, key
            for old, new in words.items():
                if len(old) != len(new):
                    raise ValueError(f"{new!r} is not as long as {old!r}, which it replaces")
                made, path = made.replace(old.encode(), new.encode()), path.replace(old, new)
            puts.append((_etcd_key(path), _base64(made)))
        for begin in range(0, len(puts), _COPIES_AT_ONCE):
            part = puts[begin : begin + _COPIES_AT_ONCE]
            free = [{"key": at, "target": "VERSION", "version": 0} for at, _ in part]
            writes = [{"requestPut": {"key": at, "value": made}} for at, made in part]
            done = self._etcd("txn", {"compare": free, "success": writes})
            if not done.get("succeeded"):
                raise PlaneError(f"copies of {key}: the key of one is taken")
            version = str(done["header"]["revision"])
        return version

    def delete_from_storage(self, *prefixes: str) -> None:
        """Delete all objects under `/registry/PREFIX...` at once, whatever finalizers they have.

        The API server sees that as it sees the deletions by another one.
        """
        ranges = [
            {"requestDeleteRange": {"key": _etcd_key(prefix), "range_end": _etcd_end(prefix)}}
            for prefix in prefixes
        ]
        self._etcd("txn", {"success": ranges})

    def _etcd(self, what: str, body: Mapping[str, Any]) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._etcd_port.number, timeout=60)
        with closing(connection):
            connection.request("POST", f"/v3/kv/{what}", json.dumps(body))
            answer = connection.getresponse()
            text = answer.read().decode()
        if answer.status != 200:
            raise PlaneError(f"etcd answered {answer.status} to {what}: {text}")
        return json.loads(text)

    @property
    def _etcd_data(self) -> Path:
        return self.folder / "etcd"

    def share(self) -> Path:
        """Let other processes of this user use it (shared_plane.py); returns its folder."""
        self._authority.save_key()
        facts = {
            "etcd_port": self._etcd_port.number,
            "port": self.port,
            "pids": {name: server.pid for name, server in self.servers.items()},
        }
        (self.folder / SHARED).write_text(json.dumps(facts))
        return self.folder

    # -- identities ------------------------------------------------------------------

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig with a client certificate of this user. RBAC grants it what it grants.

        A kubelet is user system:node:NAME in the group system:nodes.
        """
        return self._write_kubeconfig(certificate=self._issue(user, groups))

    def kubeconfig_for_service_account(
        self, namespace: str, name: str, *, pod: str | None = None, expiration_s: int = 24 * 3600
    ) -> Path:
        """A kubeconfig with a token of this (existing) ServiceAccount."""
        token = self.token_for(namespace, name, None, pod=pod, expiration_s=expiration_s)
        return self._write_kubeconfig(token=token)

    def client_for(
        self, user: str, groups: Sequence[str] = (), *, timeout_s: float = 30.0
    ) -> ApiClient:
        """A client that is this user by certificate. Closed when the plane stops."""
        pair = self._issue(user, groups)
        client = ApiClient(self.port, self.ca_file, certificate=pair, timeout_s=timeout_s)
        return self._closing(client)

    def client_with_token(self, token: str, *, timeout_s: float = 30.0) -> ApiClient:
        """A client that bears this token. Closed when the plane stops."""
        return self._closing(ApiClient(self.port, self.ca_file, token=token, timeout_s=timeout_s))

    @property
    def makes_service_accounts(self) -> bool:
        """Whether namespaces get their `default` ServiceAccount."""
        return self._options.controller_manager

    # -- audit -----------------------------------------------------------------------

    def audit_mark(self) -> int:
        """A place in the audit log behind every request that was answered up to now."""
        self._sync_audit()
        return self.audit_log.stat().st_size

    def audit_entries(self, since: int = 0) -> list[dict[str, Any]]:
        """The requests behind a mark, one event (audit.k8s.io/v1) each, all users'.

        Complete up to now: the log is waited for, unless the server is paused or down.
        """
        self._sync_audit()
        return [
            entry
            for entry in audit.read_entries(self.audit_log, since)
            if not entry["auditID"].startswith(_SYNC_PREFIX)
        ]

    def requests_by_user_and_verb(self, since: int = 0) -> Counter[tuple[str, str]]:
        """How many requests each user made with each verb behind a mark."""
        return audit.by_user_and_verb(self.audit_entries(since))

    def _sync_audit(self) -> None:
        """Make a request of our own, and wait until the log has it: the earlier ones are there."""
        if not self.apiserver.running or self.apiserver.paused:
            return
        before = self.audit_log.stat().st_size
        own = f"{_SYNC_PREFIX}{os.getpid()}-{next(self._serial)}"
        self.client.request("GET", "/version", headers={"Audit-ID": own})
        wait_until(
            lambda: any(e["auditID"] == own for e in audit.read_entries(self.audit_log, before)),
            what="the audit log",
        )

    # -- putting it together ------------------------------------------------------------

    def _prepare(self) -> None:
        self.folder = self._make_folder()
        self._process_guard = ProcessGuard(self.folder, remove=self._kept_folder is None)
        self._cleanup.callback(self._process_guard.close)
        self._authority = Authority.create(self.folder / "pki")
        self.ca_file = self._authority.certificate
        self._etcd_port, self._peer_port = self._reserve(), self._reserve()
        self.port = self._reserve().number
        self.url = f"https://127.0.0.1:{self.port}"
        self.audit_log = self.folder / "audit.log"
        self.audit_log.touch()
        admin = self._issue(ADMIN, ["system:masters"])
        self.client = self._closing(ApiClient(self.port, self.ca_file, certificate=admin))
        self.kubeconfig = kubeconfigs.write(
            self.folder / "admin.kubeconfig", self.url, self.ca_file, certificate=admin
        )

    def _define(self, programs: dict[str, Path]) -> None:
        private, public = service_account_keys(self.folder / "pki")
        names = ["127.0.0.1", "localhost", "kubernetes.default.svc"]
        at = commands.Setting(
            folder=self.folder,
            ca_file=self.ca_file,
            serving=self._authority.server("serving", names),
            service_account_key=private,
            service_account_public=public,
            audit_log=self.audit_log,
            etcd_port=self._etcd_port.number,
            etcd_peer_port=self._peer_port.number,
            apiserver_port=self.port,
        )
        self._ports = {name: self._reserve().number for name in programs}
        lines = commands.command_lines(
            self._options, programs, at, self._ports, self._component_kubeconfig
        )
        self.servers = {
            name: Server(name, line, self.folder, self._process_guard, go=self._go)
            for name, line in lines.items()
        }

    def _start_controllers(self) -> None:
        probes: dict[str, Callable[[], bool]] = {
            "kube-controller-manager": self._controller_manager_ready,
            "kube-scheduler": lambda: self._https_ok(self._ports["kube-scheduler"], "/healthz"),
            "kwok": lambda: _http_ok(self._ports["kwok"], "/readyz"),
        }
        started = [name for name in probes if name in self.servers]
        for name in started:
            self.servers[name].start()
        for name in started:
            self.servers[name].wait_ready(probes[name], 60)

    def _apiserver_ready(self) -> bool:
        # The namespaces are made by the server itself a moment after it calls itself ready.
        try:
            ready = self.client.request("GET", "/readyz").status == 200
            return ready and self._finds("/api/v1/namespaces/kube-system")
        except (OSError, http.client.HTTPException):
            return False

    def _controller_manager_ready(self) -> bool:
        port = self._ports["kube-controller-manager"]
        return self._https_ok(port, "/healthz") and self._finds(
            "/api/v1/namespaces/default/serviceaccounts/default"
        )

    def _finds(self, path: str) -> bool:
        return self.client.request("GET", path).status == 200

    def _https_ok(self, port: int, path: str) -> bool:
        with ApiClient(port, self.ca_file, timeout_s=5) as client:
            try:
                return client.request("GET", path).status == 200
            except (OSError, http.client.HTTPException):
                return False

    def _make_folder(self) -> Path:
        if self._kept_folder is None:
            return Path(tempfile.mkdtemp(prefix="sickbay-controlplane-"))
        self._kept_folder.mkdir(parents=True, exist_ok=True)
        if any(self._kept_folder.iterdir()):
            raise PlaneError(f"{self._kept_folder} isn't empty; give an empty or a new folder")
        return self._kept_folder.resolve()

    def _reserve(self) -> ReservedPort:
        return self._cleanup.enter_context(ReservedPort())

    def _closing(self, client: ApiClient) -> ApiClient:
        return self._cleanup.enter_context(client)

    def _issue(self, user: str, groups: Sequence[str]) -> KeyPair:
        return self._authority.user(self._new_name(), user, groups)

    def _new_name(self) -> str:
        """A name of a user's files; other processes may use the same folder (shared_plane.py)."""
        return f"user-{os.getpid()}-{next(self._serial)}"

    def _component_kubeconfig(self, user: str) -> Path:
        # Each under its own name, so that the audit log tells them apart.
        return self.kubeconfig_for(user, ["system:masters"])

    def _write_kubeconfig(
        self, *, certificate: KeyPair | None = None, token: str | None = None
    ) -> Path:
        path = self.folder / f"{self._new_name()}.kubeconfig"
        return kubeconfigs.write(path, self.url, self.ca_file, certificate=certificate, token=token)


def _http_ok(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _etcd_key(path: str) -> str:
    return _base64(f"/registry/{path}".encode())


def _etcd_end(prefix: str) -> str:
    """The end of the range of all keys that begin with the prefix."""
    return _etcd_key(prefix[:-1] + chr(ord(prefix[-1]) + 1))


def _base64(text: bytes) -> str:
    return base64.b64encode(text).decode()
