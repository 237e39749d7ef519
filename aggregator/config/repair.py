"""The section ``repair``: whether and how fast nodes are repaired, and by whom."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from aggregator.cluster.node_names import TAINT
from aggregator.config.drain import HookWebhook
from aggregator.config.external import (
    ExternalSection,
    external_errors,
    template_warnings,
)
from aggregator.config.job import JobSection, job_errors
from aggregator.configfile.section import Section, Strings
from aggregator.configfile.values import (
    PLACE,
    Duration,
    HttpUrl,
    MaybePath,
    OrdinaryPath,
    filled_with,
    refuse,
    shaped,
)
from aggregator.configfile.yaml_source import Key
from aggregator.policy.repairs import GPU_RESET, REBOOT, REPLACE, TEST, TICKET
from aggregator.quarantine.decide.idle_nodes import IdleNodeRules
from aggregator.quarantine.decide.new_nodes import NewNodeRules
from aggregator.quarantine.decide.repair import RepairMode, RepairRules
from aggregator.rfc3339 import span

if TYPE_CHECKING:
    from aggregator.config.settings import ClusterConfig, Config

_FILLED = (
    "operation",
    "repair",
    "node",
    "node_uid",
    "boot_id",
    "quarantine",
    "reason",
    "profile",
)
#: Those that act by objects of the cluster's API.
_BY_OBJECTS = ("karpenter", "cluster_api", "external", "job")
_PROVIDERS = ("agent", "command", "webhook", "redfish", "ipmi", "slurm", *_BY_OBJECTS)
_PROVIDER_NAMES = ", ".join(_PROVIDERS)
#: Those that replace the machine, and can't do anything else.
_REPLACES = ("karpenter", "cluster_api")
#: Those that reboot the machine, and can't do anything else.
_REBOOTS = ("redfish", "ipmi", "slurm")
#: The value to write where a provider's key has none.
_TO_WRITE = {
    "agent": "agent: {}",
    "command": 'a program, such as command: [repair-node, "{node}"]',
    "slurm": "slurm: true",
    "karpenter": "karpenter: true",
    "cluster_api": "cluster_api: true",
}
#: Kinds that the nodes' agents know.
_BY_AGENT = ("gpu-reset", "reboot", "test")
#: Providers that can give a verdict about the node.
_TESTS = ("agent", "command", "webhook", "job")
#: Prefixes of taints that others set and remove by the state of the node, or that stay on it.
_RESERVED = (
    "node.kubernetes.io/",
    "node-role.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "node.cluster.x-k8s.io/",
    "karpenter.sh/",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "nvidia.com/gpu",
    "amd.com/gpu",
)
#: A BMC's emulator on this machine may be without TLS.
_HERE = ("127.0.0.1", "::1", "localhost")


class RedfishSection(Section):
    """A BMC's Redfish service."""

    url: HttpUrl
    """Of the system, such as ``https://{node}-bmc.example/redfish/v1/Systems/1``; with ``{node}``
    in it.
    """
    user: Annotated[str, Field(min_length=1)]
    """An account of the BMC that may reset the system."""
    password_file: OrdinaryPath
    """Its password."""
    reset_type: Literal["ForceRestart", "GracefulRestart", "PowerCycle"] = "ForceRestart"
    """``ForceRestart``, ``GracefulRestart`` or ``PowerCycle``."""
    ca_file: MaybePath = None
    """The authority of the certificate of the BMC."""


class IpmiSection(Section):
    """A BMC's IPMI over LAN, by ipmitool."""

    host: Annotated[
        str,
        shaped(
            r"[A-Za-z0-9{][A-Za-z0-9._:{}-]*",
            'the name or address of the BMC, such as "{node}-bmc.example"',
        ),
    ]
    """Such as ``{node}-bmc.example``; with ``{node}`` in it. It must not begin with a dash."""
    port: Annotated[int, Field(ge=1, le=65535)] = 623
    """Its UDP port."""
    user: Annotated[
        str, shaped(r"[^-][\s\S]*", "the name of the BMC's user, which must not begin with a dash")
    ]
    """An account of the BMC that may control the chassis."""
    password_file: OrdinaryPath
    """Its password, 20 bytes at most."""
    power: Literal["cycle", "reset"] = "cycle"
    """``cycle`` or ``reset``."""
    program: Annotated[str, Field(min_length=1)] = "ipmitool"
    """The path or name of ipmitool."""


class AgentSection(Section):
    """The node's own agent, where the node's own configuration allows it. It has no keys."""


