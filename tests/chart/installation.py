"""An install of the chart on a real control plane, by Helm, with real containers for its pods."""

import contextlib
import json
import os
import re
import shutil
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart import own_network
from tests.chart.kubelet import Kubelets
from tests.chart.pod_network import PodNetwork
from tests.chart.templates import CHART
from tests.controlplane.plane import ControlPlane
from tests.controlplane.waiting import wait_until
from tests.deploy import pod
from tests.support.yaml_documents import read_documents

#: Nodes of the cluster.
NODES = 2
#: For the tests of a file that runs the pods.
NEEDS_CONTAINERS = [
    pytest.mark.skipif(bool(pod.missing()), reason=pod.missing() or "-"),
    pytest.mark.skipif(
        not own_network.is_own(), reason="needs a network of its own: run `make deploy-check`"
    ),
]
AGGREGATOR = "system:serviceaccount:sickbay:sickbay-aggregator"
PAGE = "https://127.0.0.1:8080"
OPENED = "stream to the aggregator opened"


@dataclass
class Installation:
    """A release on ``plane``; its pods run as containers while `running` lasts."""

    plane: ControlPlane
    helm: Path
    folder: Path
    namespace: str = "sickbay"
    release: str = "sickbay"
    network: PodNetwork | None = None
    kubelets: Kubelets = field(init=False)

    def __post_init__(self) -> None:
        self.kubelets = Kubelets(self.plane, self.namespace, self.folder / "kubelets", self.network)

    def run(self, *command: str | Path, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Helm or kubectl, as a person would call it."""
        home = self.folder / "home"
        environ = {"PATH": f"{self.helm.parent}:{os.environ['PATH']}", "HOME": str(home)}
        done = subprocess.run(
            command,
            env=environ | {"KUBECONFIG": str(self.plane.kubeconfig)},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            cwd=CHART.parents[2],
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def helm_do(
        self, verb: str, *arguments: str | Path, check: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        """``helm VERB RELEASE ARGUMENTS`` in the release's namespace."""
        line = [self.helm, verb, self.release, *arguments, "--namespace", self.namespace]
        return self.run(*line, check=check)

    def beside(self, release: str, namespace: str) -> "Installation":
        """Another release on the same cluster, whose pods nobody runs."""
        return Installation(self.plane, self.helm, self.folder, namespace, release)

    # -- what it shows -------------------------------------------------------------

    def fleet(self, page: str = PAGE) -> dict[str, Any] | None:
        """The page's summary, or None while it does not answer."""
        try:
            found: dict[str, Any] = self.read(f"{page}/api/v1/fleet", timeout_s=5)
        except (OSError, ValueError):
            return None
        return found

    def read(self, url: str, *, timeout_s: float = 300) -> Any:
        """The page's JSON at ``url``, with a token of the account that may read it. Raises OSError
        and ValueError.
        """
        context = ssl._create_unverified_context()
        request = urllib.request.Request(url)
        token = self.plane.token_for(self.namespace, "sickbay-viewer", None)
        request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=timeout_s, context=context) as answer:
            return json.load(answer)

    def until_all_report(
        self, nodes: int, *, page: str = PAGE, timeout_s: float = 240
    ) -> dict[str, Any]:
        """Wait until the page shows the agents of all nodes."""

        def reported() -> dict[str, Any] | None:
            fleet = self.fleet(page)
            ready = fleet is not None and not fleet["not_ready"] and fleet["nodes"] == nodes
            return fleet if ready and fleet is not None and fleet["attached"] == nodes else None

        found = wait_until(reported, what=f"{nodes} agents on the page", timeout_s=timeout_s)
        assert found is not None
        return found

    def until_quarantined(self, quarantines: int) -> dict[str, Any]:
        """Wait until the page shows this many quarantines: it draws them some moments later."""

        def shown() -> dict[str, Any] | None:
            fleet = self.fleet()
            return fleet if fleet is not None and fleet["quarantines"] == quarantines else None

        found = wait_until(shown, what=f"{quarantines} quarantines on the page", timeout_s=60)
        assert found is not None
        return found

    def until_none_runs(self) -> None:
        """Wait until every container has ended, as after an uninstall."""
        wait_until(
            lambda: not self.kubelets.running("aggregator") + self.kubelets.running("agent"),
            what="every container to end",
            timeout_s=120,
        )

    def restarts(self) -> int:
        """How many aggregators have ended so far."""
        return len([each for each in self.kubelets.past if each.component == "aggregator"])

    def lost_streams_s(self, since: float) -> float:
        """The longest time that an agent was without a stream because of a restart.

        ``since`` is of the monotonic clock. It counts from the moment that an aggregator is asked
        to end until the last agent has its stream to the next, and for an agent that is replaced
        from its own end.
        """
        offset = time.time() - time.monotonic()
        longest = 0.0
        for node in {each.node for each in self.kubelets.every("agent")}:
            opened = sorted(
                _epoch(line["time"]) - offset
                for each in self.kubelets.every("agent")
                if each.node == node
                for line in each.log()
                if line.get("message") == OPENED
            )
            for each in self.kubelets.past:
                its_own = each.component == "agent" and each.node == node
                ended = each.stopped_at
                if ended is None or ended < since:
                    continue
                if its_own or each.component == "aggregator":
                    after = [moment for moment in opened if moment > ended]
                    longest = max(longest, (after[0] if after else time.monotonic()) - ended)
        return longest


