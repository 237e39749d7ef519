"""Plays the kubelets for sickbay's pods: runs each pod of the cluster as a real container.

kwok gives pods their status; this gives them their processes, by the call that containerd would
make (tests/deploy/pod.py): the volumes of the pod's own spec at their paths, its user and its
capabilities. Containers share this process's network, so the namespace must be one's own
(`python -m tests.chart.own_network`): the manifests have fixed ports. With a `PodNetwork`, only
those of the host's network do, and several aggregators can run.

Images can't be pulled, so that the image is this machine, with the programs of this tree.
"""

import base64
import contextlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.chart.pod_network import GATEWAY, PodNetwork
from tests.controlplane.api import MERGE_PATCH, ApiError
from tests.controlplane.plane import ControlPlane
from tests.deploy.manifests import container
from tests.deploy.pod import Container
from tests.support.text_files import text_file

_SELECTOR = "labelSelector=app.kubernetes.io%2Fname%3Dsickbay"
_POLL_S = 0.3
_AGGREGATOR = "sickbay-aggregator"
#: The API server's name in its certificate.
_API = "kubernetes.default.svc"
_PROGRAMS = Path(sys.prefix) / "bin"
#: The program of an image whose pod names none, by the container's name.
_ENTRY_POINTS = {"aggregator": "sickbay-aggregator", "agent": "sickbay-agent"}


@dataclass
class Running:
    """A pod's container. ``stopped_at`` is when it was asked to end (the monotonic clock).

    Only one container at a time has a ``place``: the name of a StatefulSet's pod, an agent's node.
    """

    name: str
    component: str
    node: str
    container: Container
    folder: Path
    sources: list[tuple[Path, Callable[[], dict[str, bytes] | None]]]
    place: str
    stopped_at: float | None = None

    def log(self) -> list[dict[str, Any]]:
        """Its log so far, as far as it is JSON."""
        found = []
        for line in self.container.log.read_text("utf-8", "replace").splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found


