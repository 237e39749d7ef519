"""The rules of deploy/prometheus as one PrometheusRule, for kustomize and for the chart."""

from pathlib import Path
from typing import Any

import yaml

from tests.deploy.manifests import DEPLOY, PROFILES
from tests.support.yaml_documents import read_yaml

RULES = DEPLOY / "prometheus"
MANIFEST = PROFILES / "prometheus-rules" / "prometheus-rule.yaml"
_LABELS = {"app.kubernetes.io/name": "sickbay", "app.kubernetes.io/component": "aggregator"}
_HEADER = "# Made from deploy/prometheus by `make chart`; change it there.\n"


def groups() -> dict[str, Any]:
    """The groups of every file, in the files' order."""
    files = [read_yaml(file.read_text("utf-8")) for file in sorted(RULES.glob("*.yaml"))]
    return {"groups": [group for file in files for group in file["groups"]]}


def manifest() -> str:
    """The object for kustomize."""
    return _HEADER + _dumped(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": "sickbay", "namespace": "sickbay", "labels": _LABELS},
            "spec": groups(),
        }
    )


def chart_file() -> str:
    """Its spec, which the chart's template includes: in a template Helm would read Prometheus' own
    braces.
    """
    return _HEADER + _dumped(groups())


def written_files(chart: Path) -> dict[Path, str]:
    """Each file with its text. ``chart`` is the chart's folder."""
    return {MANIFEST: manifest(), chart / "files" / "prometheus-rules.yaml": chart_file()}


def _dumped(content: dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, width=100, allow_unicode=True)