class RepairerSection(Section):
    """The repairer of one kind of repair: by one of agent, command, webhook, redfish, ipmi,
    slurm, karpenter, cluster_api, external and job.
    """

    kind: Literal["gpu-reset", "reboot", "external", "replace", "ticket", "test"]
    """Who carries out ``gpu-reset``, ``reboot``, ``external``, ``replace`` or ``ticket``, or a
    ``test``: one of the blocks below. A kind of repair without an entry is left out of every
    ladder.
    """
    timeout: Annotated[Duration, Field(ge=60, le=86400)] = 1800.0
    """From the order until its proof must have come."""
    agent: AgentSection | None = None
    """``{}``: the node's own agent. docs/repair.md#by-the-nodes-agent."""
    pause_gpu_operator: bool = False
    """Of ``gpu-reset``: stop the GPU operator's pods that hold GPUs on the node until it has ended.
    docs/repair.md#next-to-the-gpu-operator.
    """
    command: Annotated[Strings, filled_with(*_FILLED)] = ()
    """An argument list. docs/repair.md#repairers."""
    cancel: Annotated[Strings, filled_with(*_FILLED)] = ()
    """With ``command``: takes the order back."""
    idempotent: bool = False
    """With ``command``: a second call with the same operation is harmless."""
    call_timeout: Annotated[Duration, Field(ge=1, le=3600)] = 60.0
    """With ``command``: for one call of it."""
    webhook: HookWebhook | None = None
    redfish: RedfishSection | None = None
    ipmi: IpmiSection | None = None
    slurm: bool = False
    """Of ``reboot``: ``scontrol reboot`` (docs/slurm.md#reboots)."""
    karpenter: bool = False
    """Delete the NodeClaim of the Node. docs/repair.md#replace-by-karpenter."""
    cluster_api: bool = False
    """Mark the Machine of the Node for remediation by its MachineHealthCheck
    (docs/repair.md#replace-by-cluster-api).
    """
    management_kubeconfig: MaybePath = None
    """With ``cluster_api``: the kubeconfig of the management cluster, where the Machines are in
    another one.
    """
    external: ExternalSection | None = None
    job: JobSection | None = None

    @model_validator(mode="before")
    @classmethod
    def _empty_provider(cls, data: Any) -> Any:
        """Name the provider's key that has no value: YAML reads "agent:" as null, which is left
        out like an absent key, and the entry would name no provider at all.
        """
        found = data if isinstance(data, dict) else {}
        named = {name: found[name] for name in _PROVIDERS if name in found}
        if named and all(value is None for value in named.values()):
            name = next(iter(named))
            raise refuse(f"{name} is empty", _TO_WRITE.get(name, f"the keys of {name}"))
        return data

    @property
    def providers(self) -> tuple[str, ...]:
        """Those that are given."""
        return tuple(name for name in _PROVIDERS if getattr(self, name) not in ((), None, False))


@dataclass(frozen=True)
class RepairConfig(RepairRules):
    """Whether nodes are repaired, how many at once, and by whom."""

    repairers: Annotated[tuple[RepairerSection, ...], Field(strict=False)] = ()
    """A kind of repair without one is left out of every ladder."""


def programs(repair: RepairConfig) -> Iterator[tuple[Key, str]]:
    """Every program that is run for a repair."""
    for number, one in enumerate(repair.repairers):
        key = ("repair", "repairers", number)
        for name in ("command", "cancel"):
            if getattr(one, name):
                yield (*key, name), getattr(one, name)[0]
        if one.ipmi is not None:
            yield (*key, "ipmi", "program"), one.ipmi.program


def warnings(repair: RepairConfig, *, acts: bool = True) -> Iterator[tuple[Key, str]]:
    """Settings that are allowed, and have another effect than they seem to have.

    ``acts``: whether any node has a mode other than observe.
    """
    if repair.verify and repair.mode is not RepairMode.REPAIR:
        text = (
            f'"{repair.verify}" has no effect: with repair.mode "{repair.mode.value}" no test '
            'runs, and nodes are released without one; expected mode "repair", or ""'
        )
        yield ("repair", "verify"), text
    if repair.idle_nodes is not None and (repair.mode is not RepairMode.REPAIR or not acts):
        mode = f'repair.mode "{repair.mode.value}"' if acts else 'mode "observe" of every node'
        yield ("repair", "idle_nodes"), f"has no effect: with {mode} no idle node is tested"
    yield from _new_node_warnings(repair, acts=acts)
    for number, one in enumerate(repair.repairers):
        if one.external is not None:
            key = ("repair", "repairers", number, "external", "template")
            yield from template_warnings(one.external.template, key)


