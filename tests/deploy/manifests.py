"""The manifests of deploy/, as plain documents: no kubectl is needed to read them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.yaml_documents import read_documents

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
PROFILES = DEPLOY / "profiles"
NAMESPACE = "sickbay"


def documents(path: Path) -> list[dict[str, Any]]:
    """Every document of a YAML file."""
    return [each for each in read_documents(path.read_text("utf-8")) if each is not None]


def installed() -> Iterator[dict[str, Any]]:
    """Every object of an install, in the order that the kustomization names its files."""
    [kustomization] = documents(KUBERNETES / "kustomization.yaml")
    for name in kustomization["resources"]:
        yield from documents(KUBERNETES / name)


def find(kind: str, name: str) -> dict[str, Any]:
    """The one object of this kind and name."""
    [found] = [d for d in installed() if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    return found


def pod_spec(kind: str, name: str) -> dict[str, Any]:
    """The pod of a DaemonSet or StatefulSet."""
    spec: dict[str, Any] = find(kind, name)["spec"]["template"]["spec"]
    return spec


def container(spec: dict[str, Any]) -> dict[str, Any]:
    """A pod's only container."""
    [only] = spec["containers"]
    assert isinstance(only, dict)
    return only


def mounts(spec: dict[str, Any]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """The mounts by their path in the container, each with its volume.

    A StatefulSet's claims are no volumes of its pod; a mount of one has an empty volume.
    """
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    return {
        mount["mountPath"]: (mount, volumes.get(mount["name"], {}))
        for mount in container(spec)["volumeMounts"]
    }
