"""The chart's templates, made from deploy/kubernetes, so that no object is maintained twice."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import yaml

from aggregator.policy.shipped_yaml import read_shipped
from tests.chart import monitoring, values_schema
from tests.chart.manifest_edits import ManifestText
from tests.chart.rules import FILES, LEFT_OUT, OBJECTS
from tests.dashboard import sickbay as dashboard
from tests.deploy.manifests import DEPLOY, KUBERNETES, PROFILES, documents, find

CHART = DEPLOY / "helm" / "sickbay"
SOURCES = [
    *sorted(KUBERNETES.glob("*.yaml")),
    PROFILES / "pod-network" / "pod-prober.yaml",
    PROFILES / "pod-monitor" / "pod-monitor.yaml",
    PROFILES / "agent-metrics" / "agent-metrics.yaml",
    PROFILES / "service-monitor" / "service-monitor.yaml",
    PROFILES / "repair-karpenter" / "repair-karpenter.yaml",
    PROFILES / "repair-cluster-api" / "repair-cluster-api.yaml",
    PROFILES / "repair-jobs" / "repair-jobs.yaml",
]

#: The namespace as the chart writes it. Quoted where it is a whole value: a namespace may be called
#: `2026` or `on`, which YAML does not read as a text.
_NAME = "app.kubernetes.io/name"
_NAMESPACE = "{{ .Release.Namespace }}"
_QUOTED = "{{ .Release.Namespace | quote }}"
_REPLACED = (
    (re.compile(r"^(\s*(?:- )?namespace:) sickbay$", re.MULTILINE), rf"\1 {_QUOTED}"),
    (re.compile(r"^(\s*namespaces:) \[sickbay\]$", re.MULTILINE), rf"\1 [{_QUOTED}]"),
    (
        re.compile(r"^(\s*serverName: sickbay-page)\.sickbay\.svc$", re.MULTILINE),
        rf"\1.{_NAMESPACE}.svc",
    ),
    (re.compile(r"serviceaccount:sickbay:"), f"serviceaccount:{_NAMESPACE}:"),
)
#: The names that `fullnameOverride` changes, where they are written. Those that programs or
#: people's commands know stay: the roles and accounts of access.yaml, the page's Service, the stop
#: switch, the authority, the class of tests, the definition.
_FULLNAME = '{{ include "sickbay.fullname" $ }}'
_KEPT = r"(?!sickbay-(?:page|stop|ca|tests|idle-test|viewer|operator|metrics|metrics-reader)$)"
_KEPT_FILES = {"access.yaml", "crd.yaml"}
_RENAMED = (
    (
        re.compile(
            r"^(\s*(?:- )?(?:name|policyName|serviceName|serviceAccountName|secretName"
            rf"|kubernetes\.io/service-account\.name):) {_KEPT}sickbay((?:-[a-z]+)*)$",
            re.MULTILINE,
        ),
        rf"\1 '{_FULLNAME}\2'",
    ),
    (re.compile(r"(:)sickbay(-aggregator)'"), rf"\1{_FULLNAME}\2'"),
    (re.compile(r"(value: )sickbay(-aggregator\.)"), rf"\1{_FULLNAME}\2"),
)


def chart_files() -> dict[Path, str]:
    """Every file of deploy/ that is made from another one or by a generator, with its text."""
    made = {
        CHART / "templates" / source.name: template(source)
        for source in SOURCES
        if source.name != "kustomization.yaml"
    }
    shipped = find("ConfigMap", "sickbay-aggregator")["data"]["aggregator.yaml"]
    made[CHART / "files" / "aggregator.yaml"] = _header(KUBERNETES / "aggregator.yaml") + shipped
    for name, source in (
        ("agent", KUBERNETES / "agent.yaml"),
        ("agent-restricted", PROFILES / "restricted" / "agent-config.yaml"),
    ):
        [config] = [d for d in documents(source) if "agent.toml" in d.get("data", {})]
        tables = tomllib.loads(config["data"]["agent.toml"])
        text = yaml.safe_dump(tables, sort_keys=False, allow_unicode=True)
        made[CHART / "files" / f"{name}.yaml"] = _header(source) + text
    made[CHART / "values.schema.json"] = values_schema.text()
    made[CHART / "files" / "dashboard.json"] = made[dashboard.FILE] = dashboard.text()
    return made | monitoring.written_files(CHART)


def template(source: Path) -> str:
    """The template of one manifest."""
    text = "---\n".join(_documents(source))
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    if source.name not in _KEPT_FILES:
        for pattern, replacement in _RENAMED:
            text = pattern.sub(replacement, text)
    if source.name in FILES:
        text = f"{{{{- if {FILES[source.name]} }}}}\n{text}{{{{- end }}}}\n"
    return _header(source) + text


def _documents(source: Path) -> Iterator[str]:
    for text in re.split(r"^---\n", source.read_text("utf-8"), flags=re.MULTILINE):
        document = ManifestText(_without_usage(text))
        content = read_shipped(text)
        key = content["kind"], content["metadata"]["name"]
        if key in LEFT_OUT:
            continue
        if key in OBJECTS:
            OBJECTS[key](document)
        if _NAME in content["metadata"].get("labels", {}):
            # https://helm.sh/docs/chart_best_practices/labels/
            labels = '{{- include "sickbay.labels" . | nindent 4 }}'
            document.insert_after(("metadata", "labels", _NAME), [labels])
        yield document.edited()


def _without_usage(text: str) -> str:
    """Without the comment at its beginning, if that is about kubectl and not about the object."""
    body = text.lstrip("\n")
    head = body[: body.index("apiVersion:")]
    return body if "kubectl apply" not in head and "\n\n" not in head else body[len(head) :]


def _header(source: Path) -> str:
    where = source.relative_to(DEPLOY.parent)
    return f"# Made from {where} by `make chart`; change it there.\n"