def _new_node_warnings(repair: RepairConfig, *, acts: bool) -> Iterator[tuple[Key, str]]:
    rules = repair.new_nodes
    if not rules.taint:
        if rules != NewNodeRules():
            text = "its keys have no effect without a taint; expected taint, its key"
            yield ("repair", "new_nodes"), text
        return
    keep = f'no test runs, and new nodes keep their taint "{rules.taint}"'
    if repair.mode is RepairMode.OBSERVE:
        text = f'with repair.mode "observe" {keep}; expected mode "repair"'
        yield ("repair", "new_nodes", "taint"), text
    elif not acts:
        text = f'with mode "observe" of every node {keep}; expected "cordon" or "drain"'
        yield ("repair", "new_nodes", "taint"), text


def cross_field_errors(config: "Config") -> Iterator[tuple[Key, str]]:
    """Settings that are valid alone but not together: the key, and the value to write instead."""
    repair, seen = config.repair, set[str]()
    for number, one in enumerate(repair.repairers):
        kind, key = one.kind, ("repair", "repairers", number)
        if kind in seen:
            yield (*key, "kind"), f'"{kind}" has an entry already; expected one entry for each'
        seen.add(kind)
        if len(one.providers) != 1:
            given = f"has {' and '.join(one.providers)}"
            none = f"names nothing that carries {one.kind} out"
            yield key, f"{given if one.providers else none}; expected one of {_PROVIDER_NAMES}"
        if kind == TEST:
            for name in set(one.providers) - set(_TESTS):
                known = f"{', '.join(_TESTS[:-1])} or {_TESTS[-1]}"
                yield (*key, name), f"can give no verdict about the node; expected {known}"
        else:
            yield from _repair_errors(one, key)
        yield from _object_errors(one, key, config.cluster)
        if one.slurm and not config.cluster.traits.reboots_nodes:
            text = 'needs Slurm, and cluster.kind is not "slurm"; expected another repairer'
            yield (*key, "slurm"), text
        yield from _command_errors(one, key)
        yield from _bmc_errors(one, key)
    if repair.verify:
        yield from _profile_errors(repair, repair.verify, ("repair", "verify"), '""')
    if repair.new_nodes.taint:
        yield from _new_node_errors(config)
    if repair.idle_nodes is not None and repair.mode is not RepairMode.OFF:
        yield from _idle_node_errors(repair, repair.idle_nodes)
    if repair.mode is RepairMode.REPAIR and not repair.repairers:
        text = 'repairs nodes, and no repairer is configured; expected repairers, or "observe"'
        yield ("repair", "mode"), text


def _command_errors(one: RepairerSection, key: Key) -> Iterator[tuple[Key, str]]:
    for name in ("cancel", "idempotent"):
        if getattr(one, name) and not one.command:
            yield (*key, name), "is about a command; expected command too"
    if one.command and one.call_timeout > one.timeout:
        text = f'is longer than timeout; expected at most "{span(one.timeout)}"'
        yield (*key, "call_timeout"), f'"{span(one.call_timeout)}" {text}'
    for name in ("command", "cancel") if one.kind != TEST else ():
        if any("{profile}" in word for word in getattr(one, name)):
            text = f"{one.kind} has no test profile to fill in; expected {{profile}} under {TEST}"
            yield (*key, name), text


def _bmc_errors(one: RepairerSection, key: Key) -> Iterator[tuple[Key, str]]:
    """Each node has a BMC of its own: else the machine of another one would restart."""
    if one.redfish is not None:
        url = urlsplit(one.redfish.url)
        if url.scheme != "https" and url.hostname not in _HERE:
            text = "would send the BMC's password in the clear; expected https://"
            yield (*key, "redfish", "url"), text
        yield from _node_errors(one.redfish.url, (*key, "redfish", "url"))
    if one.ipmi is not None:
        yield from _node_errors(one.ipmi.host, (*key, "ipmi", "host"))


def _node_errors(text: str, key: Key) -> Iterator[tuple[Key, str]]:
    unknown = [place[0] for place in PLACE.finditer(text) if place[1] != "node"]
    for place in unknown:
        yield key, f'no value is filled in for "{place}"; expected {{node}}'
    if "{node}" not in text and not unknown:
        yield key, "is the same for every node; expected {node} in it"


