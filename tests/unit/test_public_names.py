"""docs/public-names.md: the first column of each of its tables names what the code has, no more."""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FileDescriptor

from aggregator.alerts import webhook
from aggregator.cli.bisect import NO_VERDICT
from aggregator.cli.main import FAILED, INTERRUPTED, OK, USAGE
from aggregator.cluster import node_names, quarantine_conditions
from aggregator.cluster.kubernetes import (
    event_writer,
    lease,
    objects,
    operation_client,
    quarantine_codec,
)
from aggregator.cluster.port import Action, QuarantineSpec, QuarantineStatus, RepairStatus
from aggregator.config import drain
from aggregator.config.settings import Config
from aggregator.daemon_cli import main as daemon
from aggregator.daemon_cli import replay
from aggregator.events import EventKind
from aggregator.ingest.grpc_env import ENVIRONMENT
from aggregator.quarantine.decide import (
    drain_plan,
    gpu_operands,
    maintenance,
    node_events,
    node_marks,
    repair,
)
from aggregator.quarantine.state import gpus
from aggregator.relay import auth
from aggregator.web import action_endpoints, forwarded_client, same_origin
from aggregator.web.api import ENDPOINTS
from aggregator.web.metric_families import declared
from aggregator.web.person_actions import ACTIONS
from nodeagent import cli as agent_cli
from nodeagent.checks import custom_plugin
from nodeagent.config import settings as agent_settings
from nodeagent.config.settings import keys as agent_keys
from nodeagent.evidence import store
from nodeagent.repair import journal, lock
from nodeagent.terminal import arguments, run_arguments
from sickbay.v1 import relay_pb2, sickbay_pb2
from tests.support.log_events import log_events
from tests.support.yaml_documents import read_documents

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "public-names.md").read_text()
STABILITIES = {"stable", "before 1.0", "internal"}


def code(*folders: str) -> str:
    """The text of every module of these packages, or of all."""
    return "\n".join(
        file.read_text()
        for folder in folders or ("aggregator", "nodeagent")
        for file in sorted((ROOT / folder).rglob("*.py"))
    )


