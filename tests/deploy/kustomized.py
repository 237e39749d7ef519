"""The output of kustomize for the base and its profiles, in a site's kustomization."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import DEPLOY, NAMESPACE
from tests.support.yaml_documents import read_documents


def kustomized(
    folder: Path,
    profiles: Sequence[str] = (),
    namespace: str = NAMESPACE,
    *,
    more: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Every object of a site's kustomization, which is made in ``folder`` with a copy of deploy/.

    ``more`` are further fields of that kustomization. Skips the test without kubectl.
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on the path: kustomize itself is not tried")
    copy = folder / "deploy"
    if not copy.exists():  # kustomize refuses absolute paths
        shutil.copytree(DEPLOY, copy)
    site = folder / "site"
    site.mkdir(exist_ok=True)
    kustomization: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../deploy/kubernetes"],
        "components": [f"../deploy/profiles/{name}" for name in profiles],
    }
    if "namespace" in profiles:
        local = {"config.kubernetes.io/local-config": "true"}
        kustomization["configMapGenerator"] = [
            {
                "name": "sickbay-namespace",
                "literals": [f"namespace={namespace}"],
                "options": {"disableNameSuffixHash": True, "annotations": local},
            }
        ]
    (site / "kustomization.yaml").write_text(yaml.safe_dump(kustomization | (more or {})))
    built = subprocess.run(
        [kubectl, "kustomize", site], check=False, capture_output=True, text=True, timeout=300
    )
    assert built.returncode == 0, built.stderr
    return [document for document in read_documents(built.stdout) if document is not None]
