"""Settings whose defaults follow from the namespace that the aggregator runs in.

The aggregator's pod gives it as $POD_NAMESPACE (the downward API), so that one configuration file
serves any namespace.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aggregator.cluster import registry
from aggregator.configfile.yaml_source import Document
from aggregator.runtime.cli_flags import NAMESPACE

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def with_namespace(document: Document, environ: Mapping[str, str]) -> Document:
    """The document, with every setting that its namespace decides and that it does not have.

    A ``replicas.domain`` of one label is a Service of that namespace, and becomes its DNS name.
    Lines stay as they are, and values that are wrong are left to the validation.
    """
    cluster = document.data.get("cluster") or {}
    if not isinstance(cluster, dict):
        return document
    name = cluster.get("kind", registry.ALL[0].name)
    if not any(kind.has_api_server for kind in registry.ALL if kind.name == name):
        return document
    found = cluster.get("namespace") or environ.get("POD_NAMESPACE") or NAMESPACE
    if not isinstance(found, str) or _LABEL.fullmatch(found) is None:
        return document
    data = dict(document.data)
    _complete(data, "cluster", {"namespace": found})
    _complete(data, "identity", {"service_account": f"{found}:sickbay-agent"})
    replicas = data.get("replicas") or {}
    if isinstance(replicas, dict) and (replicas.get("domain") or replicas.get("address")):
        _complete(data, "replicas", {"service_account": f"{found}:sickbay-aggregator"})
        domain = replicas.get("domain")
        if isinstance(domain, str) and _LABEL.fullmatch(domain) is not None:
            data["replicas"] |= {"domain": f"{domain}.{found}.svc"}
    return replace(document, data=data)


def _complete(data: dict[str, Any], section: str, defaults: dict[str, str]) -> None:
    """Adds the defaults of a section that is a mapping, or absent."""
    given = data.get(section) or {}
    if isinstance(given, dict):
        there = {key: value for key, value in given.items() if value is not None}
        data[section] = {**defaults, **there}