def rows(heading: str) -> list[list[str]]:
    """The cells of the tables below a heading, without the tables' heads."""
    _, found, rest = PAGE.partition(f"\n## {heading}\n")
    assert found, f"the page has no section {heading!r}"
    body = rest.partition("\n## ")[0]
    lines = [line for line in body.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def listed(heading: str) -> list[str]:
    return [name for row in rows(heading) for name in names(row[0])]


# -- what the code has ---------------------------------------------------------------


def grpc() -> Iterator[str]:
    files: tuple[FileDescriptor, ...] = (
        sickbay_pb2.DESCRIPTOR,
        relay_pb2.DESCRIPTOR,
    )
    for file in files:
        yield file.package
        yield from file.message_types_by_name
        yield from file.enum_types_by_name
        for service in file.services_by_name.values():
            yield service.full_name
            yield from (f"{service.full_name}/{method.name}" for method in service.methods)


def shipped() -> list[Path]:
    """The manifests and examples; the templates of the chart are made from these."""
    return sorted(file for file in DEPLOY.rglob("*.yaml") if DEPLOY / "helm" not in file.parents)


def manifests() -> Iterator[Mapping[str, Any]]:
    for file in shipped():
        for document in read_documents(file.read_text()):
            if isinstance(document, dict) and "kind" in document and "metadata" in document:
                yield document


def fields(path: str, schema: Mapping[str, Any]) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        is_list = field["type"] == "array"
        where = f"{path}.{name}{'[]' if is_list else ''}"
        yield where
        yield from fields(where, field["items"] if is_list else field)


def quarantine() -> Iterator[str]:
    return names_of("Quarantine")


def condition_types() -> Iterator[str]:
    """Those of a quarantine whose repair waits: it has all that any has."""
    spec = QuarantineSpec(Action.DRAIN, kind="gpu", reason="")
    status = QuarantineStatus(repair=RepairStatus(held="it waits"))
    yield from (name for name, _ in quarantine_conditions._conditions("n1", spec, status))


def operation() -> Iterator[str]:
    """Without the names of the group, which the Quarantine has too."""
    group = ("sickbay", "sickbay.dev", "sickbay.dev/v1alpha1")
    return (name for name in names_of("Operation") if name not in group)


def names_of(kind: str) -> Iterator[str]:
    definitions = read_documents((DEPLOY / "kubernetes" / "crd.yaml").read_text())
    [definition] = (one["spec"] for one in definitions if one["spec"]["names"]["kind"] == kind)
    group, kinds = definition["group"], definition["names"]
    yield from (group, *kinds["shortNames"], *kinds["categories"])
    yield from (kinds[name] for name in ("kind", "listKind", "plural", "singular"))
    for version in definition["versions"]:
        yield f"{group}/{version['name']}"
        yield from (field["jsonPath"] for field in version["selectableFields"])
        schema = version["schema"]["openAPIV3Schema"]["properties"]
        for part in ("spec", "status"):
            yield from fields(part, schema[part])


def keys() -> Iterator[str]:
    """Each key below sickbay.dev, wherever the code writes it as a literal, and the others' key."""
    reporter = event_writer.REPORTER
    yield from set(re.findall(r'"(sickbay\.dev/[a-z-]+)"', code("aggregator"))) - {reporter}
    yield from (node_names.CONDITION, node_names.TEST_CONDITION)
    yield from (node_marks.OFF_BALANCERS, quarantine_codec.FINALIZER)
    yield from (operation_client.FINALIZER, operation_client.NODE_LABEL)
    yield from node_marks.KEEPING


def foreign() -> Iterator[str]:
    yield from (one.key for one in maintenance.MaintenanceRules().all_marks())
    yield from (*drain_plan._UNWILLING, objects._MIRROR)
    yield from (drain_plan._DAEMON, drain_plan._SAFE_VOLUMES)
    yield gpus.GPU_COUNT_LABEL
    yield from (repair._KURED, repair._KARPENTER, repair._MEDIK8S, f"{gpu_operands.DEPLOY}*")


#: The workloads of examples, which a site names.
_OF_SITES = ("Job", "RayCluster", "Deployment")


def cluster_objects() -> Iterator[str]:
    yield from (objects.RECORD_NAME, objects.STOP_NAME, lease.NAME)
    yield from (objects.CA_NAME, objects.CA_KEYS_NAME)
    for document in manifests():
        if document["kind"] not in _OF_SITES:
            yield document["metadata"]["name"]
    for file in shipped():
        text = file.read_text()
        yield from re.findall(r"secretName: (\S+)", text)
        yield from re.findall(r"configMap:\n +name: (\S+)", text)
        yield from re.findall(r"configMapGenerator:\n +- name: (\S+)", text)


def kubernetes_events() -> Iterator[str]:
    yield event_writer.REPORTER
    for found in re.findall(
        r'(?:reason = |action=)"(\w+)" if quarantined else "(\w+)"', code("aggregator")
    ):
        yield from found
    yield from (reason for reason, _, _ in node_events.REASONS.values())
    yield from ("Drain", "Repair")


def aggregator_metrics() -> dict[str, str]:
    """Families by name, with their type. The client library appends ``_total`` to a counter."""
    return {
        f"{name}_total" if of["type"] == "counter" else name: of["type"]
        for name, of in declared().items()
    }


def agent_metrics() -> dict[str, str]:
    text = (ROOT / "nodeagent" / "local" / "render.py").read_text()
    kinds = r'",\s*"(gauge|counter)"'
    whole = re.findall(rf'page\.(?:one|family)\(\s*"(\w+){kinds}', text)
    ends = re.findall(rf'each\("(\w+){kinds}', text)
    return dict(whole) | {f"sickbay_agent_check_{name}": kind for name, kind in ends}


def environment() -> Iterator[str]:
    text = code()
    yield from re.findall(r'environ\.(?:get|setdefault)\(\s*"([A-Z_]+)"', text)
    yield from re.findall(r"\bSICKBAY_[A-Z][A-Z_]*\b", text)
    yield from re.findall(r"\b(?:HTTPS_PROXY|NO_PROXY|PGPASSFILE)\b", text)
    yield from ENVIRONMENT
    yield from (f"SICKBAY_{name.upper()}" for name in drain._FILLED)


def paths() -> Iterator[str]:
    server = (ROOT / "aggregator" / "web" / "server.py").read_text()
    yield from re.findall(r'\b(?:get|post)\("(/[^"]*)"', server)
    yield from (endpoint.path for endpoint in ENDPOINTS)
    yield from (action_endpoints.ACCESS, *(action.path for action in ACTIONS.values()))
    yield from re.findall(r'\("(?:GET|POST)", "(/[^"]+)"\)', code("nodeagent/local"))


def files() -> Iterator[str]:
    config = Config()
    agent = agent_settings.default({"NODE_NAME": "node-1"}, with_checks=False)
    found: list[Path] = [
        *(daemon.DEFAULT_CONFIG, run_arguments.DEFAULT_CONFIG, arguments.POD_PROBER_SOCKET),
        *(agent.socket, agent.run_dir / store.NAME, agent.state_dir / store.NAME),
        *(config.cluster.local.database, config.alerts.outbox, config.identity.keys_cache),
        *(
            config.certificates.folder,
            config.replicas.token_file,
            Path(config.history.database.partition("///")[2]),
        ),
    ]
    yield from map(str, found)
    folder = agent.state_dir / "repair"
    yield from (f"{folder}/{journal.NAME}", f"{folder}/{journal.DETAILS}")
    yield str(agent.run_dir / lock.LOCK)


def configuration() -> Iterator[str]:
    yield from Config.model_fields
    yield from (key for key in agent_keys() if "." not in key)


def others() -> Iterator[str]:
    yield from tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    yield from (custom_plugin.GROUP, auth.AUDIENCE)
    yield same_origin.ACTION_HEADER
    yield from forwarded_client.NAMES
    yield from (webhook.SIGNATURE, webhook.TIMESTAMP, webhook.DELIVERY)
    yield from re.findall(r'getLogger\("(sickbay[^"]*)"\)', code())


#: The functions that find the names of each section, by reading all of the code.
SECTIONS: Mapping[str, Callable[[], Iterable[str]]] = {
    "gRPC": grpc,
    "The Quarantine object": quarantine,
    "The Operation object": operation,
    "Conditions of a Quarantine": condition_types,
    "Names on Nodes and Leases": keys,
    "Names of others that are read": foreign,
    "Objects in the cluster": cluster_objects,
    "Event kinds": lambda: {kind.value for kind in EventKind},
    "Log events": lambda: set(log_events("aggregator")) | set(log_events("nodeagent")),
    "Kubernetes Events": kubernetes_events,
    "Metrics of the aggregator": aggregator_metrics,
    "Metrics of the agent": agent_metrics,
    "Environment variables": environment,
    "HTTP paths": paths,
    "Files and sockets": files,
    "Configuration": configuration,
    "Other names": others,
}


@cache
def in_code(heading: str) -> frozenset[str]:
    """The names that the code has for this section."""
    return frozenset(SECTIONS[heading]())


# -- the tests -----------------------------------------------------------------------


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_page_has_each_name_and_no_other(heading: str) -> None:
    assert sorted(set(listed(heading))) == sorted(in_code(heading))


@pytest.mark.parametrize("heading", sorted(SECTIONS.keys() - {"Configuration"}))
def test_no_name_stands_twice(heading: str) -> None:
    assert len(listed(heading)) == len(set(listed(heading)))


@pytest.mark.parametrize("heading", SECTIONS)
def test_each_row_has_a_stability(heading: str) -> None:
    assert {row[-1] for row in rows(heading)} <= STABILITIES


def test_each_constant_of_the_names_on_nodes_is_listed() -> None:
    constants = {
        value for name, value in vars(node_names).items() if name[0] != "_" and name.isupper()
    }
    assert constants <= in_code("Names on Nodes and Leases")


def test_each_metric_has_its_type() -> None:
    for heading, found in (
        ("Metrics of the aggregator", aggregator_metrics()),
        ("Metrics of the agent", agent_metrics()),
    ):
        types = {name: row[1] for row in rows(heading) for name in names(row[0])}
        assert types == found


def test_metrics_end_as_the_conventions_say() -> None:
    for name, kind in (aggregator_metrics() | agent_metrics()).items():
        assert name.endswith("_total") is (kind == "counter")


def test_exit_codes() -> None:
    expected = {
        1: {OK, FAILED, USAGE, NO_VERDICT, INTERRUPTED},
        2: {daemon.OK, daemon.FAILED, daemon.USAGE, daemon.INTERRUPTED}
        | {replay.SAME, replay.DIFFERENT, replay.TROUBLE},
        3: {agent_cli.OK, agent_cli.BAD, agent_cli.USAGE, agent_cli.NO_VERDICT}
        | {agent_cli.INTERNAL, agent_cli.INTERRUPTED},
    }
    table = rows("Exit codes")
    for column, codes in expected.items():
        assert {int(names(row[0])[0]) for row in table if row[column]} == codes


@pytest.mark.parametrize("kind", list(EventKind))
def test_an_event_kind_has_a_dot_behind_its_subject_and_underscores_between_words(
    kind: EventKind,
) -> None:
    assert re.fullmatch(r"[a-z]+\.[a-z]+(_[a-z]+)*", kind)
