"""The same install as a rendering of the chart, by kustomize."""

from pathlib import Path
from typing import Any

import yaml

from tests.chart.renderings import Rendering
from tests.deploy.kustomized import kustomized
from tests.deploy.manifests import find
from tests.support.yaml_documents import read_yaml


def objects(rendering: Rendering, folder: Path) -> list[dict[str, Any]]:
    """Every object of the kustomization that ``rendering`` describes; made in ``folder``."""
    more = dict(rendering.more)
    if rendering.configuration:
        shipped = read_yaml(find("ConfigMap", "sickbay-aggregator")["data"]["aggregator.yaml"])
        patch = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "sickbay-aggregator", "namespace": rendering.namespace},
            "data": {"aggregator.yaml": yaml.safe_dump(shipped | rendering.configuration)},
        }
        more["patches"] = [{"patch": yaml.safe_dump(patch)}]
    return kustomized(folder, rendering.profiles, rendering.namespace, more=more)