def _profile_errors(
    repair: RepairConfig, profile: str, key: Key, without: str
) -> Iterator[tuple[Key, str]]:
    """Whether the profile can be tested at all; the agents' own are not known here. ``without``:
    what to write for no test.
    """
    tests = [one for one in repair.repairers if one.kind == TEST]
    if not tests:
        text = f'"{profile}" needs one that tests; expected repairers with kind: test, or {without}'
        yield key, text
    elif tests[0].job is not None and profile not in tests[0].job.profiles:
        known = ", ".join(sorted(tests[0].job.profiles))
        text = f'"{profile}" is no profile of the job that tests; expected one of {known}'
        yield key, text


def _new_node_errors(config: "Config") -> Iterator[tuple[Key, str]]:
    key: Key = ("repair", "new_nodes")
    repair, rules = config.repair, config.repair.new_nodes
    if not config.cluster.has_api_server:
        text = (
            'is about taints of Kubernetes, and cluster.kind is not "kubernetes"; expected no taint'
        )
        yield key, text
        return
    if repair.mode is RepairMode.OFF:
        text = "would leave each new node its taint, as repair.mode is off; expected mode: repair"
        yield key, text
    if rules.taint in (TAINT, config.marks.taint.key):
        text = f'"{rules.taint}" is the taint of nodes in quarantine; expected another key'
        yield (*key, "taint"), text
    elif rules.taint.startswith(_RESERVED):
        text = (
            f'"{rules.taint}" is a taint of the kubelet, of another controller or of a pool of '
            'GPUs, which must not go; expected one of your own, such as "example.com/untested"'
        )
        yield (*key, "taint"), text
    yield from _profile_errors(repair, rules.profile, (*key, "profile"), "no taint")


def _idle_node_errors(repair: RepairConfig, rules: IdleNodeRules) -> Iterator[tuple[Key, str]]:
    """Only a pod that requests all GPUs begins on no node that has work, and gives way to it."""
    key: Key = ("repair", "idle_nodes")
    jobs = [one.job for one in repair.repairers if one.kind == TEST and one.job is not None]
    if not jobs:
        text = (
            "needs tests that work preempts, and only the scheduler can do that to a pod; expected "
            "repairers with kind: test and job, or no idle_nodes"
        )
        yield key, text
        return
    if jobs[0].gpus != "all":
        text = f'would test nodes whose GPUs are in use: job.gpus is {jobs[0].gpus}; expected "all"'
        yield key, text
    yield from _profile_errors(repair, rules.profile, (*key, "profile"), "no idle_nodes")


def _repair_errors(one: RepairerSection, key: Key) -> Iterator[tuple[Key, str]]:
    """Whether the one who is given can carry out this kind of repair."""
    if one.kind != REBOOT:
        for name in set(_REBOOTS) & set(one.providers):
            yield (*key, name), f"restarts the machine; expected it under {REBOOT}"
    if one.agent is not None and one.kind not in _BY_AGENT:
        kinds = " or ".join(_BY_AGENT)
        yield (*key, "agent"), f"is nothing that an agent can do; expected it under {kinds}"
    if one.pause_gpu_operator and one.kind != GPU_RESET:
        text = f"stops pods that hold GPUs; expected it under {GPU_RESET}"
        yield (*key, "pause_gpu_operator"), text
    if one.kind == TICKET and one.command:
        yield (*key, "command"), "a ticket has more evidence than arguments; expected webhook"


def _object_errors(
    one: RepairerSection, key: Key, cluster: "ClusterConfig"
) -> Iterator[tuple[Key, str]]:
    """The same for the repairers that act by objects of the cluster's API."""
    for name in one.providers:
        if name in _BY_OBJECTS and not cluster.has_api_server:
            text = 'needs an API server, and cluster.kind is not "kubernetes"; expected command'
            yield (*key, name), text
        if name in _REPLACES and one.kind not in (REPLACE, TEST):
            yield (*key, name), f"replaces the machine; expected it under {REPLACE}"
    if one.management_kubeconfig is not None and not one.cluster_api:
        text = "is about Machines; expected cluster_api: true too"
        yield (*key, "management_kubeconfig"), text
    if one.job is not None:
        yield from job_errors(one.job, (*key, "job"), cluster.namespace)
        if one.kind != TEST:
            yield (*key, "job"), f"runs a test and repairs nothing; expected it under {TEST}"
    if one.external is None:
        return
    yield from external_errors(one.external, (*key, "external"))
    if one.kind == TICKET:
        text = "a ticket has more evidence than an object of a template; expected webhook"
        yield (*key, "external"), text
    elif one.kind not in (REBOOT, REPLACE, TEST) and one.external.succeeded is None:
        text = f"no Node proves {one.kind}; expected succeeded, the condition that shows it"
        yield (*key, "external"), text
