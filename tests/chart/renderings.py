"""Renderings of the chart that are kept in golden/, each beside the same install by kustomize."""

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.chart.templates import CHART
from tests.support.yaml_documents import read_documents

GOLDEN = Path(__file__).with_name("golden")
#: Helm without a cluster takes this version for the cluster's.
KUBE_VERSION = "v1.32.0"

_DATABASE = "postgresql+asyncpg://sickbay@db.example:5432/sickbay"
_CREDENTIALS = {
    "password_file": "/etc/sickbay-history/password",
    "ca_file": "/etc/sickbay-history/ca.crt",
}


@dataclass(frozen=True)
class Rendering:
    """One install. ``profiles`` and ``more`` (fields of its kustomization) give the same objects.

    ``configuration`` is merged over the aggregator's shipped configuration, for kustomize.
    """

    name: str
    values: dict[str, Any]
    profiles: tuple[str, ...] = ()
    release: str = "sickbay"
    namespace: str = "sickbay"
    more: dict[str, Any] = field(default_factory=dict)
    configuration: dict[str, Any] = field(default_factory=dict)

    @property
    def golden(self) -> Path:
        """The file with its objects."""
        return GOLDEN / f"{self.name}.yaml"


def _images(repository: str, tag: str) -> dict[str, Any]:
    programs = ("sickbay-agent", "sickbay-aggregator")
    return {
        "images": [
            {"name": program, "newName": f"{repository}/{program}", "newTag": tag}
            for program in programs
        ]
    }


#: Their objects are of kinds that every API server has.
BUILT_IN = (
    Rendering("small", {}),
    Rendering(
        "large",
        {
            "profile": "large",
            "image": {"repository": "images.example.test/health", "tag": "0.1.1"},
            "history": {"database": _DATABASE},
        },
        ("large",),
        more=_images("images.example.test/health", "0.1.1"),
        configuration={"history": {"database": _DATABASE, **_CREDENTIALS}},
    ),
    Rendering(
        "all-profiles",
        {
            "mode": "cordon",
            "aggregator": {"persistence": {"enabled": True}},
            "agent": {"restricted": True},
            "podNetworkProber": {"enabled": True},
            "repair": {"rbac": {"karpenter": True, "clusterApi": True, "jobs": "sickbay-tests"}},
        },
        (
            "persistent",
            "pod-network",
            "restricted",
            "repair-karpenter",
            "repair-cluster-api",
            "repair-jobs",
            "namespace",
        ),
        release="nodes",
        namespace="gpu-health",
        configuration={"mode": "cordon"},
    ),
)
#: With objects of Prometheus Operator, whose definitions the tests' control plane lacks.
OPERATOR = (
    Rendering(
        "pod-monitor",
        {
            "monitoring": {
                "scrape": "PodMonitor",
                "agents": {"enabled": True},
                "rules": {"enabled": True},
                "dashboard": {"enabled": True},
            }
        },
        ("pod-monitor", "agent-metrics", "prometheus-rules", "grafana-dashboard", "namespace"),
        namespace="gpu-health",
    ),
    Rendering(
        "service-monitor", {"monitoring": {"scrape": "ServiceMonitor"}}, ("service-monitor",)
    ),
)
RENDERINGS = (*BUILT_IN, *OPERATOR)
#: Every object that the chart can have, under another name. Kustomize has no counterpart.
RENAMED = Rendering(
    "renamed",
    {
        "fullnameOverride": "gpu-nurse",
        "nameOverride": "unused",
        "podNetworkProber": {"enabled": True},
        "repair": {"rbac": {"karpenter": True, "clusterApi": True, "jobs": "sickbay-tests"}},
        "monitoring": {
            "scrape": "PodMonitor",
            "agents": {"enabled": True},
            "rules": {"enabled": True},
        },
    },
)
GOLDEN_RENDERINGS = (*RENDERINGS, RENAMED)


class HelmError(Exception):
    """Helm ended with an error; its text is what a person sees."""


def render(
    helm: Path, rendering: Rendering, *arguments: str, chart: Path = CHART
) -> list[dict[str, Any]]:
    """Every object that `helm template` makes, test hooks too. Raises HelmError."""
    names = [rendering.release, str(chart), "--namespace", rendering.namespace]
    done = subprocess.run(
        [
            str(helm),
            "template",
            *names,
            "--kube-version",
            KUBE_VERSION,
            "--values",
            "-",
            *arguments,
        ],
        input=yaml.safe_dump(rendering.values),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode != 0:
        raise HelmError(done.stderr.strip())
    return [document for document in read_documents(done.stdout) if document is not None]


def written(objects: list[dict[str, Any]]) -> str:
    """The text of a golden file. The definition of Quarantines is left out: it has no values."""
    head = "# Made by `make chart`; the comparison is in tests/chart/test_chart.py.\n"
    kept = [each for each in objects if each["kind"] != "CustomResourceDefinition"]
    return head + yaml.safe_dump_all(kept, sort_keys=True, width=100)


def golden(rendering: Rendering) -> list[dict[str, Any]]:
    """The objects of the golden file."""
    return read_documents(rendering.golden.read_text("utf-8"))