@dataclass
class Kubelets:
    """Every kubelet of ``plane``, for sickbay's pods of one namespace, while the block lasts."""

    plane: ControlPlane
    namespace: str
    folder: Path
    network: PodNetwork | None = None
    #: Further names that containers know, with their addresses.
    names: dict[str, str] = field(default_factory=dict)
    past: list[Running] = field(default_factory=list)
    _running: dict[str, Running] = field(default_factory=dict)
    _stopping: dict[str, threading.Thread] = field(default_factory=dict)
    _ending: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _error: BaseException | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        self._ending.set()
        assert self._thread is not None
        self._thread.join(300)
        for uid in list(self._running):
            self._begin_stop(uid)
        for thread in list(self._stopping.values()):
            thread.join(300)
        if error is not None:
            for each in self.past:
                text = each.container.log.read_text("utf-8", "replace")[-3000:]
                sys.stderr.write(f"--- {each.name} on {each.node}\n{text}\n")

    def running(self, component: str) -> list[Running]:
        """The containers of this component that run now."""
        if self._error is not None:
            raise self._error
        return [each for each in list(self._running.values()) if each.component == component]

    def every(self, component: str) -> list[Running]:
        """Those that have ended, too; the earliest first."""
        return [
            each for each in (*self.past, *self.running(component)) if each.component == component
        ]

    # -- the loop ------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ending.wait(_POLL_S):
            try:
                self._sync()
            except (ApiError, OSError, TimeoutError):
                continue  # the API server is away for a moment
            except BaseException as error:
                self._error = error
                raise

    def _sync(self) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods?{_SELECTOR}"
        pods = {pod["metadata"]["uid"]: pod for pod in self.plane.call("GET", path)["items"]}
        for uid in list(self._running):
            gone = uid not in pods or "deletionTimestamp" in pods[uid]["metadata"]
            if gone:
                self._begin_stop(uid)
        for uid, pod in pods.items():
            if _is_due(pod) and uid not in self._running and _place(pod) not in self._stopping:
                self._start(uid, pod)
        for each in list(self._running.values()):
            _refresh(each.sources)
            if each.component == "test" and each.container.ended():
                self._report_end(each)

    def _start(self, uid: str, pod: dict[str, Any]) -> None:
        spec, metadata = pod["spec"], pod["metadata"]
        volumes = Volumes(self.plane, pod, self.folder / "nodes" / spec["nodeName"])
        folder = self.folder / uid
        folder.mkdir()
        paths, sources = volumes.make(folder)
        if not _refresh(sources):
            shutil.rmtree(folder)
            return  # a kubelet, too, tries again until every volume is there
        only = container(spec)
        hosts = text_file(folder / "hosts", self._hosts())
        spec["volumes"].append({"name": "etc-hosts", "hostPath": {"path": str(hosts)}})
        only["volumeMounts"].append({"name": "etc-hosts", "mountPath": "/etc/hosts"})
        network = self._network_of(pod)
        started = Container(
            spec | {"hostNetwork": network is None},
            _command(only),
            volumes=paths,
            folder=folder,
            environ=_environment(self.plane, pod, "127.0.0.1" if network is None else _API),
            hostname=metadata["name"],
            network=network,
        )
        started.__enter__()
        component = metadata["labels"]["app.kubernetes.io/component"]
        self._running[uid] = Running(
            metadata["name"],
            component,
            spec["nodeName"],
            started,
            folder,
            sources,
            _place(pod),
        )

    def _network_of(self, pod: dict[str, Any]) -> Path | None:
        """The network of a pod that has one of its own."""
        if self.network is None or pod["spec"].get("hostNetwork"):
            return None
        return self.network.add(_place(pod))

    def _hosts(self) -> str:
        """The answer of the cluster's name service, as a file."""
        domain = f"{self.namespace}.svc"
        addresses = ["127.0.0.1"]
        if self.network is not None:
            addresses = [self.network.address(f"{_AGGREGATOR}-{number}") for number in range(3)]
        lines = ["127.0.0.1 localhost", f"{GATEWAY} {_API}"]
        for number, address in enumerate(addresses):
            names = [f"{_AGGREGATOR}-{number}.{_AGGREGATOR}", _AGGREGATOR, "sickbay-page"]
            lines.append(" ".join([address, *(f"{name}.{domain}" for name in names)]))
        lines += [f"{address} {name}" for name, address in self.names.items()]
        return "\n".join(lines) + "\n"

    def _begin_stop(self, uid: str) -> None:
        """Ends a container, beside all others, as the kubelets of several nodes do."""
        each = self._running.pop(uid)
        each.stopped_at = time.monotonic()
        thread = threading.Thread(target=self._stop, args=[each], daemon=True)
        self._stopping[each.place] = thread
        thread.start()

    def _stop(self, each: Running) -> None:
        if not each.container.ended():
            each.container.signal("TERM")
            with contextlib.suppress(Exception):
                each.container.wait(300)
        each.container.__exit__()
        if self.network is not None:
            self.network.remove(each.place)
        self.past.append(each)
        del self._stopping[each.place]

    def _report_end(self, each: Running) -> None:
        phase = "Succeeded" if each.container.wait(1) == 0 else "Failed"
        path = f"/api/v1/namespaces/{self.namespace}/pods/{each.name}/status"
        self.plane.request("PATCH", path, {"status": {"phase": phase}}, MERGE_PATCH)


def _place(pod: dict[str, Any]) -> str:
    component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
    node, name = pod["spec"]["nodeName"], str(pod["metadata"]["name"])
    return f"{component} on {node}" if component == "agent" else name


def _is_due(pod: dict[str, Any]) -> bool:
    running = pod["status"].get("phase") == "Running" and "nodeName" in pod["spec"]
    return running and "deletionTimestamp" not in pod["metadata"]