def _epoch(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@contextlib.contextmanager
def cluster(folder: Path, *, nodes: int = 2) -> Iterator[ControlPlane]:
    """A control plane with nodes, and nothing prepared on it; pods reach it at every address."""
    # Without a default route the API server can't choose the address that it announces.
    arguments = ["--advertise-address=192.0.2.1", "--bind-address=0.0.0.0"]
    with ControlPlane(folder=folder, apiserver_args=arguments) as plane:
        plane.create_nodes(nodes, "gpu")
        yield plane


def written_nodes(plane: ControlPlane, since: int, user: str) -> list[str]:
    """The nodes that ``user`` has written to since the audit mark, by the audit log."""
    return [
        entry["objectRef"].get("name", "")
        for entry in plane.audit_entries(since)
        if entry["user"].get("username") == user  # none: a token that was refused
        and entry["verb"] not in {"get", "list", "watch"}
        and entry.get("objectRef", {}).get("resource") == "nodes"
    ]


def node_facts(plane: ControlPlane) -> dict[str, Any]:
    """All of each node except its status, and its writers with their times."""
    facts = {}
    for node in plane.call("GET", "/api/v1/nodes")["items"]:
        metadata = node["metadata"]
        kept = {key: metadata.get(key) for key in ("uid", "labels", "annotations", "finalizers")}
        facts[metadata["name"]] = kept | {"spec": node["spec"]}
    return facts


def older_chart(folder: Path, version: str = "0.0.9") -> Path:
    """The chart as an earlier version: another version of the images, and a smaller definition.

    There is no release yet. The definition of before had neither the newest columns nor the newest
    fields, which the upgrade has to bring.
    """
    chart = folder / f"sickbay-{version}"
    shutil.copytree(CHART, chart)
    for file in (chart / "Chart.yaml", chart / "values.yaml"):
        file.write_text(file.read_text("utf-8").replace("0.1.0", version), "utf-8")
    path = chart / "templates" / "crd.yaml"
    head, _, text = path.read_text("utf-8").partition("{{- if .Values.crds.enabled }}\n")
    plain = re.sub(
        r"^ *\{\{-.*\n", "", text, flags=re.MULTILINE
    )  # labels of a release, and the end
    definition, *others = read_documents(plain)
    [served] = definition["spec"]["versions"]
    served["additionalPrinterColumns"] = served["additionalPrinterColumns"][:2]
    fields = served["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    for name in [name for name in fields if name not in OLD_STATUS]:
        del fields[name]
    path.write_text(head + yaml.safe_dump_all([definition, *others], sort_keys=False), "utf-8")
    return chart


#: Fields of the status that every version has.
OLD_STATUS = {"phase", "message", "nodeUID", "admittedAt", "cordonedAt", "applied"}