class Volumes:
    """The volumes of one pod, as folders."""

    def __init__(self, plane: ControlPlane, pod: dict[str, Any], node: Path) -> None:
        self._plane = plane
        self._pod = pod
        self._node = node
        self._namespace = pod["metadata"]["namespace"]
        self._user = pod["spec"].get("securityContext", {}).get("runAsUser", 0)

    def make(
        self, folder: Path
    ) -> tuple[dict[str, Path], list[tuple[Path, Callable[[], dict[str, bytes] | None]]]]:
        """The folders by volume name, and the sources of those with files of the cluster's."""
        paths: dict[str, Path] = {}
        sources: list[tuple[Path, Callable[[], dict[str, bytes] | None]]] = []
        for volume in self._pod["spec"]["volumes"]:
            name = volume["name"]
            if "hostPath" in volume:
                paths[name] = self._host_path(volume["hostPath"]["path"])
                continue
            paths[name] = folder / name
            paths[name].mkdir()
            if "emptyDir" in volume:
                os.chown(paths[name], self._user, self._user)
                continue
            parts = volume["projected"]["sources"] if "projected" in volume else [volume]
            sources += [(paths[name], self._source(part)) for part in parts]
        return paths, sources

    def _host_path(self, path: str) -> Path:
        """The node's own folder. Its devices are this machine's."""
        if path == "/dev":
            return Path(path)
        found = self._node / path.lstrip("/")
        found.mkdir(parents=True, exist_ok=True)
        if path == "/":
            for name in ("proc", "sys", "etc", "var/lib", "run"):
                (found / name).mkdir(parents=True, exist_ok=True)
        return found

    def _source(self, part: dict[str, Any]) -> Callable[[], dict[str, bytes] | None]:
        if "serviceAccountToken" in part:
            token = self._token(part["serviceAccountToken"])
            return lambda: token
        if "downwardAPI" in part:
            fields = {"namespace": self._namespace.encode()}
            return lambda: fields
        kind = "configMap" if "configMap" in part else "secret"
        return lambda: self._object(kind, part[kind])

    def _token(self, source: dict[str, Any]) -> dict[str, bytes]:
        account = self._pod["spec"]["serviceAccountName"]
        pod = self._pod["metadata"]["name"]
        audience = source.get("audience")
        token = self._plane.token_for(self._namespace, account, audience, pod=pod)
        return {source["path"]: token.encode()}

    def _object(self, kind: str, source: dict[str, Any]) -> dict[str, bytes] | None:
        """Its files, or None while it is not there and must be."""
        name = source.get("name") or source.get("secretName")
        path = f"/api/v1/namespaces/{self._namespace}/{kind.lower()}s/{name}"
        answer = self._plane.request("GET", path)
        if answer.status != 200:
            return {} if source.get("optional") else None
        data = answer.body.get("data", {})
        files = {
            key: base64.b64decode(text) if kind == "secret" else text.encode()
            for key, text in data.items()
        }
        if "items" not in source:
            return files
        return {
            item["path"]: files[item["key"]] for item in source["items"] if item["key"] in files
        }


def _refresh(sources: list[tuple[Path, Callable[[], dict[str, bytes] | None]]]) -> bool:
    """Write what has changed; False where an object is missing."""
    for folder, read in sources:
        files = read()
        if files is None:
            return False
        for name, content in files.items():
            file = folder / name
            if not file.exists() or file.read_bytes() != content:
                new = folder / f".{name}.new"
                new.write_bytes(content)
                new.chmod(0o444)
                new.replace(file)
    return True


def _command(only: dict[str, Any]) -> list[str]:
    if only["name"] in _ENTRY_POINTS:
        return [str(_PROGRAMS / _ENTRY_POINTS[only["name"]]), *only["args"]]
    command = [part.replace("/opt/sickbay/bin", str(_PROGRAMS)) for part in only["command"]]
    return [*command, *only["args"]]


def _environment(plane: ControlPlane, pod: dict[str, Any], host: str) -> dict[str, str]:
    """``host`` is the API server's address."""
    environ = {
        "PATH": os.defpath,
        "HOME": "/",
        "PYTHONDONTWRITEBYTECODE": "1",
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": str(plane.port),
    }
    for variable in container(pod["spec"]).get("env", []):
        if "valueFrom" in variable:
            value: Any = pod
            for step in variable["valueFrom"]["fieldRef"]["fieldPath"].split("."):
                value = value[step]
        else:
            value = variable["value"]
            for name, known in environ.items():
                value = value.replace(f"$({name})", known)
        environ[variable["name"]] = value
    return environ
